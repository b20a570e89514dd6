"""The process that has everything loaded and forks a child for each program that it is asked for: see `quick_start`.

Owns: its children, from the fork to their exit codes. Knows nothing of tests.
Invariants: it has one thread whenever it forks; a child outlives neither its launcher nor this process's parent;
a child has nothing of this process but loaded modules: no descriptor, no signal handler, no environment.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import io
import marshal
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

# One command in many needs them: they bring numpy, which starts threads, and Temporal, which is an extra.
SEARCH = tuple(f"proposers.search.{name}" for name in ("samplers", "space", "surrogate"))
LEFT_OUT = tuple(f"pursuit.{name}" for name in (*SEARCH, "temporal."))
OTHERS = ("mcp", "mcp.server.mcpserver", "mcp.server.stdio", "uvicorn.protocols.http.h11_impl", "uvicorn.loops.asyncio")
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2)
PATIENCE = 10


def load() -> None:
    """All that programs here load, and nothing that does something when it is loaded."""
    import pursuit

    for module in pkgutil.walk_packages(pursuit.__path__, "pursuit."):
        if not module.name.startswith(LEFT_OUT) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in OTHERS:
        importlib.import_module(name)
    tasks = Path("/proc/self/task")  # also those of which Python knows nothing, where the system tells
    if max(threading.active_count(), len(list(tasks.iterdir())) if tasks.exists() else 1) != 1:
        raise SystemExit("a module starts a thread when it is loaded, and a fork would lose it: leave the module out")


class Forks:
    """The loop; `serve` returns in children only, with what they are to run."""

    def __init__(self, listening: socket.socket, lifeline: int) -> None:
        self.listening, self.lifeline = listening, lifeline
        self.launchers: dict[int, socket.socket] = {}
        self.chooser = selectors.DefaultSelector()
        self.woken, self.waking = os.pipe()
        os.set_blocking(self.waking, False)
        os.set_blocking(self.woken, False)
        signal.set_wakeup_fd(self.waking, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for ready in (listening, lifeline, self.woken):
            self.chooser.register(ready, selectors.EVENT_READ)

    def serve(self) -> Any:
        while True:
            for key, _ in self.chooser.select():
                if key.fileobj is self.listening:
                    if (task := self._asked()) is not None:
                        return task
                elif key.fileobj == self.lifeline:
                    self._leave()
                elif key.fileobj == self.woken:
                    self._reap()
                elif key.data in self.launchers:
                    self._kill(key.data)

    def _asked(self) -> Any:
        launcher, _ = self.listening.accept()
        launcher.settimeout(PATIENCE)
        streams = array.array("i")
        try:
            launcher.sendall(b"!")
            head, rights, *_ = launcher.recvmsg(4, socket.CMSG_SPACE(3 * streams.itemsize))
            for _level, _kind, data in rights:
                streams.frombytes(data)
            request = marshal.loads(_exactly(launcher, int.from_bytes(head, "big")))
        except (OSError, EOFError):  # it was killed in the middle
            launcher.close()
            _close(streams)
            return None
        pid = os.fork()
        if pid == 0:
            return self._child(launcher), streams, request
        _close(streams)
        self.launchers[pid] = launcher
        self.chooser.register(launcher, selectors.EVENT_READ, pid)
        _tell(launcher, pid)
        return None

    def _child(self, launcher: socket.socket) -> None:
        os.setsid()
        signal.set_wakeup_fd(-1)
        self.chooser.close()
        for ours in (self.listening, launcher, *self.launchers.values()):
            ours.close()
        _close([self.lifeline, self.woken, self.waking])

    def _reap(self) -> None:
        while self._woken():
            pass
        for pid in list(self.launchers):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                launcher = self.launchers.pop(pid)
                self.chooser.unregister(launcher)
                _tell(launcher, os.waitstatus_to_exitcode(status))
                launcher.close()

    def _woken(self) -> bytes:
        try:
            return os.read(self.woken, 512)
        except BlockingIOError:
            return b""

    def _kill(self, pid: int) -> None:
        """Its launcher has gone, or said what none says."""
        os.kill(pid, signal.SIGKILL)
        self.chooser.unregister(self.launchers[pid])
        os.waitpid(pid, 0)
        self.launchers.pop(pid).close()

    def _leave(self) -> None:
        for pid in list(self.launchers):
            self._kill(pid)
        os._exit(0)


def _exactly(launcher: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        more = launcher.recv(size - len(found))
        if not more:
            raise EOFError
        found += more
    return bytes(found)


def _tell(launcher: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # if it has gone, the loop hears of it
        launcher.sendall(number.to_bytes(4, "big", signed=True))


def _close(descriptors: Any) -> None:
    for one in descriptors:
        os.close(one)


def become(streams: array.array[int], request: tuple[list[str], list[str], str, str, dict[str, str], bool]) -> None:
    """Makes this child as a new process is, and runs its program to the end."""
    program, words, sys.executable, folder, environment, ignores_interrupts = request
    for number in HANDLED:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN if ignores_interrupts else signal.default_int_handler)
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
    _close(set(streams) - {0, 1, 2})
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    unbuffered = bool(environment.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    sys.stdout = sys.__stdout__ = _written(1, "strict", at_once=unbuffered)
    sys.stderr = sys.__stderr__ = _written(2, "backslashreplace", at_once=unbuffered)
    # What was loaded stays frozen, as `pursuit` itself freezes it: to go through it would be to copy it.
    gc.enable()
    try:
        _run(program, words)
    except SystemExit as leaving:
        if not isinstance(leaving.code, int | None):
            raise
        _end(leaving.code or 0)
    _end(0)


def _end(code: int) -> NoReturn:
    """Ends as the interpreter does, but leaves the modules to the system: to take them apart is to copy them."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.__stdout__, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError:
            code = 120  # as the interpreter says that its output is lost
    os._exit(code)


def _written(stream: int, errors: str, *, at_once: bool) -> io.TextIOWrapper:
    lines = stream == 2 or os.isatty(stream)
    file = io.BufferedWriter(io.FileIO(stream, "wb", closefd=False))
    return io.TextIOWrapper(file, encoding="utf-8", errors=errors, line_buffering=lines, write_through=at_once)


def _run(program: list[str], words: list[str]) -> None:
    sys.orig_argv = [sys.executable, *program, *words]
    if program[0] == "-m":
        sys.path[0] = str(Path.cwd())
        sys.argv = [program[1], *words]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(program[0]).parent)
        sys.argv = [program[0], *words]
        runpy.run_path(program[0], run_name="__main__")


def main() -> None:
    listening = socket.socket(fileno=int(sys.argv[1]))
    lifeline = int(sys.argv[2])
    gc.disable()
    load()
    gc.freeze()
    _, streams, request = Forks(listening, lifeline).serve()
    become(streams, request)


if __name__ == "__main__":
    main()
