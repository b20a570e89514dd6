"""The typed parameters of a configured command.

Owns: one parameter as the operator wrote it, its JSON Schema, and the check of a value against it. Does not know: argv.
Invariant: a value that passes fits the schema that was declared, and can be a word of a command line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from pursuit.core.base_model import nearest
from pursuit.core.patterns import Unfinished, find
from pursuit.tools.fields import kind

Kind = Literal["string", "integer", "number", "boolean", "array"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LARGEST = 2**53
LONGEST = 4_096
MOST_ITEMS = 1_000

_SPELLED = {"min_length": "minLength", "max_length": "maxLength", "min_items": "minItems", "max_items": "maxItems"}
_BOUNDS: dict[Kind, Mapping[str, int]] = {
    "string": {"min_length": 1, "max_length": LONGEST},
    "array": {"max_items": MOST_ITEMS},
}
_HALF = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter; `rules` are its bounds in the configuration's spelling, `flag` the word of a true boolean."""

    kind: Kind = "string"
    description: str | None = None
    title: str | None = None
    required: bool = True
    default: Any = None
    flag: str | None = None
    allow_options: bool = False
    rules: Mapping[str, Any] = field(default_factory=dict[str, Any])
    items: Parameter | None = None

    def schema(self) -> dict[str, Any]:
        """The parameter as JSON Schema."""
        body: dict[str, Any] = {"type": self.kind}
        for key, value in (("title", self.title), ("description", self.description), ("default", self.default)):
            if value is not None:
                body[key] = value
        bounds = dict(_BOUNDS.get(self.kind, {})) if "enum" not in self.rules else {}
        body.update({_SPELLED.get(key, key): value for key, value in {**bounds, **self.rules}.items()})
        if self.items is not None:
            body["items"] = self.items.schema()
        return body

    def wrong(self, value: Any) -> list[tuple[str, str]]:
        """What is wrong with a value: where inside it, and why."""
        match self.kind:
            case "boolean":
                return [] if isinstance(value, bool) else [("", f"must be true or false, not {kind(value)}")]
            case "array":
                return self._wrong_list(value)
            case "string":
                return [("", reason) for reason in self._wrong_text(value)]
            case _:
                return [("", reason) for reason in self._wrong_number(value)]

    def _wrong_list(self, value: Any) -> list[tuple[str, str]]:
        if not isinstance(value, list | tuple):
            return [("", f"must be a list, not {kind(value)}")]
        given = cast("Sequence[Any]", value)
        least, most = self.rules.get("min_items", 0), self.rules.get("max_items", MOST_ITEMS)
        if not least <= len(given) <= most:
            return [("", f"must have {least} to {most} items, not {len(given)}")]
        inner = self.items or Parameter()
        return [(f"[{place}]{at}", why) for place, item in enumerate(given) for at, why in inner.wrong(item)]

    def _wrong_text(self, value: Any) -> list[str]:
        if not isinstance(value, str):
            return [f"must be a text, not {kind(value)}"]
        if "enum" in self.rules:
            return self._wrong_choice(value)
        least, most = self.rules.get("min_length", 1), self.rules.get("max_length", LONGEST)
        if not least <= len(value) <= most:
            return [f"must have {least} to {most} characters, not {len(value)}"]
        faults = ["must not hold a null byte"] if "\x00" in value else []
        if not value.isascii() and _HALF.search(value):
            faults.append("holds half a character, which cannot be encoded")
        pattern = self.rules.get("pattern")
        try:
            if pattern is not None and find(pattern, value) is None:
                faults.append(f"must match {pattern}")
        except Unfinished as error:
            faults.append(f"cannot be compared: {error}")
        return faults

    def _wrong_number(self, value: Any) -> list[str]:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return [f"must be a number, not {kind(value)}"]
        if not abs(value) <= LARGEST:  # also what is no number at all
            return ["must be a number of at most 16 digits"]
        if self.kind == "integer" and value != int(value):
            return [f"must be a whole number, not {value}"]
        if "enum" in self.rules:
            return self._wrong_choice(value)
        least, most = self.rules.get("minimum", -math.inf), self.rules.get("maximum", math.inf)
        if least <= value <= most:
            return []
        bounds = (("at least", least), ("at most", most))
        return [f"must be {' and '.join(f'{word} {limit:g}' for word, limit in bounds if math.isfinite(limit))}"]

    def _wrong_choice(self, value: Any) -> list[str]:
        choices: Sequence[Any] = self.rules["enum"]
        if value in choices:
            return []
        hint = nearest(value, [str(one) for one in choices]) if isinstance(value, str) else ""
        return [f"must be one of {', '.join(repr(one) for one in choices[:20])}{hint}"]


def word_of(value: str | float) -> str:
    """A text or number as it stands on a command line."""
    if isinstance(value, str):
        return value
    return str(int(value)) if value == int(value) else repr(value)
