"""Lines on standard input that are no messages are refused, and the next good request is answered."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from cli_stage import Place
from quick_start import pursuit

from pursuit.server.stdio import MAX_LINE

LONGEST = 60.0
MAX_ANSWER = 4 * 1024 * 1024
PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
}


def message(**given: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **given}).encode()


def call(name: object, arguments: object) -> bytes:
    return message(id=7, method="tools/call", params={"name": name, "arguments": arguments})


def written(value: bytes) -> bytes:
    """A call with this in the place of the directive, as only raw bytes can have it."""
    return call("mission_start", {"directive": "HERE"}).replace(b'"HERE"', value)


# What is sent, and the id and the code of the answer; None for what is not answered.
MALFORMED: dict[str, tuple[bytes, tuple[object, int] | None]] = {
    "garbage": (b"garbage", (None, PARSE_ERROR)),
    "invalid UTF-8": (b'\xff\xfe{"jsonrpc"', (None, PARSE_ERROR)),
    "invalid UTF-8 in text": (written(b'"\xff"'), (None, PARSE_ERROR)),
    "a null byte": (b"\x00", (None, PARSE_ERROR)),
    "half a message": (message(id=5, method="ping")[:-3], (None, PARSE_ERROR)),
    "two messages": (message(id=5, method="ping") * 2, (None, PARSE_ERROR)),
    "version 1.0": (b'{"jsonrpc": "1.0", "id": 5, "method": "ping"}', (5, INVALID_REQUEST)),
    "no version": (b'{"id": "five", "method": "ping"}', ("five", INVALID_REQUEST)),
    "no method": (message(id=5), (5, INVALID_REQUEST)),
    "a method that is a number": (message(id=5, method=6), (5, INVALID_REQUEST)),
    "params in a list": (message(id=5, method="tools/call", params=[1]), (5, INVALID_REQUEST)),
    "a batch": (b"[" + message(id=5, method="ping") + b"]", (None, INVALID_REQUEST)),
    "an empty batch": (b"[]", (None, INVALID_REQUEST)),
    "a number": (b"5", (None, INVALID_REQUEST)),
    "null": (b"null", (None, INVALID_REQUEST)),
    "half of a surrogate pair": (written(b'"\\ud800"'), (7, PARSE_ERROR)),
    "three hundred levels": (written(b"[" * 300 + b"]" * 300), (7, PARSE_ERROR)),
    "a hundred thousand levels": (b"[" * 100_000, (None, PARSE_ERROR)),
    "a number of 5,000 digits": (written(b"9" * 5_000), (None, PARSE_ERROR)),
    "a line beyond the limit": (b"x" * (MAX_LINE + 100), (None, PARSE_ERROR)),
    "a good line beyond the limit": (
        b" " * (MAX_LINE + 100) + message(id=5, method="ping"),
        (None, PARSE_ERROR),
    ),
    "an unknown method": (message(id=5, method="nope"), (5, NO_METHOD)),
    "an unknown notification": (message(method="nope"), None),
    "an answer to nothing": (message(id=99, result={}), None),
    "a wrong answer": (b'{"jsonrpc": "1.0", "id": 99, "result": {}}', None),
    # The protocol itself demands these; every other wrong argument is an answer of the tool.
    "an unknown tool": (call("nope", {}), (7, INVALID_PARAMS)),
    "a tool that is a number": (call(5, {}), (7, INVALID_PARAMS)),
    "arguments in a list": (call("mission_list", [1]), (7, INVALID_PARAMS)),
    "arguments that are text": (call("mission_list", "x"), (7, INVALID_PARAMS)),
}

# Wrong numbers and texts that only the wire can have, and a word of the tool's answer.
WRONG: list[tuple[bytes, str]] = [
    (written(b"1e400"), "directive: must be a string, not"),
    (written(b"NaN"), "directive: must be a string, not"),
    (written(b'"x", "budget": {"max_iterations": 1e400}'), "budget.max_iterations: must be a finite number"),
    (written(b'"x", "budget": {"max_cost_usd": NaN}'), "budget.max_cost_usd: must be a finite number"),
    (written(b'"x", "stagnation_threshold": -Infinity'), "stagnation_threshold: must be a whole number"),
    (written(b"[" * 150 + b"]" * 150), "directive: must be a string, not"),
    (written(b'"' + b"x" * 1_000_000 + b'"'), "directive: string should have at most 8192 characters"),
]


class Wire:
    """The two pipes of a server."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin = process.stdin
        self._stdout = BufferedByteReceiveStream(process.stdout)
        self._pings = 0

    async def send(self, line: bytes) -> None:
        await self._stdin.send(line + b"\n")

    async def receive(self) -> dict[str, Any]:
        return json.loads(await self._stdout.receive_until(b"\n", MAX_ANSWER))

    async def said(self) -> list[dict[str, Any]]:
        """All that comes before the answer to a good request."""
        self._pings += 1
        await self.send(message(id=f"ping {self._pings}", method="ping"))
        answers: list[dict[str, Any]] = []
        while (answer := await self.receive()).get("id") != f"ping {self._pings}":
            answers.append(answer)
        assert answer["result"] == {}
        return answers


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Wire]:
    place = Place(folder).configured()
    words = [*pursuit(), "serve"]
    async with await anyio.open_process(words, stdin=PIPE, stderr=None, cwd=folder, env=place.environment) as process:
        wire = Wire(process)
        await wire.send(json.dumps(INITIALIZE).encode())
        assert "result" in await wire.receive()
        await wire.send(message(method="notifications/initialized"))
        await wire.send(call("mission_list", {}))  # opens the runtime, while a later request can be answered first
        assert "result" in await wire.receive()
        yield wire
        await process.stdin.aclose()
        assert await process.wait() == 0


@pytest.mark.guarantee("wrong-input-stores-nothing")
def test_malformed_lines_are_refused_and_the_server_lives(tmp_path: Path) -> None:
    async def scene() -> None:
        with anyio.fail_after(LONGEST):
            async with serving(tmp_path) as wire:
                for name, (line, expected) in MALFORMED.items():
                    await wire.send(line)
                    answers = [(answer["id"], answer["error"]["code"]) for answer in await wire.said()]
                    assert answers == ([] if expected is None else [expected]), name
                for line, word in WRONG:
                    await wire.send(line)
                    (answer,) = await wire.said()
                    assert answer["result"]["isError"], word
                    assert answer["result"]["structuredContent"]["code"] == "validation_error", word
                    assert word in answer["result"]["content"][0]["text"]
                await wire.send(call("mission_list", {}))
                (listed,) = await wire.said()
                assert listed["result"]["structuredContent"] == {"sessions": []}

    anyio.run(scene)
    audit = Place(tmp_path).json("audit")
    assert audit == {"audit": []}, "not even a line of the audit"


async def test_what_is_asked_just_before_the_end_is_answered_by_a_runtime_that_opens_for_it(tmp_path: Path) -> None:
    place = Place(tmp_path).configured()
    lines = [json.dumps(INITIALIZE).encode(), message(method="notifications/initialized"), call("mission_list", {})]
    command = [sys.executable, "-m", "pursuit", "serve", "--log-level", "error"]
    served = await anyio.run_process(
        command, input=b"".join(line + b"\n" for line in lines), cwd=tmp_path, env=place.environment, stderr=None
    )
    *_, answer = served.stdout.splitlines()
    assert json.loads(answer)["result"]["structuredContent"] == {"sessions": []}
