"""Through the gateway a client reads what it would read from the server itself, to the last field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gateway_stage import ERAS, LEGACY, MODERN, TASKS, Client, direct, hostile, house

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("tools/call", {"name": "image", "arguments": {}}),
    ("tools/call", {"name": "audio", "arguments": {}}),
    ("tools/call", {"name": "mixed", "arguments": {}}),
    ("tools/call", {"name": "wrong", "arguments": {}}),
    ("tools/call", {"name": "refuse", "arguments": {}}),
    ("tools/call", {"name": "echo", "arguments": {"a-b": None, "from": 1, "_x": {"deep": [None]}}}),
    ("tools/call", {"name": "echo", "arguments": {}, "_meta": {"com.example/x": [None]}}),
    ("tools/call", {"name": "echo"}),
    ("tools/call", {"name": "nobody", "arguments": {}}),
    ("tools/call", {"name": "steps", "arguments": {}}),
    ("resources/list", {}),
    ("resources/templates/list", {}),
    ("resources/read", {"uri": "x://hostile"}),
    ("resources/read", {"uri": "x://nothing"}),
    ("prompts/list", {}),
    ("prompts/get", {"name": "greet", "arguments": {"who": "x"}}),
    ("prompts/get", {"name": "nobody"}),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "who", "value": ""}}),
    ("x/custom", {"n": None}),
    ("x/unknown", {}),
]


async def said(client: Client) -> list[Any]:
    """Everything that a client can read."""
    return [await client.request(method, params) for method, params in CALLS]


@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {}}], ids=["plain", "able"])
@pytest.mark.parametrize("era", ERAS)
async def test_everything_equals_the_servers_own_json(era: str, capabilities: dict[str, Any], tmp_path: Path) -> None:
    async with direct(era=era) as client:
        expected = await said(client)
    modern = [MODERN] if era == MODERN else []
    async with house(tmp_path, hostile(*modern, methods=("x/*",))) as stage:
        found = await said(await stage.client(era, capabilities))
    for (method, params), one, other in zip(CALLS, found, expected, strict=True):
        assert one == other, (method, params)


@pytest.mark.parametrize("era", ERAS)
async def test_the_greeting_is_the_servers_own_but_for_tasks(era: str, tmp_path: Path) -> None:
    modern = [MODERN] if era == MODERN else []
    async with direct(era=era) as client:
        expected = await client.hello()
    async with house(tmp_path, hostile(*modern)) as stage:
        client = await stage.client(era, hello=False)
        expected["capabilities"] |= TASKS[era]
        assert await client.hello() == expected


@pytest.mark.parametrize("era", ERAS)
async def test_five_pages_of_tools_without_what_cannot_be_served(
    era: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    modern = [MODERN] if era == MODERN else []
    async with direct(era=era) as client:
        first = await client.result("tools/list")
        everything = await client.entries("tools/list", "tools")
    async with house(tmp_path, hostile(*modern)) as stage:
        client = await stage.client(era)
        assert await client.result("tools/list") == first
        found = await client.entries("tools/list", "tools")
    expected = [one for one in everything if isinstance(one, dict) and "inputSchema" in one]
    (second,) = [one for one in expected if one.get("description") == "the second of that name"]
    expected.remove(second)
    assert found == expected
    assert len(found) == len(everything) - 3
    assert "hostile.unusable is left out: it has no usable input schema" in caplog.text
    assert "hostile.hyphen: listed twice; the first one counts" in caplog.text


async def test_a_client_of_the_other_era_gets_that_eras_envelope_and_the_rest_as_it_is(tmp_path: Path) -> None:
    for era, other in ((LEGACY, MODERN), (MODERN, LEGACY)):
        async with direct(era=era) as client:
            expected = await said(client)
        modern = [MODERN] if other == MODERN else []
        async with house(tmp_path, hostile(*modern, methods=("x/*",))) as stage:
            found = await said(await stage.client(era))
        for (method, params), one, known in zip(CALLS, found, expected, strict=True):
            if "error" in known:
                assert one == known, (method, params)
                continue
            result = {**known["result"]}
            if "ttlMs" in result:
                # The server says other figures in its own era; to a client of the new one nothing may be cached.
                result |= {"ttlMs": 0, "cacheScope": "private"}
            assert one["result"] == result, (method, params)
