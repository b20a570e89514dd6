"""Judges a submission: it must contain every letter, and only words of the list."""

import re
import string
from pathlib import Path


def score(submission: dict[str, str]) -> dict[str, object]:
    """The number of letters in the line, and whether it is a pangram of known words."""
    known = set(Path(__file__).with_name("words.txt").read_text(encoding="utf-8").split())
    line = submission["answer"]
    # Before the conversion to lower case, which turns some characters of other alphabets into plain letters.
    clean = not re.search(r"[^A-Za-z ,.;:!?'-]", line)
    words = re.findall(r"[a-z]+", line.lower())
    fits = clean and set(words) <= known and set("".join(words)) == set(string.ascii_lowercase)
    return {"metrics": {"letters": len("".join(words))}, "feasible": fits}
