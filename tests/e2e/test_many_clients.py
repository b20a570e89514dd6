"""Many clients at once, through the front door: nobody gets another's answer, and nothing runs twice."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from cli_stage import HTTP, SERVERS, Place
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from quick_start import pursuit

# They share a server, so one worker runs them all.

LEGACY, MODERN = "legacy", "2026-07-28"
CLIENTS = 20
ITERATIONS = 3
ROUNDS = 5
PROCESSES = 3
LONGEST = 240.0

Answer = dict[str, Any]


class Table:
    """A folder with a ledger, and the file in which the upstream notes what it has done."""

    def __init__(self, folder: Path) -> None:
        self.place = Place(folder)
        self.tally = folder / "tally"
        self.tally.touch()
        self.place.write(
            "pursuit.toml",
            f"""
[policy]
mode = "auto"
[servers.tally]
command = "__python_executable__"
args = [{json.dumps(str(SERVERS / "tally.py"))}]
env = {{ TALLY = {json.dumps(str(self.tally))} }}
""",
        )
        self.url = ""

    def done(self, scene: str) -> list[str]:
        """What was executed in this scene, in order."""
        return [key for key in self.tally.read_text().split() if key.startswith(f"{scene}-")]

    def verified(self) -> None:
        self.place.ask("verify")

    def stdio(self) -> Any:
        """A client's pipes to a process of its own."""
        environment = self.place.environment
        command, *words = [*pursuit(), "serve"]
        return stdio_client(StdioServerParameters(command=command, args=words, cwd=self.place.folder, env=environment))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    """One server over HTTP, a process of its own, for all scenes."""
    made = Table(tmp_path_factory.mktemp("table"))
    running = made.place.begin("serve", *HTTP, fresh=False)
    try:
        made.url = json.loads(running.until("listening"))["url"]
        yield made
    finally:
        code, _, notes = running.end(signal.SIGTERM)
    assert code == 0, notes


class Seat:
    """One client, and every word that the server said to it beside its answers."""

    def __init__(self, number: int, client: Client, words: list[Any] | None = None) -> None:
        self.number, self.client = number, client
        self.heard: list[str] = []
        self._words = [] if words is None else words

    def unasked(self) -> list[Any]:
        """What came without being asked for; the SDK shows some of the progress that was asked for here as well."""
        return [word for word in self._words if getattr(word.params, "message", None) not in self.heard]

    async def call(self, tool: str, *, listen: bool = False, **arguments: Any) -> Answer:
        callback = self._progress if listen else None
        result = await self.client.call_tool(tool, arguments, progress_callback=callback)
        body = result.structured_content
        assert isinstance(body, dict)
        return {**body, "failed": result.is_error}

    async def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.heard.append(message or "")


def proposal(key: str, number: float = 0) -> Answer:
    return {"tool_calls": [{"tool_name": "step", "args": {"key": key, "number": number}}]}


def mission(name: str, **more: Any) -> Answer:
    """A mission without an end of its own."""
    never = {"criterion_id": "never", "kind": "event", "event_name": "never", "required": True}
    return {
        "directive": name,
        "criteria": [never],
        "budget": {"max_iterations": 1_000},
        "tool_allowlist": ["tally.step"],
        "stagnation_threshold": "off",
        **more,
    }


@asynccontextmanager
async def seats(url: str) -> AsyncIterator[list[Seat]]:
    """Clients side by side, of both eras by turns."""
    async with AsyncExitStack() as stack:
        found: list[Seat] = []
        for number in range(CLIENTS):
            wire = await stack.enter_async_context(httpx2.AsyncClient(timeout=LONGEST, trust_env=False, verify=False))
            transport = streamable_http_client(url, http_client=wire)
            words: list[Any] = []

            async def keep(message: Any, words: list[Any] = words) -> None:
                words.append(message)

            era = MODERN if number % 2 else LEGACY
            client = await stack.enter_async_context(Client(transport, mode=era, message_handler=keep))
            found.append(Seat(number, client, words))
        yield found


async def together(work: Callable[[Seat], Awaitable[Answer]], seated: list[Seat]) -> list[Answer]:
    """What each client's work came to, all begun at the same moment."""
    answers: dict[int, Answer] = {}
    begin = anyio.Event()

    async def one(seat: Seat) -> None:
        await begin.wait()
        answers[seat.number] = await work(seat)

    async with anyio.create_task_group() as tasks:
        for seat in seated:
            tasks.start_soon(one, seat)
        begin.set()
    return [answers[seat.number] for seat in seated]


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with anyio.fail_after(LONGEST):
            await scene()

    try:
        anyio.run(bounded)
    except BaseExceptionGroup as group:  # twenty clients wrap a failure in more groups than anybody can read
        cause: BaseException = group
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        raise cause from None


def won(answers: list[Answer]) -> list[Answer]:
    """The answers of those that drove; the others were told that somebody does."""
    for answer in answers:
        assert not answer["failed"] or answer["code"] == "conflict", answer
        assert not answer["failed"] or answer["iterations"] == [], "what another did is not this one's"
    return [answer for answer in answers if not answer["failed"]]


async def recorded(seat: Seat, session_id: str) -> list[tuple[int, str]]:
    """The iterations of a mission with the key of the one call in each, in order."""
    rows: list[Answer] = []
    page: Answer = {"next_cursor": "0"}
    while "next_cursor" in page:
        page = await seat.call("mission_history", session_id=session_id, format="full", cursor=page["next_cursor"])
        rows += page["iterations"]
    found: list[tuple[int, str]] = []
    for row in rows:
        (call,) = row["calls"]
        assert call["outcome"] == "ok"
        found.append((row["iteration_index"], call["args"]["key"]))
    return found


async def own_mission(seat: Seat) -> Answer:
    """One client alone with its mission; every answer must be about that one."""
    me, ours = seat.number, seat.number * 100
    goal = {"criterion_id": "goal", "kind": "metric_threshold", "metric": "number", "op": ">=", "required": True}
    # As many criteria as no other mission has, so that progress tells whose it is.
    more = [{"criterion_id": f"o{n}", "kind": "event", "event_name": "never", "required": False} for n in range(me)]
    criteria = [{**goal, "target": ours + ITERATIONS - 1}, *more]
    session_id = (await seat.call("mission_start", **mission(f"mission {me}", criteria=criteria)))["session_id"]
    for index in range(ITERATIONS):
        given = proposal(f"own-{me}-{index}", ours + index)
        answer = await seat.call("mission_iterate", listen=me % 3 > 0, session_id=session_id, proposal=given)
        assert answer["session_id"] == session_id
        verdict = "complete" if index == ITERATIONS - 1 else "continue"
        assert [(row["iteration_index"], row["verdict"]) for row in answer["iterations"]] == [(index, verdict)]
        status = await seat.call("mission_status", session_id=session_id)
        assert (status["session_id"], status["directive"]) == (session_id, f"mission {me}")
        assert status["metrics"] == {"number": ours + index}
        assert len(status["criteria"]) == me + 1
    assert await recorded(seat, session_id) == [(index, f"own-{me}-{index}") for index in range(ITERATIONS)]
    return {"session_id": session_id, "failed": False}


@pytest.mark.slow
@pytest.mark.guarantee("many-clients")
def test_twenty_clients_on_twenty_missions_get_their_own_answers(table: Table) -> None:
    async def scene() -> None:
        async with seats(table.url) as seated:
            answers = await together(own_mission, seated)
            assert len({answer["session_id"] for answer in answers}) == CLIENTS
            for seat in seated:
                assert seat.unasked() == [], "nobody hears of what he did not ask for"
                own = f" of {seat.number + 1} criteria met"
                assert all(message.endswith(own) for message in seat.heard), seat.heard
                assert bool(seat.heard) == (seat.number % 3 > 0)

    play(scene)
    keys = [f"own-{client}-{index}" for client in range(CLIENTS) for index in range(ITERATIONS)]
    assert sorted(table.done("own")) == sorted(keys)
    table.verified()


@pytest.mark.slow
@pytest.mark.guarantee("many-clients")
def test_twenty_clients_on_one_mission_drive_it_one_at_a_time(table: Table) -> None:
    async def scene() -> None:
        async with seats(table.url) as seated:
            first = seated[0]
            session_id = (await first.call("mission_start", **mission("for all")))["session_id"]
            winners: list[str] = []
            indexes: list[int] = []
            for number in range(ROUNDS):

                async def propose(seat: Seat, number: int = number) -> Answer:
                    given = proposal(f"one-{number}-{seat.number}")
                    return await seat.call("mission_iterate", session_id=session_id, proposal=given)

                answers = await together(propose, seated)
                winners += [f"one-{number}-{place}" for place, answer in enumerate(answers) if not answer["failed"]]
                indexes += [row["iteration_index"] for answer in won(answers) for row in answer["iterations"]]
            calls = await recorded(first, session_id)
            assert [index for index, _ in calls] == list(range(len(winners)))
            assert sorted(indexes) == list(range(len(winners))), "each was told of the iteration that it drove"
            assert Counter(table.done("one")) == Counter(winners) == Counter(key for _, key in calls)
            assert len(winners) >= ROUNDS

    play(scene)
    table.verified()


@pytest.mark.slow
@pytest.mark.guarantee("many-clients")
def test_processes_that_serve_the_same_ledger_drive_a_mission_one_at_a_time(tmp_path: Path) -> None:
    table = Table(tmp_path)

    async def scene() -> None:
        async with AsyncExitStack() as stack:
            seated: list[Seat] = []
            for number in range(PROCESSES):
                era = MODERN if number % 2 else LEGACY
                client = await stack.enter_async_context(Client(table.stdio(), mode=era))
                seated.append(Seat(number, client))
            session_id = (await seated[0].call("mission_start", **mission("for all")))["session_id"]
            winners: list[str] = []
            for number in range(ROUNDS):

                async def propose(seat: Seat, number: int = number) -> Answer:
                    given = proposal(f"processes-{number}-{seat.number}")
                    return await seat.call("mission_iterate", session_id=session_id, proposal=given)

                answers = await together(propose, seated)
                assert won(answers)
                winners += [
                    f"processes-{number}-{place}" for place, answer in enumerate(answers) if not answer["failed"]
                ]
            for seat in seated:
                calls = await recorded(seat, session_id)
                assert [index for index, _ in calls] == list(range(len(winners)))
                assert [key for _, key in calls] == table.done("processes")
            assert sorted(table.done("processes")) == sorted(winners)

    play(scene)
    table.verified()
