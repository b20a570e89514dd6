"""Plain functions as tools."""

from __future__ import annotations

import dataclasses
import datetime
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from pursuit.core.catalogue import Catalogue
from pursuit.core.tools import CallFailed, Tool, ToolResult, Traits
from pursuit.errors import ValidationFailed
from pursuit.upstream.functions import FunctionUpstream, tool


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


def move(point: Point, by: Annotated[float, Field(gt=0)], mode: Literal["fast", "slow"] = "fast") -> dict[str, Any]:
    """Moves a point.

    Along x.
    """
    return {"point": dataclasses.replace(point, x=point.x + by), "mode": mode}


async def listed(functions: Mapping[str, Callable[..., Any]] | Sequence[Callable[..., Any]]) -> list[Tool]:
    return list(await FunctionUpstream("f", functions).tools())


async def call(function: Callable[..., Any], /, **arguments: Any) -> ToolResult:
    return await FunctionUpstream("f", {"t": function}).call("t", arguments, call_id="c")


async def test_the_schema_comes_from_the_signature() -> None:
    (one,) = await listed([move])
    assert one.qualified == "f.move"
    assert one.description == "Moves a point.\n\nAlong x."
    assert one.input_schema["required"] == ["point", "by"]
    properties = one.input_schema["properties"]
    assert properties["by"]["exclusiveMinimum"] == 0
    assert properties["mode"] == {"default": "fast", "enum": ["fast", "slow"], "title": "Mode", "type": "string"}
    assert one.definition["inputSchema"] == one.input_schema
    catalogue = Catalogue(tools={one.qualified: one})
    assert catalogue.check("f.move", {"point": {"x": 1}, "by": 2}) == []
    assert len(catalogue.check("f.move", {"point": {}, "by": 0, "more": 1})) == 3


async def test_arguments_become_what_the_signature_says() -> None:
    assert (await call(move, point={"x": 1}, by=2)).structured == {"point": {"x": 3.0, "y": 0.0}, "mode": "fast"}
    wrong = await call(move, point={}, by=-1, mode="odd")
    assert wrong.is_error
    text = wrong.content[0]["text"]
    assert all(word in text for word in ("point.x", "by", "mode"))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", ToolResult(content=({"type": "text", "text": "text"},))),
        ({"a": None}, ToolResult(structured={"a": None})),
        (3, ToolResult(structured={"result": 3})),
        ([1, (2,)], ToolResult(structured={"result": [1, [2]]})),
        (None, ToolResult()),
        (Point(1), ToolResult(structured={"x": 1, "y": 0.0})),
        (datetime.date(2026, 1, 2), ToolResult(structured={"result": "2026-01-02"})),
        (ToolResult(is_error=True), ToolResult(is_error=True)),
    ],
)
async def test_what_comes_back(value: Any, expected: ToolResult) -> None:
    async def later() -> Any:
        return value

    assert await call(lambda: value) == expected
    assert await call(later) == expected
    assert await call(lambda: later()) == expected


async def test_what_is_raised_is_an_error_result_with_type_and_message() -> None:
    def broken() -> None:
        raise ZeroDivisionError("no way")

    assert await call(broken) == ToolResult(
        content=({"type": "text", "text": "ZeroDivisionError: no way"},), is_error=True
    )
    assert (await call(lambda: object())).is_error

    def gone() -> None:
        raise CallFailed("the line is dead")

    with pytest.raises(CallFailed, match="the line is dead"):
        await call(gone)
    with pytest.raises(CallFailed, match="not have a tool 'absent'"):
        await FunctionUpstream("f", []).call("absent", {}, call_id="c")


async def test_odd_names_and_defaults() -> None:
    def odd(_private: int, schema: str, model_x: int = 1, where: Any = socket, **more: Any) -> dict[str, Any]:
        return {"_private": _private, "schema": schema, "default": where is socket, "more": more}

    result = await call(odd, _private=1, schema="s", extra=None)
    assert result.structured == {"_private": 1, "schema": "s", "default": True, "more": {"extra": None}}
    (one,) = await listed([odd])
    assert set(one.input_schema["properties"]) == {"_private", "schema", "model_x", "where"}
    assert "default" not in one.input_schema["properties"]["where"]


async def test_the_decorator_says_what_a_function_may_do() -> None:
    @tool(name="peek", read_only=True, timeout=3)
    def look() -> None: ...

    @tool(idempotent=True)
    def put() -> None: ...

    first, second, third = await listed([look, put, move])
    assert first.name == "peek"
    assert first.traits == Traits(read_only=True, idempotent=True, parallel_safe=True, destructive=False, timeout=3)
    assert second.traits == Traits(idempotent=True)
    assert third.traits == Traits()


async def test_only_what_waits_is_to_be_awaited() -> None:
    async def later() -> str:
        return "later"

    here = threading.get_ident()
    functions = {"plain": lambda: here, "later": later, "hidden": lambda: later()}
    upstream = FunctionUpstream("f", functions)
    assert upstream.start("plain", {}) == ToolResult(structured={"result": here})
    assert isinstance(upstream.start("plain", {"more": 1}), ToolResult)
    for name in ("later", "hidden"):
        waits = upstream.start(name, {})
        assert not isinstance(waits, ToolResult)
        assert (await waits).content[0]["text"] == "later"
    threaded = FunctionUpstream("f", {"t": lambda: threading.get_ident()}, threaded=True).start("t", {})
    assert not isinstance(threaded, ToolResult)
    assert (await threaded).structured["result"] != here


async def test_methods_and_callable_objects() -> None:
    class Box:
        def get(self, key: str) -> str:
            return key

        def __call__(self, number: int) -> int:
            return number

    assert (await call(Box().get, key="k")).content[0]["text"] == "k"
    assert (await call(Box(), number=4)).structured == {"result": 4}
    assert (await call(partial(Box().get, key="k"))).content[0]["text"] == "k"


def test_functions_that_cannot_be_tools_are_refused() -> None:
    def positional(a: int, /) -> None: ...

    def unknowable(a: socket.socket) -> None: ...

    for functions, words in (
        ([positional], "cannot be given by name"),
        ([unknowable], "cannot be expressed"),
        ([move, move], "two functions have this name"),
    ):
        with pytest.raises(ValidationFailed, match=words):
            FunctionUpstream("f", functions)
