"""What a script says about its mission: `mission.observe(name, value)` and `mission.event(name, **data)`.

Owns: the check of each statement, and their list in the order in which they were made. Judges none of them.
Invariant: the list is JSON and its size is bounded, whatever the script does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pursuit.sandbox.values import NotJsonError, as_json, canonical

MAX_NAME = 256
MAX_STATED = 1024 * 1024


class Claims:
    """The statements of one run."""

    def __init__(self) -> None:
        self.observed: list[tuple[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self._size = 0

    def state(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Take one statement down, or raise the `TypeError`, `ValueError` or `AttributeError` that is the script's."""
        match method:
            case "observe":
                self._observe(args, kwargs)
            case "event":
                self._event(args, kwargs)
            case _:
                raise AttributeError(f"mission has no method {method!r}; there is observe and event")

    def _observe(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        given = {**dict(zip(("name", "value"), args, strict=False)), **kwargs}
        if len(args) + len(kwargs) != 2 or given.keys() != {"name", "value"}:
            raise TypeError("write mission.observe(name, value)")
        name, value = _named(given["name"]), _numbers(_json("the value", given["value"]))
        self._count(name, value)
        self.observed.append((name, value))

    def _event(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if len(args) != 1:
            raise TypeError("write mission.event(name, key=value, …)")
        name, data = _named(args[0]), _json("the data", dict(kwargs))
        self._count(name, data)
        self.events.append({"name": name, "data": data})

    def _count(self, name: str, value: object) -> None:
        self._size += len(name) + len(canonical(value)) + 16
        if self._size > MAX_STATED:
            raise ValueError(f"observations and events of one run hold at most {MAX_STATED} characters")


def _named(name: object) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME:
        raise ValueError(f"the name must be a text of 1 to {MAX_NAME} characters")
    return _json("the name", name)


def _json(what: str, value: object) -> Any:
    try:
        return as_json(value)
    except NotJsonError as error:
        raise ValueError(f"{what} must be JSON: {error}") from None


def _numbers(value: Any) -> Any:
    """The value with every leaf a number; a truth value counts as 0 or 1."""
    match value:
        case int() | float():
            return value + 0
        case list():
            return [_numbers(item) for item in cast("list[Any]", value)]
        case dict():
            return {key: _numbers(item) for key, item in cast("dict[str, Any]", value).items()}
        case _:
            raise ValueError(f"the value must be a finite number, or lists and dicts of numbers, not {value!r:.80}")
