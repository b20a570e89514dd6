"""`pursuit gate`: the hooks of a coding agent, which may stop only once the criteria of a mission file are met.

Any failure of Pursuit itself lets the agent go on, with a message for the person: a gate must never lock an agent in.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from pursuit.cli.check import without_proposer
from pursuit.cli.client_file import read_file, set_member, write_file
from pursuit.cli.console import CommandAnswer, Fact, Note, Part
from pursuit.cli.context import Context, command
from pursuit.cli.errors import root_cause
from pursuit.config.mission_file import MissionFile, load_mission_file
from pursuit.config.trust import of_mission
from pursuit.core.criteria import Check
from pursuit.core.mission import Mission
from pursuit.core.state import MissionState
from pursuit.core.tools import as_object
from pursuit.engine.driver import RunOrder
from pursuit.errors import Fault, InvalidArgument, PursuitError, ValidationFailed
from pursuit.proposers.contract import kind_of
from pursuit.proposers.model.conversation import standing
from pursuit.runtime import Runtime

HOOKS = (".claude/settings.json", ".claude/settings.local.json", ".codex/hooks.json", ".codex/config.toml")
"""Files of agents with hooks: an agent that changes them is told that it does not count."""
MAX_PRINTED = 2_000
CHECK_SECONDS = 60.0
"""The time of a check that names none."""
SESSION_SECONDS = 3_600.0
"""A session without a sign for so long has ended, as after a kill."""

app = typer.Typer()


class GateSession(msgspec.Struct):
    mission_id: str
    at: float


class GateSessions(msgspec.Struct):
    """The sessions of agents in one folder, by their ids, and the newest mission there."""

    sessions: dict[str, GateSession] = {}
    newest: str = ""


@command(
    app,
    epilog="The hook's event is read as JSON from standard input. Exit code:  0; 2 for wrong usage.  "
    "Example:  pursuit install claude-code --gate mission.toml",
)
def gate(
    context: Context,
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Mission file in TOML with criteria of kind `check`.")],
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin with a new budget in each session.")] = False,
) -> int:
    """Answer a hook of Claude Code or Codex: the agent may stop once the checks of a mission file pass.

    SessionStart takes the baseline. Stop runs the checks with the protected files of the baseline, and sends the agent
    back to work until they pass, the budget is spent, or nothing changes any more. The ledger records each attempt.
    """
    try:
        said = as_object(json.loads(sys.stdin.read() or "{}"))
        answer = _Gate(context, load_mission_file(file), said, fresh=fresh).answer()
    except Exception as error:  # noqa: BLE001 - the boundary: an agent is never locked in by our own fault
        cause = root_cause(error)
        why = cause.message if isinstance(cause, PursuitError) else f"{type(cause).__name__}: {cause}"
        answer = {"systemMessage": f"Pursuit checked nothing: {why}"}
    return context.screen.render(CommandAnswer(answer, *([json.dumps(answer)] if answer else [])))


class _Gate:
    """One event of one session."""

    def __init__(self, context: Context, file: MissionFile, said: Mapping[str, Any], *, fresh: bool) -> None:
        self._context = context
        self._given, self._fresh = file, fresh
        self._file = _gated(file)
        self._event = str(said.get("hook_event_name", ""))
        self._session = str(said.get("session_id", ""))[:200]
        self._busy = bool(said.get("background_tasks"))
        name = hashlib.sha256(str(file.path).encode()).hexdigest()[:16]
        self._place = context.folder_beside_ledger("gates") / f"{name}.json"
        try:
            self._known = msgspec.json.decode(self._place.read_bytes(), type=GateSessions)
        except (OSError, msgspec.DecodeError):
            self._known = GateSessions()

    def answer(self) -> dict[str, Any]:
        match self._event:
            case "SessionStart":
                return self._context.drive(self._begin, None, of_mission(self._given))
            case "SessionEnd":
                self._known.sessions.pop(self._session, None)
                self._keep()
                return {}
            case "Stop" if self._busy:
                return {}
            case "Stop" if self._session not in self._known.sessions:
                return {"systemMessage": "Pursuit checked nothing: the SessionStart hook of this session did not run"}
            case "Stop":
                return self._context.drive(self._stop, None, of_mission(self._given))
            case _:
                return {}

    async def _begin(self, runtime: Runtime) -> dict[str, Any]:
        """Gives the session its mission: the open one of this folder, unless another session works at it."""
        known, now = self._known, time.time()
        known.sessions = {name: one for name, one in known.sessions.items() if now - one.at < SESSION_SECONDS}
        mine = known.sessions.get(self._session)
        taken = {one.mission_id for name, one in known.sessions.items() if name != self._session}
        mission_id = mine.mission_id if mine is not None else "" if known.newest in taken else known.newest
        if not mission_id or (self._fresh and mine is None) or await _is_over(runtime, mission_id):
            mission_id = (await runtime.start_file(self._file, trusted=True)).session_id
            known.newest = mission_id
        mission = (await runtime.runner.state(mission_id)).mission
        place = runtime.runner.driver.place
        await kind_of(mission.proposer.kind).ready(mission.proposer, mission_id, mission, place)
        known.sessions[self._session] = GateSession(mission_id, now)
        self._keep()
        return {}

    async def _stop(self, runtime: Runtime) -> dict[str, Any]:
        """Runs the checks; a session whose mission has ended is no longer held."""
        session = self._known.sessions[self._session]
        session.at = time.time()
        self._keep()
        state = await runtime.runner.state(session.mission_id)
        if not state.terminal:
            state = await runtime.runner.drive(RunOrder(session.mission_id, iterations=1))
        if state.status == "completed":
            return {"systemMessage": f"Pursuit: all required criteria are met ({session.mission_id})"}
        if state.terminal or state.status != "running":
            why = state.verdict_reason or state.wait_detail or state.status
            return {"systemMessage": f"Pursuit: the criteria are not met, and it holds the agent no longer: {why}"}
        return {"decision": "block", "reason": "\n".join(_reason(state))}

    def _keep(self) -> None:
        self._place.write_bytes(msgspec.json.encode(self._known))


async def _is_over(runtime: Runtime, mission_id: str) -> bool:
    try:
        return (await runtime.runner.state(mission_id)).terminal
    except PursuitError:  # forgotten, or another ledger
        return True


def _reason(state: MissionState) -> Iterator[str]:
    yield f"The goal is not reached yet: {state.mission.directive}"
    yield from standing(state, printed=MAX_PRINTED)
    changes = [call.change for call in state.last.calls.values() if call.change] if state.last is not None else []
    if protected := [name for one in changes for name in one.protected]:
        yield f"You changed protected files, and that does not count: {', '.join(protected[:20])}."
    yield "Continue until the checks pass."


def _gated(file: MissionFile) -> MissionFile:
    """The mission of the gate: the checks, on the folder as it is, with more protected files."""
    checked, _ = without_proposer(file, {"kind": "gate"})
    mission: Mission = checked.mission
    workspace = mission.workspace
    assert workspace is not None  # noqa: S101 - it was given above
    top = Path(workspace.path).resolve()
    scripts = {Path(word) for one in mission.criteria for word in getattr(one, "command", None) or ()}
    named = [file.path, *(top / one for one in scripts)]
    inside = [str(one.relative_to(top)) for one in named if one.is_file() and one.is_relative_to(top)]
    protect = list(dict.fromkeys([*workspace.protect, *inside, *HOOKS]))
    changes = {
        "workspace": workspace.model_copy(update={"in_place": True, "protect": protect}),
        "budget": file.mission.budget,
        "stagnation_threshold": file.mission.stagnation_threshold,
    }
    return MissionFile(path=file.path, mission=mission.model_copy(update=changes), servers=checked.servers)


HOOK_FILES: Mapping[str, str] = {"claude-code": ".claude/settings.json", "codex": ".codex/hooks.json"}
"""The file with the hooks of this folder, by the agent."""
EVENTS = ("SessionStart", "Stop", "SessionEnd")
MARGIN_SECONDS = 120
"""A hook's time beyond that of all checks."""


class _HookFile(msgspec.Struct):
    hooks: dict[str, list[Any]] = {}


def install_gate(
    context: Context, client: str, mission: Path, program: Sequence[str], *, remove: bool, dry_run: bool
) -> CommandAnswer:
    """Adds `pursuit gate` to the hooks of an agent in this folder, or removes it; other hooks stay."""
    if client not in HOOK_FILES:
        reason = f"{client!r} has no hooks that Pursuit knows; known are {', '.join(HOOK_FILES)}"
        raise ValidationFailed([Fault(field="CLIENT", reason=reason)], "1 fault; nothing was changed")
    loaded = load_mission_file(mission)
    seconds = sum(one.timeout or CHECK_SECONDS for one in _gated(loaded).mission.criteria if isinstance(one, Check))
    if not remove and not dry_run:
        context.require_trust(of_mission(loaded))  # a hook has no terminal to ask at
    line = shlex.join([*program, "gate", str(loaded.path)])
    ours = {"hooks": [{"type": "command", "command": line, "timeout": int(seconds) + MARGIN_SECONDS}]}
    target = read_file(Path.cwd() / HOOK_FILES[client])
    text = target.text
    try:
        hooks = _HookFile() if not text.strip() else msgspec.json.decode(text, type=_HookFile)
        for event in EVENTS:
            given = hooks.hooks.get(event, [])
            others = [one for one in given if line not in json.dumps(one)]
            if (wanted := others if remove else [*others, ours]) != given:
                text = set_member(text, "hooks", event, wanted)
    except (msgspec.DecodeError, ValidationFailed) as error:
        reason = f"is not JSON with lists of hooks by their events, so nothing was changed ({error})"
        raise InvalidArgument(f"{target.path} {reason}", file=str(target.path)) from None
    changed = text != target.text
    backup = write_file(target, text) if changed and not dry_run else None
    data = {"client": client, "file": str(target.path), "command": line, "changed": changed, "dry_run": dry_run}
    done = "nothing to do" if not changed else "would write" if dry_run else "wrote"
    parts: list[Part] = [Fact(done, target.path), Fact("runs", line)]
    parts += [Fact("backup", backup)] if backup else []
    if client == "codex" and not remove:
        parts.append(
            Note("note: codex runs hooks with `codex_hooks = true` in [features], once you trust them (/hooks)")
        )
    return CommandAnswer(data, *parts)
