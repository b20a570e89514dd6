"""Where Pursuit keeps its state when nobody says.

Owns: the rule, and nothing that is slow to import. Makes no folder and opens no file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

STATE_VARIABLE = "PURSUIT_STATE"


def locate_state(state: Path | None, config: Path | None) -> Path:
    """The ledger's file: as given, else `PURSUIT_STATE`, else beside the configuration, else the user's own."""
    if state is not None:
        return state
    if variable := os.environ.get(STATE_VARIABLE):
        return Path(variable)
    if config is not None:
        return config.parent / ".pursuit" / "ledger.db"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "pursuit" / "ledger.db"
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "pursuit" / "ledger.db"
