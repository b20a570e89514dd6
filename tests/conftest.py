"""What every test may lean on."""

from __future__ import annotations

import gc
import inspect
import os
import signal
import sys
import tempfile
from functools import partial
from math import inf
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from mcp.client.stdio import DEFAULT_INHERITED_ENV_VARS

for folder in (
    ".",
    "unit",
    "fault",
    "contract",
    "servers",
    "surface",
    "clients",
    "support",
    "security",
    "chaos",
    "page",
    "../demo",
):
    sys.path.insert(0, str(Path(__file__).parent / folder))

# Tests that were started with `nohup` or in the background ignore these, and so would all that they start.
# A signal that is handled, be it by nothing, is back at its default in what is started.
for number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# Without bytecode files each worker rewrites all tests anew, and each process that a test starts compiles `pursuit`.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The configurations of tests are their own, and so are those that a client of the SDK starts with a small environment.
# `tests/security` takes this away.
os.environ["PURSUIT_TRUST"] = "1"
DEFAULT_INHERITED_ENV_VARS.append("PURSUIT_TRUST")

# Loopback needs no TLS, and reading a machine's certificates costs each HTTP client a twentieth of a second.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent / "data")

# Node compiles its programs once, and not each time that a test starts them.
os.environ.setdefault("NODE_COMPILE_CACHE", str(Path(sys.prefix) / ".node-cache"))

# Nothing here needs to outlive the machine, and a disk that is waited for costs a fifth of the run: the files of tests
# lie in memory where the system has room for them.
MEMORY, ROOM = Path("/dev/shm"), 4 << 30
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and "TMPDIR" not in os.environ:
    system = os.statvfs(MEMORY)
    if system.f_bavail * system.f_frsize > ROOM and not system.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

# The many modules and tests of a worker live until its end: looking them through for garbage is a tenth of its time,
# and two fifths of that of their collection.
gc.disable()
gc.set_threshold(100_000, 50, 100)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


# How long an example takes says more about the machine than about us; what must be quick has a test of its own.
examples = 500 if os.environ.get("PURSUIT_SOAK") else 50
settings.register_profile(
    "any machine", max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Plays the tests that are coroutines; only the long ones of `make soak` may take as long as they want."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    from engine_stage import LONGEST, play  # it lies in a folder that was just made known

    long = pyfuncitem.get_closest_marker("slow") or pyfuncitem.get_closest_marker("soak")
    names = inspect.signature(pyfuncitem.obj).parameters
    play(partial(pyfuncitem.obj, **{name: pyfuncitem.funcargs[name] for name in names}), inf if long else LONGEST)
    return True


@pytest.fixture
def quick_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of `pursuit` that it starts by itself start quickly: see `quick_start`."""
    from quick_start import python  # it lies in a folder that was just made known

    monkeypatch.setattr(sys, "executable", python())


from postgres_server import new_database, postgres_servers  # noqa: E402, F401 - it lies in a folder that was just made known
from temporal_server import temporal  # noqa: E402, F401 - as above
from verified_ledgers import _shared_ledgers_verify, tmp_path  # noqa: E402, F401


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> object:
    """Makes an endpoint of a language model's provider, which gives these replies."""
    from model_stage import scripted as endpoint

    return partial(endpoint, monkeypatch)
