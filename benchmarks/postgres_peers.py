"""The peers on PostgreSQL: LangGraph with its Postgres saver, and DBOS with one step for each of ours.

Owns: how both are installed, run at their best and timed. Knows nothing of Pursuit: each runs in a process of its own
on the same database, and waits for a line on its standard input before each round.

Run: python benchmarks/postgres_peers.py langgraph|dbos ADDRESS WORKFLOWS STEPS
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path

from environment import interpreter
from langgraph_peer import Peer, check_steps, running_peer, step_graph, thread_config

NEEDED = {
    "langgraph": (
        ("langgraph", "langgraph.checkpoint.postgres", "psycopg_pool"),
        ("langgraph", "langgraph-checkpoint-postgres", "psycopg[binary,pool]"),
    ),
    "dbos": (("dbos",), ("dbos>=3", "psycopg[binary]")),
}
CONNECTIONS = 20
"""For each peer: more were not faster."""


def postgres_peer(name: str, address: str, workflows: int, steps: int) -> AbstractContextManager[Peer]:
    """A peer on a database."""
    python = interpreter(f"{name}-postgres", *NEEDED[name])
    return running_peer([python, str(Path(__file__)), name, address, str(workflows), str(steps)])


def langgraph_ways(address: str, workflows: int, steps: int) -> dict[str, Callable[[], float]]:
    """Graphs as asyncio tasks, and as threads, on a pool of connections."""
    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool, ConnectionPool

    settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    start = {"step": 0, "loss": 0.0}
    with ConnectionPool(address, kwargs=settings) as pool:
        PostgresSaver(pool).setup()

    async def tasks() -> float:
        async with AsyncConnectionPool(address, min_size=CONNECTIONS, max_size=CONNECTIONS, kwargs=settings) as pool:
            graph = step_graph(steps, in_loop=True).compile(checkpointer=AsyncPostgresSaver(pool))
            begin = time.perf_counter()
            results = await asyncio.gather(
                *(graph.ainvoke(start, thread_config(steps), durability="sync") for _ in range(workflows))
            )
            seconds = time.perf_counter() - begin
        check_steps(results, workflows, steps)
        return seconds

    def threads() -> float:
        with ConnectionPool(address, min_size=CONNECTIONS, max_size=CONNECTIONS, kwargs=settings) as pool:
            graph = step_graph(steps, in_loop=False).compile(checkpointer=PostgresSaver(pool))
            with ThreadPoolExecutor(workflows) as executor:
                begin = time.perf_counter()
                jobs = [
                    executor.submit(graph.invoke, start, thread_config(steps), durability="sync")
                    for _ in range(workflows)
                ]
                results = [job.result() for job in jobs]
                seconds = time.perf_counter() - begin
        check_steps(results, workflows, steps)
        return seconds

    return {"asyncio tasks": lambda: asyncio.run(tasks()), "threads": threads}


def dbos_ways(address: str, workflows: int, steps: int) -> dict[str, Callable[[], float]]:
    """Workflows as asyncio tasks, and as threads; each step is a DBOS step."""
    from dbos import DBOS

    DBOS(
        config={
            "name": "bench",
            "system_database_url": address,
            "run_admin_server": False,
            "log_level": "ERROR",
            "sys_db_pool_size": CONNECTIONS,
        }
    )

    @DBOS.step()
    def work(number: int) -> int:
        return number + 1

    @DBOS.step()
    async def work_in_loop(number: int) -> int:
        return number + 1

    @DBOS.workflow()
    def flow(steps: int) -> int:
        number = 0
        while number < steps:
            number = work(number)
        return number

    @DBOS.workflow()
    async def flow_in_loop(steps: int) -> int:
        number = 0
        while number < steps:
            number = await work_in_loop(number)
        return number

    DBOS.launch()
    loop = asyncio.new_event_loop()  # one for all rounds: DBOS gives it its threads, and closing it would end them

    async def together() -> float:
        begin = time.perf_counter()
        handles = [await DBOS.start_workflow_async(flow_in_loop, steps) for _ in range(workflows)]
        results = [await handle.get_result() for handle in handles]
        seconds = time.perf_counter() - begin
        assert results == [steps] * workflows
        return seconds

    def threads() -> float:
        begin = time.perf_counter()
        handles = [DBOS.start_workflow(flow, steps) for _ in range(workflows)]
        results = [handle.get_result() for handle in handles]
        seconds = time.perf_counter() - begin
        assert results == [steps] * workflows
        return seconds

    return {"asyncio tasks": lambda: loop.run_until_complete(together()), "threads": threads}


def serve(name: str, address: str, workflows: int, steps: int) -> None:
    """Runs a round of both ways for each line that comes in."""
    ways = {"langgraph": langgraph_ways, "dbos": dbos_ways}[name](address, workflows, steps)
    for run in ways.values():
        run()
    print(json.dumps({"version": version(name)}), flush=True)
    for _line in sys.stdin:
        print(json.dumps({way: workflows * steps / run() for way, run in ways.items()}), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
