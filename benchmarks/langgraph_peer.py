"""The peer: LangGraph with its SQLite saver and `durability="sync"`, one node for one step.

Owns: how LangGraph is installed, run at its best and timed. Knows nothing of Pursuit: it runs in a process of its own,
with an interpreter that has LangGraph, and waits for a line on its standard input before each round.

There are two ways to run graphs side by side, and each round runs both: asyncio tasks on one `AsyncSqliteSaver`, and
threads on one `SqliteSaver`.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypedDict

from environment import interpreter

PACKAGES = ("langgraph", "langgraph-checkpoint-sqlite")
MODULES = ("langgraph", "langgraph.checkpoint.sqlite")


class Peer:
    """A peer in its own process, told when to run a round."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.version: str = self._answer()["version"]

    def steps_per_second(self) -> dict[str, float]:
        """Runs one round of each way, start to end, and says how fast each went."""
        assert self._process.stdin is not None
        self._process.stdin.write("round\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer ended with exit code {self._process.wait()}")
        return json.loads(line)


@contextmanager
def running_peer(command: list[str]) -> Generator[Peer]:
    """A peer, ready for its first round."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Peer(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()


def langgraph_peer(folder: Path, graphs: int, steps: int) -> AbstractContextManager[Peer]:
    """LangGraph on the disk of `folder`."""
    python = interpreter("langgraph", MODULES, PACKAGES)
    return running_peer([python, str(Path(__file__)), str(folder), str(graphs), str(steps)])


class Progress(TypedDict):
    step: int
    loss: float


def step_graph(steps: int, *, in_loop: bool) -> Any:
    """One node that runs `steps` times; each time is a step that is durable before the next begins.

    In an event loop its functions are coroutines: LangGraph would hand plain ones to a thread each time.
    """
    from langgraph.graph import END, START, StateGraph

    def work(state: Progress) -> dict[str, Any]:
        return {"step": state["step"] + 1, "loss": 1.0}

    def onward(state: Progress) -> str:
        return "work" if state["step"] < steps else END

    async def work_in_loop(state: Progress) -> dict[str, Any]:
        return work(state)

    async def onward_in_loop(state: Progress) -> str:
        return onward(state)

    graph = StateGraph(Progress)
    graph.add_node("work", work_in_loop if in_loop else work)
    graph.add_edge(START, "work")
    graph.add_conditional_edges("work", onward_in_loop if in_loop else onward, ["work", END])
    return graph


def thread_config(steps: int) -> dict[str, Any]:
    return {"configurable": {"thread_id": uuid.uuid4().hex}, "recursion_limit": steps + 5}


def check_steps(results: list[dict[str, Any]], graphs: int, steps: int) -> None:
    assert [result["step"] for result in results] == [steps] * graphs


def threads_seconds(folder: Path, graphs: int, steps: int) -> float:
    from langgraph.checkpoint.sqlite import SqliteSaver

    with SqliteSaver.from_conn_string(str(folder / "threads.db")) as saver:
        saver.setup()
        graph = step_graph(steps, in_loop=False).compile(checkpointer=saver)
        start = {"step": 0, "loss": 0.0}
        with ThreadPoolExecutor(graphs) as pool:
            begin = time.perf_counter()
            jobs = [
                pool.submit(
                    graph.invoke, start, thread_config(steps), durability="sync"
                )  # one graph, many threads of it
                for _ in range(graphs)
            ]
            results = [job.result() for job in jobs]
            seconds = time.perf_counter() - begin
    check_steps(results, graphs, steps)
    return seconds


async def _tasks(folder: Path, graphs: int, steps: int) -> float:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(str(folder / "tasks.db")) as saver:
        await saver.setup()
        graph = step_graph(steps, in_loop=True).compile(checkpointer=saver)
        start = {"step": 0, "loss": 0.0}
        begin = time.perf_counter()
        results = await asyncio.gather(
            *(graph.ainvoke(start, thread_config(steps), durability="sync") for _ in range(graphs))
        )
        seconds = time.perf_counter() - begin
    check_steps(results, graphs, steps)
    return seconds


def tasks_seconds(folder: Path, graphs: int, steps: int) -> float:
    return asyncio.run(_tasks(folder, graphs, steps))


WAYS = {"asyncio tasks": tasks_seconds, "threads": threads_seconds}


def serve(where: str, graphs: int, steps: int) -> None:
    """Runs a round of both ways for each line that comes in."""
    from importlib.metadata import version

    with tempfile.TemporaryDirectory(dir=where) as name:
        folder = Path(name)
        for run in WAYS.values():
            run(folder, 2, 2)
        print(json.dumps({"version": version("langgraph")}), flush=True)
        for _line in sys.stdin:
            rates = {way: graphs * steps / run(folder, graphs, steps) for way, run in WAYS.items()}
            print(json.dumps(rates), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
