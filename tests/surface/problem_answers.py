"""What the literature knows of the shipped problems: the best designs, their values, and other answers."""

from __future__ import annotations

import math
from typing import Any

PUBLISHED: dict[str, tuple[dict[str, Any], float]] = {
    "welded-beam": ({"h": 0.2057296398, "l": 3.4704886656, "t": 9.0366239104, "b": 0.2057296398}, 1.724852308597),
    "three-bar-truss": (
        {"a1": (3 + math.sqrt(3)) / 6, "a2": 1 / math.sqrt(6)},
        100 * (math.sqrt(2) + math.sqrt(6) / 2),
    ),
    "speed-reducer": (
        {"b": 3.5, "m": 0.7, "z": 17, "l1": 7.3, "l2": 7.7153199115, "d1": 3.3502146661, "d2": 5.2866544650},
        2994.471066146,
    ),
    "pressure-vessel": (
        {"shell": 0.8125, "head": 0.4375, "radius": 42.0984455958549, "length": 176.6365958424394},
        6059.714335048436,
    ),
    "gear-train": ({"driver1": 16, "driver2": 19, "driven1": 43, "driven2": 49}, 2.7008571488865134e-12),
    "spring": ({"wire": 0.0516891, "coil": 0.3567187, "turns": 11.2889}, 0.012665233),
}
"""The best designs, with what they cost."""

ANSWERS = {
    "knapsack": "1, 3, 5, 7, 8, 9, 14, 15",
    "mastermind": "DBFA",
    "pangram": "Cwm fjord bank glyphs vext quiz",
}
"""The best answers that are no designs."""
