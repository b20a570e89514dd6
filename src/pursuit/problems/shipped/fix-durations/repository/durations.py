"""Durations as people write them, such as `1h 30m`, in seconds."""

import re

UNITS = {"s": 1, "m": 60, "h": 3600}


def parse(text):
    """The seconds in a text such as `90s`, `1h30m` or `2d 4h`.

    Units are d, h, m and s, each at most once and the largest first; a number may have a fraction (`1.5h`), and blanks
    around and between the parts do not matter. Any other text raises `ValueError`.
    """
    return sum(int(number) * UNITS[unit] for number, unit in re.findall(r"(\d+)([a-z])", text))
