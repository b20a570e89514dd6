"""The faults of wrong files, word by word: `tests/data/faults` has each input with what is told of it.

A file there holds TOML (or JSON), with the faults of each input as comments below it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pursuit.config.configuration import load_configuration
from pursuit.errors import ValidationFailed

TABLES = Path(__file__).parents[1] / "data" / "faults"
NAMES = {"mcp": "mcp.json"}


def cases() -> list[object]:
    return [
        pytest.param(NAMES.get(path.stem, "pursuit.toml"), case, id=f"{path.stem}-{number}")
        for path in sorted(TABLES.iterdir())
        for number, case in enumerate(path.read_text(encoding="utf-8").split("\n# ---\n"), 1)
    ]


@pytest.mark.parametrize(("name", "case"), cases())
def test_each_fault_is_told(tmp_path: Path, name: str, case: str) -> None:
    lines = case.splitlines()
    (tmp_path / name).write_text("\n".join(line for line in lines if not line.startswith("# ")), encoding="utf-8")
    with pytest.raises(ValidationFailed) as refused:
        load_configuration(tmp_path / name)
    told = sorted(f"# {fault.field}: {fault.reason}".splitlines()[0] for fault in refused.value.faults)
    assert told == sorted(line for line in lines if line.startswith("# "))
