"""Judges a submission: every letter must be there, every word must be on the list."""

import re
import string
from pathlib import Path


def score(submission: dict[str, str]) -> dict[str, object]:
    """How many letters the line has, and whether it is a pangram of known words."""
    known = set(Path(__file__).with_name("words.txt").read_text(encoding="utf-8").split())
    line = submission["answer"]
    # Before small letters are made of it: some characters of other alphabets become plain ones then.
    clean = not re.search(r"[^A-Za-z ,.;:!?'-]", line)
    words = re.findall(r"[a-z]+", line.lower())
    fits = clean and set(words) <= known and set("".join(words)) == set(string.ascii_lowercase)
    return {"metrics": {"letters": len("".join(words))}, "feasible": fits}
