"""Where the words of a manifest tell agents what only the judge may know.

Owns: which fields agents read, and how each is looked through: prose, names, addresses, the schema of a submission.
Does not know: what is secret (`secrecy`, `answers`, `judge_files`). Reads files and runs nothing. Invariant: a fault
names the field, quotes it, and says what to do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pursuit.problems.answers import answered, answers_of, told_answer
from pursuit.problems.copies import Original, original_of, piece_of
from pursuit.problems.files import file_of
from pursuit.problems.judge_files import hidden_files, is_python, judging_files
from pursuit.problems.manifest import Manifest
from pursuit.problems.secrecy import in_words, secrets_of, tellings
from pursuit.problems.telling_words import says_best
from pursuit.tools.fields import Fields, as_table

_PAGES = re.compile(r"(?<![\d.])\d{1,6}\s?[-\u2013\u2014]{1,2}\s?\d{1,6}(?!\d|\.\d)|\bpp?\.\s?\d{1,6}(?!\d|\.\d)")
_STATED = re.compile(r"(?:\b(?:is|are|was)\s|[^\d)\s]\s?[:=])\s{0,2}\Z")
_SIZES = ("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties")
_CHOICES = ("enum", "const")
_SHORTEST_PROGRAM = 48


@dataclass(frozen=True, slots=True)
class _Shown:
    """One text that agents read: its field, and whether it is an address, where numbers stand for anything."""

    field: str
    text: str
    address: bool = False
    choice: bool = False


def check_words(root: Fields, manifest: Manifest) -> None:
    """Nothing that an agent reads in the brief tells a number of the scorer or an answer, or is a judging program."""
    secrets, answers, programs = secrets_of(manifest), answers_of(manifest), _programs(manifest)
    told: dict[tuple[str, str], None] = {}
    for shown in _shown(manifest):
        for one in tellings(shown.text, secrets, data=shown.address):
            told.setdefault((shown.field, str(one)))
        if not shown.choice:
            for answer in answers:
                words = answered(shown.text, answer)
                if words is not None:
                    told.setdefault((shown.field, told_answer(answer, words)))
        for what in _pasted(shown.text, programs):
            told.setdefault((shown.field, f"holds {what}: scoring data, which no agent may see; leave it out"))
    for field, reason in told:
        root.fault(field, reason)


def _programs(manifest: Manifest) -> list[Original]:
    """The programs that judge, and the baseline's; of the data that they read, a brief may well tell some."""
    own = judging_files(manifest)
    hidden = hidden_files(manifest.path, manifest.scorer, manifest.baseline, manifest.server)
    public = {file_of(manifest.folder, name) for name in manifest.visibility.public}
    return [
        original_of(path, f"the text of {path.name!r}, {what}")
        for path, what in hidden.items()
        if path != manifest.path and path not in public and (path in own or is_python(path))
    ]


def _pasted(text: str, programs: list[Original]) -> Iterator[str]:
    if not programs or len(text) < _SHORTEST_PROGRAM:
        return
    piece = piece_of(text)
    for one in programs:
        program = one.anew()
        program.look(piece)
        if program.pasted():
            yield program.what


def _shown(manifest: Manifest) -> Iterator[_Shown]:
    yield _Shown("problem_id", in_words(manifest.problem_id))
    for field in ("title", "summary", "statement"):
        yield _Shown(field, getattr(manifest, field))
    for place, one in enumerate(manifest.citations):
        yield _Shown(f"citations[{place}].summary", _without_pages(one.summary or ""))
        yield _Shown(f"citations[{place}].raw", _without_pages(one.raw or ""))
        yield _Shown(f"citations[{place}].url", in_words(one.url or ""), address=True)
    for place, name in enumerate(manifest.budget.evaluation_tools):
        yield _Shown(f"budget.evaluation_tools[{place}]", in_words(name))
    if manifest.submission is not None:
        yield from _of_schema(manifest.submission, "submission")


def _without_pages(text: str) -> str:
    """A source without its pages; what is stated to be the best ("the best is 1458-1460") are none."""
    return _PAGES.sub(
        lambda found: (
            found[0]
            if _STATED.search(text, max(0, found.start() - 12), found.start())
            and says_best(text, found.start(), found.end())
            else ""
        ),
        text,
    )


def _of_schema(value: object, at: str, *, choice: bool = False) -> Iterator[_Shown]:
    """The names, texts and numbers of a schema, each with its place; and what stands together as a value."""
    if isinstance(value, Mapping):
        table = cast("Mapping[str, Any]", value)
        yield from _values(table, at)
        for key, one in table.items():
            yield _Shown(f"{at}.{key}", in_words(str(key)))
            if not (key in _SIZES and isinstance(one, int | float)):
                yield from _of_schema(one, f"{at}.{key}", choice=choice or key in _CHOICES)
    elif isinstance(value, list | tuple):
        for place, one in enumerate(cast("list[Any]", value)):
            yield from _of_schema(one, f"{at}[{place}]", choice=choice)
    elif isinstance(value, str):
        yield _Shown(at, value, choice=choice)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield _Shown(at, repr(value), choice=choice)


def _values(schema: Mapping[str, Any], at: str) -> Iterator[_Shown]:
    """Whole values that a schema shows: a default, each example, and the defaults of all properties in a row."""
    if isinstance(schema.get("default"), list | tuple | Mapping):
        yield _Shown(f"{at}.default", _as_json(schema["default"]))
    examples = schema.get("examples")
    for place, one in enumerate(cast("list[Any]", examples) if isinstance(examples, list | tuple) else []):
        yield _Shown(f"{at}.examples[{place}]", _as_json(one))
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        parts = [
            table for one in cast("Mapping[str, Any]", properties).values() if (table := as_table(one)) is not None
        ]
        given = [_as_json(one["default"]) for one in parts if "default" in one]
        if len(given) > 1:
            yield _Shown(f"{at}.properties", ", ".join(given))


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
