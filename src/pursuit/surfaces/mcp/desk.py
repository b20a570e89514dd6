"""Calls of our tools: found, checked, answered.

Owns: the order of the steps. Knows no transport. Invariant: what is refused is an answer too; only what breaks the
protocol is a protocol error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
)

from pursuit.errors import PursuitError
from pursuit.surfaces.mcp import answers
from pursuit.surfaces.mcp.arguments import parse
from pursuit.surfaces.mcp.asking import AskClient
from pursuit.surfaces.mcp.failure import Context, one_page
from pursuit.surfaces.mcp.missions import Missions
from pursuit.surfaces.mcp.tools import MissionTool


class DeskTool(Protocol):
    """A tool that answers by itself; `refused` is what a refusal of it has besides."""

    name: str

    @property
    def refused(self) -> Mapping[str, Any]:
        """What a refusal has unless the error knows more."""
        ...

    def declared(self) -> Tool:
        """The tool as clients see it."""
        ...

    async def call(self, ctx: Context, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a call; raises what refuses it."""
        ...


class BoundMissionTool:
    """A tool about missions, with them."""

    def __init__(self, tool: MissionTool, missions: Missions) -> None:
        self.name = tool.name
        self.refused: Mapping[str, Any] = tool.refused
        self.declared = tool.declared
        self._tool = tool
        self._missions = missions

    async def call(self, ctx: Context, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Checks the arguments, and answers."""
        asked = parse(self._tool.shape, arguments)
        answer = await self._tool.answer(self._missions, ctx, asked)
        return answers.result(answer, self._tool.lines(answer))


class ToolDesk:
    """Finds the tool and answers; those about missions come first."""

    def __init__(self, missions: Missions, tools: Sequence[MissionTool], more: Sequence[DeskTool] = ()) -> None:
        self.asking = missions.asking
        found: list[DeskTool] = [*(BoundMissionTool(tool, missions) for tool in tools), *more]
        self._tools = {tool.name: tool for tool in found}
        self._declared: ListToolsResult | None = None

    async def list(self, ctx: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        """All of them, on one page."""
        one_page(params)
        return self._listing()

    def input_schema(self, name: str) -> dict[str, Any] | None:
        """What a tool takes; None for one that is not here."""
        return next((tool.input_schema for tool in self._listing().tools if tool.name == name), None)

    async def call(self, ctx: Context, params: CallToolRequestParams) -> dict[str, Any] | InputRequiredResult:
        """Answers a call; what is refused is an answer too."""
        tool = self._tools.get(params.name)
        if tool is None:
            known = ", ".join(self._tools)
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {params.name[:100]!r}; there are {known}")
        try:
            return await tool.call(ctx, params.arguments or {})
        except (PursuitError, AskClient, BaseExceptionGroup) as error:
            found = _ours(error)
            if found is None:
                raise
            return found.result() if isinstance(found, AskClient) else answers.refusal(found, tool.refused)

    def _listing(self) -> ListToolsResult:
        if self._declared is None:
            self._declared = ListToolsResult(tools=[tool.declared() for tool in self._tools.values()])
        return self._declared


def _ours(error: BaseException) -> PursuitError | AskClient | None:
    """What a client can be told, out of the groups that concurrent work wrapped it in."""
    match error:
        case PursuitError() | AskClient():
            return error
        case BaseExceptionGroup(exceptions=(inner,)):
            return _ours(inner)
        case _:
            return None
