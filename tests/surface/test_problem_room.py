"""Room for clients of a problem over HTTP: whoever comes while others make room ends nothing."""

from __future__ import annotations

from pathlib import Path

import anyio
from http_stage import client
from problem_stage import MODERN, SCHEMA, attempts, problem
from test_problem_http import serving

IDLE = 0.3


async def test_clients_that_come_at_once_make_room_together_and_end_nothing(tmp_path: Path) -> None:
    one = problem(tmp_path, submission=SCHEMA)
    refused: list[bool] = []
    async with serving(one, tmp_path, most_clients=4, idle_seconds=IDLE) as url:

        async def visit(name: str) -> None:
            async with client(f"{url}?client={name}", MODERN) as agent:
                refused.append((await agent.call_tool("submit_final", {"x": 3})).is_error)

        async with anyio.create_task_group() as tasks:
            for name in "abcd":
                tasks.start_soon(visit, name)
        await anyio.sleep(IDLE)  # so long nobody comes
        async with anyio.create_task_group() as tasks:
            for name in "ef":
                tasks.start_soon(visit, name)
        await visit("a")
    assert refused == [False] * 6 + [True], "who comes back has submitted, and everybody was served"
    assert len(await attempts(tmp_path)) == 6
