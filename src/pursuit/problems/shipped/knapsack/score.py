"""Judges a submission: standard input is its JSON, standard output the score."""

import csv
import json
import sys
from pathlib import Path

CAPACITY = 750


def main() -> None:
    """Weighs the submitted items."""
    with Path(__file__).with_name("items.csv").open(encoding="utf-8", newline="") as file:
        rows = {int(row["item"]): row for row in csv.DictReader(file)}
    taken = json.load(sys.stdin)["submission"]["items"]
    weight = sum(int(rows[item]["weight"]) for item in taken)
    worth = sum(int(rows[item]["worth"]) for item in taken)
    json.dump({"metrics": {"worth": worth, "weight": weight}, "feasible": weight <= CAPACITY}, sys.stdout)


if __name__ == "__main__":
    main()
