"""The public `pursuit.Problem`: a problem that can also be served.

It is here and not in `pursuit.problems`, which does not import the server.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pursuit.policy.rules import Mode, parse_mode
from pursuit.problems import problem
from pursuit.problems.attempts import checked_attempt_id

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server


class Problem(problem.Problem):
    """One problem; `manifest` is all of it."""

    def to_mcp_server(
        self,
        *,
        server_name: str | None = None,
        include_citation: bool = True,
        state: Path | str | None = None,
        attempt_id: str | None = None,
        label: str = "",
        mode: Mode | None = None,
        many: bool = False,
    ) -> Server[Any]:
        """The problem as a low-level server of the MCP SDK; each run of it is one client with one attempt.

        With `many`, for HTTP, a run has several clients. `state` is the ledger; the default is that of the command
        line.
        """
        problem.check_texts(server_name=server_name, label=label, attempt_id=attempt_id)
        from pursuit.server.problems.server import ProblemOptions, problem_server  # noqa: PLC0415 - the SDK is slow

        options = ProblemOptions(
            state=None if state is None else Path(state),
            mode=None if mode is None else parse_mode(mode),
            server_name=server_name,
            include_citation=include_citation,
            attempt_id=None if attempt_id is None else checked_attempt_id(attempt_id, "attempt_id"),
            label=label,
        )
        return problem_server(self.manifest, options, many=many)
