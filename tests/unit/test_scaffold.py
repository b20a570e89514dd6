"""The example that `pursuit init` writes: complete, consistent, and never over the user's own files."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from pursuit.demo.scaffold import write_example
from pursuit.errors import ValidationFailed

NAMES = ["pursuit.toml", "mission.toml", "strategy.py"]


def test_it_writes_all_files_into_a_new_folder(tmp_path: Path) -> None:
    target = tmp_path / "new" / "example"
    assert write_example(target) == [target / name for name in NAMES]
    assert sorted(path.name for path in target.iterdir()) == sorted(NAMES)


def test_the_files_fit_together(tmp_path: Path) -> None:
    write_example(tmp_path)
    operator = tomllib.loads((tmp_path / "pursuit.toml").read_text())
    mission = tomllib.loads((tmp_path / "mission.toml").read_text())
    beam = operator["servers"]["beam"]
    assert beam["command"] == "__python_executable__"
    assert beam["args"] == ["-m", "pursuit.demo.welded_beam"]
    assert beam["trust_annotations"] is True
    (rule,) = operator["policy"]["rules"]
    assert (rule["decision"], rule["server"], rule["tool"]) == ("allow", "beam", "certify")
    assert mission["proposer"] == {"kind": "script", "file": "strategy.py"}
    assert mission["tool_allowlist"] == ["beam.*"]
    assert f"TARGET = {mission['criteria'][0]['target']} " in (tmp_path / mission["proposer"]["file"]).read_text()
    assert len({criterion["criterion_id"] for criterion in mission["criteria"]}) == len(mission["criteria"])


def test_existing_files_are_all_named_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "mission.toml").write_text("mine")
    (tmp_path / "strategy.py").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ValidationFailed) as refused:
        write_example(tmp_path)
    assert [Path(fault.field).name for fault in refused.value.faults] == ["mission.toml", "strategy.py"]
    assert (tmp_path / "mission.toml").read_text() == "mine"
    assert not (tmp_path / "pursuit.toml").exists()


def test_force_overwrites(tmp_path: Path) -> None:
    (tmp_path / "mission.toml").write_text("mine")
    write_example(tmp_path, force=True)
    assert "directive" in (tmp_path / "mission.toml").read_text()


def test_force_does_not_write_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    target = tmp_path / "example"
    target.mkdir()
    (target / "mission.toml").symlink_to(precious)
    write_example(target, force=True)
    assert precious.read_text() == "mine"
    assert not (target / "mission.toml").is_symlink()


@pytest.mark.parametrize("inside", ["", "deeper"])
def test_a_target_that_is_a_file_is_refused_even_with_force(tmp_path: Path, inside: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValidationFailed, match="not written"):
        write_example(tmp_path / "file" / inside, force=True)


def test_a_folder_in_the_place_of_a_file_is_refused_even_with_force(tmp_path: Path) -> None:
    (tmp_path / "strategy.py").mkdir()
    with pytest.raises(ValidationFailed) as refused:
        write_example(tmp_path, force=True)
    assert len(refused.value.faults) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["strategy.py"]
