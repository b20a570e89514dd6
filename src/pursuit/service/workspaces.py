"""The operator's actions on the workspace of an agent's mission: show its changes, apply them, remove it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pursuit.core.history import History
from pursuit.core.pick import rivals, winner
from pursuit.core.report import criteria_rows
from pursuit.errors import Conflict, InvalidArgument
from pursuit.proposers.agent.workspace import AgentWorkspace, WorkspaceFailed
from pursuit.service.service import Service


async def whole_diff(service: Service, mission_id: str) -> bytes:
    async with _opened(service, mission_id) as workspace:
        return await workspace.total()


async def turn_diff(service: Service, mission_id: str, iteration: int) -> bytes:
    await service.state(mission_id)
    history = History.read(await service.ledger.read(mission_id))
    found = [end.change for _call, end in history.made_calls if end.iteration == iteration and end.change is not None]
    if not found:
        raise InvalidArgument(f"no agent took a turn in iteration {iteration} of {mission_id}", field="--turn")
    body = None if found[-1].diff is None else await service.ledger.blob(found[-1].diff)
    return body or b""


async def apply_result(service: Service, mission_id: str, *, unfinished: bool = False) -> dict[str, Any]:
    state = await service.state(mission_id)
    if state.status != "completed" and not unfinished:
        unmet = [one.criterion_id for one in criteria_rows(state) if one.required and one.status != "met"]
        why = f"{mission_id} is {state.status}, not completed (unmet: {', '.join(unmet) or 'nothing'})"
        raise InvalidArgument(f"{why}; --unfinished applies its changes as they are", session_id=mission_id)
    async with service.control(None, "workspace_apply", mission_id), _alone(service, mission_id) as workspace:
        files: Sequence[str] = await workspace.apply()
        return {"session_id": mission_id, "applied": list(files), "path": str(workspace.top)}


async def drop_workspace(service: Service, mission_id: str) -> dict[str, Any]:
    state = await service.state(mission_id)
    if state.mission.picks:
        rows = [await drop_workspace(service, child.session_id) for _, child in rivals(state)]
        return {"session_id": mission_id, "dropped": ", ".join(row["dropped"] for row in rows)}
    async with service.control(None, "workspace_drop", mission_id), _alone(service, mission_id) as workspace:
        await workspace.drop()
        return {"session_id": mission_id, "dropped": str(workspace.folder)}


@asynccontextmanager
async def _alone(service: Service, mission_id: str) -> AsyncGenerator[AgentWorkspace]:
    """The workspace while no process drives its mission. Raises `Conflict`."""
    claim = await service.ledger.claim(mission_id)
    if claim is None:
        raise Conflict(f"{mission_id} is running; pause it first", session_id=mission_id)
    try:
        async with _opened(service, mission_id) as workspace:
            yield workspace
    finally:
        await claim.release()


@asynccontextmanager
async def _opened(service: Service, mission_id: str) -> AsyncGenerator[AgentWorkspace]:
    """The workspace as the mission left it. Raises `InvalidArgument` without a workspace."""
    state = await service.state(mission_id)
    if state.mission.picks:
        won = winner(state)
        if won is None:
            raise InvalidArgument(f"no agent of {mission_id} has won; name an agent's mission", session_id=mission_id)
        mission_id = won[1].session_id
    mission = state.mission
    folder = service.driver.place.workspaces
    if mission.workspace is None:
        raise InvalidArgument(f"{mission_id} lacks a workspace: its proposer is not an agent", session_id=mission_id)
    workspace = AgentWorkspace(mission.workspace, mission_id, folder / mission_id)
    try:
        await workspace.locate()
        start = await workspace.find("start")
        if start is None:
            raise InvalidArgument(
                f"the workspace of {mission_id} does not exist yet, or was removed", session_id=mission_id
            )
        workspace.start = start
        yield workspace
    except WorkspaceFailed as error:
        raise InvalidArgument(str(error), session_id=mission_id) from None
