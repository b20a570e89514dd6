"""The small process in whose name a program runs that was forked elsewhere: `quick_start` says what for.

Owns: handing over what a process starts with (streams, folder, environment, words), passing signals on, and ending as
the program ended. Knows nothing of what it runs. Invariant: where nobody forks, it becomes the program itself.
Only modules of the interpreter's own are loaded, since its start is all that it costs.
"""

from __future__ import annotations

import _signal
import _socket
import marshal
import os
import sys
from typing import NoReturn

# Read by the interpreter or by a library while it starts: a forked program would not have noticed another value.
AT_THE_START = ("PYTHON", "LC_", "LANG", "TZ", "FORCE_COLOR", "TERMINAL_WIDTH", "PY_COLORS", "_TYPER", "OPENSSL")
WHERE_NONE_IS_SET = ("LC_CTYPE", "C.UTF-8")  # Python itself puts it there
PASSED_ON = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGUSR1, _signal.SIGUSR2)
TESTS = __file__.rpartition("support")[0]
LOST = 70
PATIENCE = 60


def early(environment: dict[str, str]) -> dict[str, str]:
    """What of an environment counts before any program's first line."""
    return {name: value for name, value in environment.items() if name.startswith(AT_THE_START)}


def launch_as_python(address: str, known: dict[str, str]) -> NoReturn:
    """What `python` does with these words; only a module of `pursuit` and a program of the tests are forked."""
    words = sys.argv[1:]
    if words[:1] == ["-m"] and words[1].startswith("pursuit"):
        launch(address, words[:2], words[2:], known, sys.argv[0])
    if words and words[0].startswith(TESTS):
        launch(address, words[:1], words[1:], known, sys.argv[0])
    os.execv(sys.executable, [sys.executable, *words])


def launch(
    address: str, program: list[str], words: list[str], known: dict[str, str], executable: str = sys.executable
) -> NoReturn:
    """Runs the program, forked by whoever listens at the address; `known` is what that one was started with.

    `executable` is the Python that the program takes itself to run on.
    """
    unknown = early(dict(os.environ)).items() - known.items() - {WHERE_NONE_IS_SET}
    try:
        connection = None if unknown else _handed_over(address, (program, words, executable))
    except OSError:
        connection = None
    if connection is None:
        os.execv(sys.executable, [sys.executable, *program, *words])
    _accompany(connection)


def _handed_over(address: str, what: tuple[list[str], list[str], str]) -> _socket.socket:
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.settimeout(PATIENCE)  # it may still be loading; after that the program is started in the usual way
    connection.connect(address)
    if not connection.recv(1):
        raise OSError("nobody forks here any more")
    ignores = _signal.getsignal(_signal.SIGINT) == _signal.SIG_IGN
    request = marshal.dumps((*what, os.getcwd(), dict(os.environ), ignores))  # noqa: PTH109 - pathlib is slow to load
    streams = b"".join(stream.to_bytes(4, sys.byteorder) for stream in (0, 1, 2))
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)]
    connection.sendmsg([len(request).to_bytes(4, "big")], rights)
    connection.sendall(request)
    return connection


def _accompany(connection: _socket.socket) -> NoReturn:
    connection.settimeout(None)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # the program alone holds them: others must see when it closes one
        os.dup2(nothing, stream)
    started = connection.recv(4)
    if len(started) < 4:
        os._exit(LOST)
    pid = int.from_bytes(started, "big")
    for number in PASSED_ON:
        _signal.signal(number, lambda number, _frame: os.kill(pid, number))
    ended = connection.recv(4)
    if len(ended) < 4:
        os._exit(LOST)
    code = int.from_bytes(ended, "big", signed=True)
    if code < 0:
        if -code in PASSED_ON or -code == _signal.SIGPIPE:
            _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
