"""Judges a submission: every letter must be there, every word must be on the list."""

import re
import string
from pathlib import Path


def score(submission: dict[str, str]) -> dict[str, object]:
    """How many letters the line has, and whether it is a pangram of known words."""
    known = set(Path(__file__).with_name("words.txt").read_text(encoding="utf-8").split())
    line = submission["answer"].lower()
    words = re.findall(r"[a-z]+", line)
    clean = not re.search(r"[^a-z ,.;:!?'\n-]", line)
    fits = clean and set(words) <= known and set("".join(words)) == set(string.ascii_lowercase)
    return {"metrics": {"letters": len("".join(words))}, "feasible": fits}
