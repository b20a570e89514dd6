"""What every test may lean on."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in (".", "unit", "fault", "contract", "servers", "surface", "clients"):
    sys.path.insert(0, str(Path(__file__).parent / folder))
