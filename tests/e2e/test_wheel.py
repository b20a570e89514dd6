"""The built wheel in an empty environment: no repository, no make, no development tool."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from pursuit import __version__

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment that has the wheel, its dependencies and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a build leaves nothing in the repository
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, source], check=True, timeout=300)
    (wheel,) = folder.glob("pursuit-*.whl")
    shipped = {str(path.relative_to(ROOT / "src")) for path in _sources()}
    shipped |= {f"pursuit/config/schemas/{name}.schema.json" for name in ("mission", "config")}
    assert shipped <= set(zipfile.ZipFile(wheel).namelist())
    shutil.rmtree(source)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True, timeout=120)
    words = ["install", "--constraint", ROOT / "constraints.txt", f"{wheel}[search]"]
    python = folder / "venv" / "bin" / "python"
    subprocess.run([python, "-m", *pip[2:], *words], check=True, timeout=600)
    return python.parent


@pytest.mark.slow
def test_wheel_and_sdist_have_these_files_and_no_others(tmp_path: Path) -> None:
    source, tools = tmp_path / "source", tmp_path / "tools"
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in tracked.stdout.decode().splitlines():
        if name.split("/")[0] not in ("tests", "benchmarks", "docs") and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--target", tools]
    subprocess.run([*pip, "hatchling>=1.27"], check=True, timeout=300)
    command = [sys.executable, "-m", "hatchling", "build", "-d", tmp_path]
    environment = {**os.environ, "PYTHONPATH": str(tools)}
    subprocess.run(command, cwd=source, env=environment, capture_output=True, check=True, timeout=300)
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    stem = f"pursuit-{__version__}"
    code = {str(path.relative_to(ROOT / "src")) for path in _sources()}
    schemas = {f"pursuit/config/schemas/{name}.schema.json" for name in ("mission", "config")}
    about = {f"{stem}.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
    archive = zipfile.ZipFile(wheel)
    assert set(archive.namelist()) == code | schemas | about | {f"{stem}.dist-info/licenses/LICENSE"}
    beside = {"LICENSE", "PKG-INFO", "README.md", "hatch_build.py", "pyproject.toml", ".gitignore"}
    beside |= {"CHANGELOG.md", "SECURITY.md", "constraints.txt"}
    with tarfile.open(sdist) as packed:
        assert set(packed.getnames()) == {f"{stem}/{name}" for name in beside | {f"src/{one}" for one in code}}
    metadata = archive.read(f"{stem}.dist-info/METADATA").decode()
    assert f"\nVersion: {__version__}\n" in metadata
    assert "\nDescription-Content-Type: text/markdown\n" in metadata
    assert "\n# Pursuit\n" in metadata


def _sources() -> list[Path]:
    return [path for path in (ROOT / "src").rglob("*") if path.is_file() and path.suffix != ".pyc"]


def _run(programs: Path, folder: Path, *words: str, program: str = "pursuit") -> str:
    """Runs a program with nothing but the environment's programs on its path."""
    environment = {"PATH": str(programs), "HOME": str(folder), "LANG": os.environ.get("LANG", "C.UTF-8")}
    command = [str(programs / program), *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.soak
@pytest.mark.parametrize("template", ["beam", "tune", "fix-tests", "watch-and-repair"])
def test_a_template_runs_from_the_wheel(template: str, installed: Path, tmp_path: Path) -> None:
    _run(installed, tmp_path, "init", "--template", template)
    ended = json.loads(_run(installed, tmp_path, "run", "mission.toml", "--mode", "auto", "--json"))
    assert ended["status"] == "completed"


@pytest.mark.soak
def test_the_first_screen_of_the_readme_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    assert len(_run(installed, tmp_path).splitlines()) == 5
    assert json.loads(_run(installed, tmp_path, "demo", "--json"))["status"] == "completed"
    _run(installed, tmp_path, "init")
    ended = json.loads(_run(installed, tmp_path, "run", "mission.toml", "--json"))
    assert ended["status"] == "completed"
    assert json.loads(_run(installed, tmp_path, "--version", "--json"))["version"] == __version__


@pytest.mark.soak
def test_a_client_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    _run(installed, tmp_path, "init", "--template", "client")
    assert "completed" in _run(installed, tmp_path, "client.py", program="python")


@pytest.mark.soak
def test_what_an_extra_brings_is_named_if_it_is_missing(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "pursuit.toml").write_text('[schedule]\ncron = "0 2 * * *"\nmission = "m.toml"\n', encoding="utf-8")
    environment = {"PATH": str(installed), "HOME": str(tmp_path)}
    command = [str(installed / "pursuit"), "schedule", "list"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "pip install 'pursuit[schedule]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(_run(installed, tmp_path, "schema", "config"))["title"].startswith("The configuration")
