"""A problem in Python, read from a manifest or made for an MCP server.

Nothing here waits or connects, except `replay`, which is awaited; so a problem can be made anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

from pursuit.config.files import locate_state
from pursuit.errors import AttemptNotFound, Fault, InvalidArgument, ValidationFailed
from pursuit.policy.rules import Mode, parse_mode
from pursuit.problems.attempts import checked_attempt_id, load_attempt
from pursuit.problems.brief import write_brief
from pursuit.problems.catalogue import ProblemCatalogue
from pursuit.problems.manifest import MANIFEST, CitationMode, Manifest, digest_of
from pursuit.problems.manifest_reading import parse_manifest, read_manifest

if TYPE_CHECKING:
    from pursuit.problems.comparison import Replayed
    from pursuit.server.problems.server import ProblemServer

_ANYTHING: Mapping[str, Any] = {
    "kind": "predicates",
    "predicates": [{"metric": "submitted", "expression": "1"}],
    "metrics": [{"metric": "submitted"}],
}
"""The scorer of a problem that does not define one: each submission counts."""


class Problem:
    """One problem; `manifest` contains all of it."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest

    @classmethod
    def from_manifest(cls, path: Path | str) -> Self:
        """The problem in a `problem.toml`, or in the folder with that file; raises `ValidationFailed`."""
        place = Path(path)
        return cls(read_manifest(place / MANIFEST if place.is_dir() else place))

    @classmethod
    def shipped(cls, problem_id: str) -> Self:
        """One of the problems that Pursuit ships."""
        return cls(ProblemCatalogue.load().get(problem_id))

    @classmethod
    def from_stdio(
        cls,
        command: str | Path,
        args: Sequence[str | Path] = (),
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        **fields: Any,
    ) -> Self:
        """The problem for a server that is started by a command; `fields` are the keys of a manifest.

        A server that is itself a problem, such as `pursuit problem serve`, keeps its own brief and `submit_final`. The
        files of the server may be anywhere; those named in `fields` are in the working directory.
        """
        if "server" in fields:
            reason = "is built from the command and its args here; put further keys of a server into a problem.toml"
            raise ValidationFailed([Fault(field="server", reason=reason)])
        # A text in `args` is not converted to a list of letters; it is refused.
        server: dict[str, Any] = {"command": command, "args": args}
        server |= {key: value for key, value in (("env", env), ("cwd", cwd)) if value}
        given: dict[str, Any] = {
            "problem_id": "problem",
            "title": "Problem",
            "summary": "Work with the tools, then submit.",
            "statement": "Work with the tools of the server, then submit an answer.",
            "kind": "mcp",
            "scorer": _ANYTHING,
            **fields,
            "server": server,
        }
        manifest, faults = parse_manifest(given, Path.cwd() / MANIFEST)
        if manifest is None:
            raise ValidationFailed(faults)
        # Without a file, the digest is that of the table.
        return cls(replace(manifest, digest=digest_of(json.dumps(given, sort_keys=True, default=str))))

    @property
    def problem_id(self) -> str:
        return self.manifest.problem_id

    def brief(self, *, include_citation: bool = True) -> str:
        """The brief as agents read it, without the tools of a server, because no server is asked here."""
        return write_brief(self.manifest, citations=include_citation)

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
        citation_mode: CitationMode | None = None,
    ) -> ProblemServer:
        """Returns a low-level server of the MCP SDK; each of its runs serves one client with one attempt.

        With `many`, for HTTP, a run has several clients. `state` is the ledger (default: that of the command line).
        `citation_mode` (`summary`, `summary+raw` or `raw`) replaces that of the manifest. `aclose()` of the server ends
        its runs. Raises `ValidationFailed` for a citation without the text that the mode shows.
        """
        from pursuit.server.problems.server import ProblemOptions, problem_server  # noqa: PLC0415 - the SDK is slow

        options = ProblemOptions(
            state=None if state is None else Path(state),
            mode=None if mode is None else parse_mode(mode),
            server_name=server_name,
            include_citation=include_citation,
            attempt_id=None if attempt_id is None else checked_attempt_id(attempt_id, "attempt_id"),
            label=label,
        )
        return problem_server(_with_citation_mode(self.manifest, citation_mode), options, many=many)

    async def replay(self, attempt_id: str, *, state: Path | str | None = None) -> Replayed:
        """Scores an attempt at this problem again from its log, without its server; does not change the ledger.

        Raises `AttemptNotFound`, and `InvalidArgument` if there is nothing to score.
        """
        from pursuit.ledger.opening import open_ledger  # noqa: PLC0415 - serving needs none of it
        from pursuit.problems.comparison import replay  # noqa: PLC0415
        from pursuit.sandbox.sandbox import Sandbox  # noqa: PLC0415

        path = locate_state(state, None)
        if not path.exists():
            raise AttemptNotFound(f"there is no ledger at {path}, so there is no attempt", attempt_id=attempt_id[:100])
        ledger = open_ledger(path)
        try:
            found = await load_attempt(ledger, attempt_id)
        finally:
            await ledger.close()
        if found.opened.problem_id != self.problem_id:
            raise InvalidArgument(f"{attempt_id} is an attempt at {found.opened.problem_id!r}, not {self.problem_id!r}")
        async with Sandbox() as sandbox:
            return await replay(self.manifest, found, sandbox)


def _with_citation_mode(problem: Manifest, mode: CitationMode | None) -> Manifest:
    if mode is None:
        return problem
    if mode not in get_args(CitationMode):
        raise InvalidArgument(f"citation_mode: {mode!r} is not one of {', '.join(get_args(CitationMode))}")
    lacks = [
        place for place, one in enumerate(problem.citations) if mode in ("raw", "summary") and not getattr(one, mode)
    ]
    if lacks:
        reason = f"is missing; citation_mode shows {mode}"
        raise ValidationFailed([Fault(field=f"citations[{place}].{mode}", reason=reason) for place in lacks])
    return replace(problem, visibility=replace(problem.visibility, citation_mode=mode))
