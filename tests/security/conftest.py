"""The attacks run as a person who trusts nothing: without the `PURSUIT_TRUST` of the other tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from workspace import Victim


@pytest.fixture
def victim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Victim:
    """A person with a home and a cloned folder."""
    return Victim(tmp_path, monkeypatch)
