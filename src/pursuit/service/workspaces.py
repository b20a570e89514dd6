"""What an operator does with the workspace of an agent's mission: look at its changes, take them over, remove it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pursuit.agents.workspace import Workspace, WorkspaceFailed
from pursuit.core.best_of import rivals, winner
from pursuit.core.events import CallSettled, decode
from pursuit.core.mission import BestOfProposer
from pursuit.errors import Conflict, InvalidArgument
from pursuit.service.service import Service


async def whole_diff(service: Service, mission_id: str) -> bytes:
    """What the mission changed so far: what counts, from its start until now."""
    async with _opened(service, mission_id) as workspace:
        return await workspace.total()


async def turn_diff(service: Service, mission_id: str, iteration: int) -> bytes:
    """What the turn of one iteration changed, protected files included, as the ledger has it."""
    await service.state(mission_id)
    events = [decode(one.type, one.body) for one in await service.ledger.read(mission_id)]
    found = [
        event.change
        for event in events
        if isinstance(event, CallSettled) and event.iteration == iteration and event.change is not None
    ]
    if not found:
        raise InvalidArgument(f"{mission_id} has no turn of an agent in iteration {iteration}", field="--turn")
    body = None if found[-1].diff is None else await service.ledger.blob(found[-1].diff)
    return body or b""


async def apply_result(service: Service, mission_id: str) -> dict[str, Any]:
    """Applies what counts to the user's own files, all of it or nothing."""
    async with service.control(None, "workspace_apply", mission_id), _alone(service, mission_id) as workspace:
        files: Sequence[str] = await workspace.apply()
        return {"session_id": mission_id, "applied": list(files), "path": str(workspace.top)}


async def drop_workspace(service: Service, mission_id: str) -> dict[str, Any]:
    """Removes the worktree and the snapshots of a mission; its branch stays."""
    state = await service.state(mission_id)
    if isinstance(state.mission.proposer, BestOfProposer):
        rows = [await drop_workspace(service, child.session_id) for _, child in rivals(state)]
        return {"session_id": mission_id, "dropped": ", ".join(row["dropped"] for row in rows)}
    async with service.control(None, "workspace_drop", mission_id), _alone(service, mission_id) as workspace:
        await workspace.drop()
        return {"session_id": mission_id, "dropped": str(workspace.folder)}


@asynccontextmanager
async def _alone(service: Service, mission_id: str) -> AsyncGenerator[Workspace]:
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
async def _opened(service: Service, mission_id: str) -> AsyncGenerator[Workspace]:
    """The workspace as the mission left it. Raises `InvalidArgument` if it has none."""
    state = await service.state(mission_id)
    if isinstance(state.mission.proposer, BestOfProposer):
        won = winner(state)
        if won is None:
            raise InvalidArgument(f"no agent of {mission_id} has won; name the mission of one", session_id=mission_id)
        mission_id = won[1].session_id
    mission = state.mission
    folder = service.driver.workspaces
    if mission.workspace is None or folder is None:
        raise InvalidArgument(f"{mission_id} has no workspace: its proposer is not an agent", session_id=mission_id)
    workspace = Workspace(mission.workspace, mission_id, folder / mission_id)
    try:
        await workspace.locate()
        start = await workspace.find("start")
        if start is None:
            raise InvalidArgument(
                f"the workspace of {mission_id} was not made yet, or was dropped", session_id=mission_id
            )
        workspace.start = start
        yield workspace
    except WorkspaceFailed as error:
        raise InvalidArgument(str(error), session_id=mission_id) from None
