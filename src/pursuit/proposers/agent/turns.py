"""The turns of one mission's agent: its process and session, and what each turn changed in the workspace.

A turn that is cut off (the agent died, a limit, the operator's stop) ends all of the agent's processes first; then the
tree is kept or rolled back. Whatever it did is unknown, and it is never sent again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import anyio

from pursuit.config.surroundings import Surroundings
from pursuit.core.events import WorkspaceChange
from pursuit.core.tools import CallFailed
from pursuit.processes.subreaper import TAG
from pursuit.processes.tree import AGENT_TAG, ProcessTable, Root
from pursuit.proposers.agent.acp import AUTH_REQUIRED, AgentRefused, Answer, Connection, Question, Table, Told
from pursuit.proposers.agent.process import AgentGone, AgentProcess
from pursuit.proposers.agent.settings import AgentProposer
from pursuit.proposers.agent.workspace import AgentWorkspace, TreeSnapshot, WorkspaceFailed
from pursuit.proposers.contract import Performed

CANCEL_SECONDS = 1.0
"""How long an agent that is cut off may take to write down its session."""
START_SECONDS = 60.0
"""How long an agent may take to start, and to begin or load a session."""
KILLED = 128
"""A larger exit code is that of a process that a signal ended."""
SHOWN = 4_000
MOST_FILES = 200
TurnOutcome = Literal["ok", "failed", "unknown"]


class AgentTurns:
    """The agent of one mission in this process. `last_end` is that of its last turn, also of a cancelled one."""

    def __init__(self, settings: AgentProposer, workspace: AgentWorkspace, around: Surroundings) -> None:
        self.settings = settings
        self.workspace = workspace
        self.last_end: Performed | None = None
        self._around = around
        self._connection: Connection | None = None
        self._process: AgentProcess | None = None
        self._session = ""
        self._cost: float = 0.0
        self._prepared = False
        self._seen: tuple[int, dict[str, str]] | None = None  # the turn, and what was there before it
        self.servers: Callable[[], Sequence[Table]] = tuple
        """The MCP servers that a session is given."""

    async def prepare(self) -> None:
        """Makes the workspace, once. Raises `WorkspaceFailed`."""
        if not self._prepared:
            # `kill -9` of a process leaves the git that it ran: that would go on in the tree, and holds locks.
            await self._end_leftovers()
            self.workspace.tag = self._tag
            await self.workspace.prepare()
            self._prepared = True

    async def take(self, prompt: str, iteration: int, answer: Answer) -> Performed:
        """One turn. If it is cancelled, `last_end` is its end when the cancellation goes on; None if it was not asked.

        Raises `CallFailed` if the agent was not asked.
        """
        self.last_end = None
        try:
            await self.prepare()
            before = await self.workspace.before(iteration)
            self._seen = (iteration + 1, await self.workspace.surrounding())
        except WorkspaceFailed as error:
            raise CallFailed(str(error), sent=False) from None
        told = Told()
        try:
            outcome, error = await self._asked(prompt, told, answer)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                self.last_end = await self._cut_off(before, told, "the turn was cut off")
            raise
        end = Performed(outcome="unknown", error=error or "the turn was cut off")
        with anyio.CancelScope(shield=True):  # the turn is over: what it changed is kept, whatever comes now
            if outcome == "unknown":
                end = await self._cut_off(before, told, end.error or "")
            else:
                end = await self._ended(outcome, error, before, told)
        self.last_end = end
        return end

    async def recover(self, iteration: int) -> Performed:
        """The end of a turn whose process died: what it left is ended, kept or rolled back."""
        why = "the process ended before the outcome was known; it was not sent again"
        try:
            await self.prepare()
            before = await self.workspace.find(f"before/{iteration}")
            if before is None:
                return Performed(outcome="unknown", error=why)
            return await self._cut_off(before, Told(), why)
        except WorkspaceFailed as error:
            return Performed(outcome="unknown", error=f"{why}; {error}")

    @asynccontextmanager
    async def stopped(self) -> AsyncGenerator[None]:
        """Stops the agent's processes during the block, so that they change nothing that is being checked."""
        if self._process is None:
            yield
            return
        async with ProcessTable().stopped(Root(tag=self._tag, subreaper=self._process.identity)):
            yield

    async def aclose(self, *, at_once: bool = False) -> None:
        """Ends the agent and everything that it started."""
        process, self._process, self._connection = self._process, None, None
        if process is not None:
            await process.aclose(at_once=at_once)

    async def _asked(self, prompt: str, told: Told, answer: Answer) -> tuple[TurnOutcome, str | None]:
        """Sends the prompt and waits for the end of the turn."""
        idle = anyio.CancelScope(deadline=math.inf)

        def sign() -> None:
            idle.deadline = anyio.current_time() + self.settings.turn_idle_seconds

        async def held(question: Question) -> bool | None:
            idle.deadline = math.inf  # the agent waits for us
            return await answer(question)

        ended: tuple[TurnOutcome, str | None] = ("ok", None)
        connection = await self._connected() if self.settings.headless is None else None
        process = self._process or await self._started()
        async with process.draining():
            with idle:
                sign()
                try:
                    if connection is None:
                        ended = await self._headless(process, prompt, told, sign)
                    else:
                        await connection.prompt(self._session, prompt, told, answer=held, sign=sign)
                except AgentGone as error:
                    ended = ("unknown", f"the agent is gone: {error}")
                except AgentRefused as error:
                    ended = ("failed", f"the agent ended its turn with an error: {error}")
            if idle.cancelled_caught:
                silence = f"{self.settings.turn_idle_seconds:g} s (turn_idle_seconds)"
                ended = ("unknown", f"the agent gave no sign of life for {silence}")
        return ended

    async def _headless(
        self, process: AgentProcess, prompt: str, told: Told, sign: Callable[[], None]
    ) -> tuple[TurnOutcome, str | None]:
        """A command that gets the prompt on its standard input: its end is the end of the turn."""
        try:
            await process.send(prompt.encode())
            await process.end_input()
            while True:
                told.learn_line(await process.line())
                sign()
        except AgentGone as error:
            code, why = process.code, str(error)
        await self._end_now(process)
        self._cost = 0.0  # each process counts for itself
        if code is None or code > KILLED:
            return "unknown", f"the agent is gone: {why}"
        return ("ok", None) if code == 0 else ("failed", f"the agent failed: {why}")

    async def _started(self) -> AgentProcess:
        """The agent's process. Raises `CallFailed`."""
        workspace = self.workspace
        self._process = await start_agent(
            self.settings.argv, workspace.agent_folder, self._around, tag=self._tag, writes=[workspace.tree]
        )
        return self._process

    async def _connected(self) -> Connection:
        """The agent with its session, started if it does not run. Raises `CallFailed`."""
        if self._process is not None and self._process.code is not None:
            await self.aclose()  # it left between two turns: nothing was sent to it, so it is started again
        if self._connection is not None:
            return self._connection
        process = await self._started()
        connection, problem = Connection(process), None
        try:
            async with process.draining():
                with anyio.move_on_after(START_SECONDS) as patience:
                    try:
                        await self._begin_session(connection)
                    except (AgentGone, AgentRefused) as error:
                        problem = explained(error)
                if patience.cancelled_caught:
                    problem = f"it did not answer within {START_SECONDS:g} s"
        except BaseException:
            await self._end_now(process)
            raise
        if problem is not None:
            await self._end_now(process)
            raise CallFailed(f"the agent {self.settings.argv[0]!r} cannot be used: {problem}", sent=False)
        self._connection = connection
        return connection

    async def _end_now(self, process: AgentProcess) -> None:
        self._process = None
        await process.aclose(at_once=True)

    async def _begin_session(self, connection: Connection) -> None:
        await connection.initialize()
        asked, self._cost = {"cwd": str(self.workspace.agent_folder), "mcpServers": list(self.servers())}, 0.0
        known, cost = self._remembered()
        if known and connection.loads:
            with suppress(AgentRefused):  # it may have forgotten the session
                await connection.request("session/load", {"sessionId": known, **asked})  # it repeats its history
                self._session, self._cost = known, cost
                return
        self._session = str((await connection.request("session/new", asked)).get("sessionId", ""))
        self._remember(self._session)

    async def _cut_off(self, before: TreeSnapshot, told: Told, why: str) -> Performed:
        """Ends the agent with all its processes, then looks at what it left."""
        connection, self._connection = self._connection, None
        process, self._process = self._process, None
        if connection is not None:
            with suppress(AgentGone):
                with anyio.move_on_after(CANCEL_SECONDS):
                    await connection.cancel(self._session)
                    await connection.settle(CANCEL_SECONDS)
        if process is not None:
            await process.aclose(at_once=True)
        await self._end_leftovers()
        return await self._ended("unknown", why, before, told, rollback=self.settings.on_cut == "rollback")

    async def _ended(
        self,
        outcome: TurnOutcome,
        error: str | None,
        before: TreeSnapshot,
        told: Told,
        *,
        rollback: bool = False,
    ) -> Performed:
        """The end of a turn, with the diff that we compute."""
        try:
            after = await self.workspace.snapshot("after a turn")
            changes = await self.workspace.changes(before, after)
            if self._seen is not None:
                await self.workspace.note_changes(*self._seen)
            if rollback:
                await self.workspace.rollback(before)
                self._remember("")
                after = before
        except WorkspaceFailed as failed:
            return Performed(outcome="unknown", error="; ".join(filter(None, (error, f"no snapshot: {failed}"))))
        digest = hashlib.sha256(changes.diff).hexdigest() if changes.diff else None
        change = WorkspaceChange(
            before=before.tree,
            after=after.tree,
            files=len(changes.files),
            protected=list(changes.protected)[:MOST_FILES] if not rollback else [],
            diff=digest,
        )
        said: dict[str, Any] = {
            "stop_reason": told.stop_reason or None,
            "text": told.text[-SHOWN:],
            "tool_calls": list(told.calls.values()),
            "files": list(changes.files)[:MOST_FILES],
            "diff_bytes": changes.size,
        }
        said |= {"protected": change.protected} if change.protected else {}
        said |= {"rolled_back": True} if rollback else {}
        blobs = {} if digest is None else {digest: changes.diff}
        return Performed(outcome=outcome, error=error, said=said, used=self._used(told), change=change, blobs=blobs)

    def _used(self, told: Told) -> dict[str, float]:
        used: dict[str, float] = {}
        if told.tokens is not None:
            used["max_tokens"] = float(told.tokens)
        if told.session_cost is not None:
            used["max_cost_usd"] = round(max(0.0, told.session_cost - self._cost), 9)
            self._cost = told.session_cost
            if self._session:
                self._remember(self._session)
        return used

    @property
    def _tag(self) -> str:
        return f"{AGENT_TAG}{self.workspace.mission_id}"

    async def _end_leftovers(self) -> None:
        """Ends what carries the tag of this mission's agent: its subreaper may have been killed."""
        await ProcessTable().end(Root(tag=self._tag), CANCEL_SECONDS)

    @property
    def _session_file(self) -> Path:
        return self.workspace.folder / "session.json"

    def _remembered(self) -> tuple[str, float]:
        """The session of an earlier process, and what it had cost; empty if there is none."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            known = json.loads(self._session_file.read_text(encoding="utf-8"))
            if known["argv"] == self.settings.argv:
                return str(known["session_id"]), float(known["cost"])
        return "", 0.0

    def _remember(self, session_id: str) -> None:
        body = json.dumps({"session_id": session_id, "argv": self.settings.argv, "cost": self._cost})
        self._session_file.write_text(body, encoding="utf-8")


async def start_agent(
    argv: Sequence[str], cwd: Path, around: Surroundings, *, tag: str, writes: Sequence[Path] = ()
) -> AgentProcess:
    """Starts an agent in a folder. Raises `CallFailed`."""
    words = list(argv)
    try:
        environment = {**around.environment(os.environ), TAG: tag}
        if around.isolation is not None:
            isolation = replace(around.isolation, write=(*around.isolation.write, *map(str, writes)))
            words = isolation.words(words, cwd)
        return await AgentProcess.start(words, cwd=cwd, env=environment)
    except (OSError, ValueError) as error:
        raise CallFailed(f"the agent {argv[0]!r} cannot be started: {error}", sent=False) from None


def explained(error: Exception) -> str:
    """Why an agent cannot be used, and what to do."""
    if isinstance(error, AgentRefused) and error.code == AUTH_REQUIRED:
        return f"it wants you to log in: run it once by hand ({error})"
    return str(error)
