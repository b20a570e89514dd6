"""Where peers run: this Python if it has their packages, else one of the same version in `.venv-bench`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

VENV = Path(__file__).resolve().parent.parent / ".venv-bench"


def interpreter(name: str, modules: Sequence[str], packages: Sequence[str]) -> str:
    """A Python that has these modules; `packages` are installed once, which a file with this name remembers."""
    if all(_is_here(module) for module in modules):
        return sys.executable
    python, ready = VENV / "bin" / "python", VENV / f".installed-{name}"
    if not ready.exists():
        print(f"installing {', '.join(packages)} into {VENV.name}", flush=True)
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*pip, *packages], check=True)
        ready.touch()
    return str(python)


def _is_here(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package that is not here
        return False
