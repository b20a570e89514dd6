"""The values that a `problem.toml` stands for: brief, tools, submission schema, judge and limits.

Invariant: a `Manifest` is consistent; what an agent may never see is in `scorer` and `baseline`, and nowhere else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, cast, get_args

from pursuit.config.servers import ServerConfig
from pursuit.config.surroundings import Isolation

MANIFEST = "problem.toml"
UPSTREAM = "upstream"
"""What the problem's own server is called where servers have names."""

Kind = Literal["text", "decision", "optimization", "mcp", "coding"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Direction = Literal["minimize", "maximize"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
ScorerKind = Literal["function", "command", "predicates", "tool"]
SCORER_KINDS: tuple[ScorerKind, ...] = get_args(ScorerKind)
CitationMode = Literal["summary", "summary+raw", "raw"]
CITATION_MODES: tuple[CitationMode, ...] = get_args(CitationMode)
CommandOutput = Literal["json", "exit_code"]
COMMAND_OUTPUTS: tuple[CommandOutput, ...] = get_args(CommandOutput)


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """A source: in our words, as the literature has it, and where it is found."""

    summary: str | None = None
    raw: str | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One number of a score. `target` is what counts as solved, `best_known` what the literature reached."""

    name: str
    unit: str = ""
    direction: Direction | None = None
    target: float | None = None
    best_known: float | None = None

    def met(self, value: float) -> bool:
        """Whether a value reaches the target; without a target every value does."""
        if self.target is None:
            return True
        return value >= self.target if self.direction == "maximize" else value <= self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One expression over the submission, and the metric that it gives."""

    metric: str
    expression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """The judge. Only what goes with its kind is there; every constraint holds at or below `tolerance`.

    `files` are paths or globs, relative to the manifest, of what else it reads or imports.
    """

    kind: ScorerKind
    metrics: tuple[Metric, ...]
    constraints: tuple[str, ...] = ()
    tolerance: float = 0.0
    timeout: float = 60.0
    function: str | None = None
    command: tuple[str, ...] = ()
    output: CommandOutput = "json"
    predicates: tuple[Rule, ...] = ()
    tool: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    isolation: Isolation | None = None
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """The files that a coding agent starts from: a folder beside the manifest.

    `check` is a command that the agent may know, such as the visible tests; changes to `protect` never count.
    """

    path: str
    check: tuple[str, ...] = ()
    protect: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an attempt may use, and how many `attempts` a caller has; None is no limit.

    Calls of `evaluation_tools` count as evaluations.
    """

    calls: int | None = None
    evaluations: int | None = None
    wall_seconds: float | None = None
    evaluation_tools: tuple[str, ...] = ()
    attempts: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    """What an agent sees, and whether all clients work at one attempt.

    With `target` the author says that agents may know the targets. `public` has no effect; older manifests have it.
    """

    score: bool = False
    target: bool = False
    public: tuple[str, ...] = ()
    citation_mode: CitationMode = "summary"
    shared_attempt: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A mission that solves it: who proposes, and for how long."""

    proposer: Mapping[str, Any]
    max_iterations: int = 500
    max_wall_clock_seconds: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One problem; `path` is its file."""

    path: Path
    problem_id: str
    title: str
    summary: str
    kind: Kind
    statement: str
    scorer: Scorer
    tags: tuple[str, ...] = ()
    citations: tuple[Citation, ...] = ()
    assets: tuple[str, ...] = ()
    server: ServerConfig | None = None
    submission: Mapping[str, Any] | None = None
    budget: Limits = Limits()
    visibility: Visibility = Visibility()
    baseline: Baseline | None = None
    repository: Repository | None = None
    digest: str = ""
    """The sha256 of the manifest's own bytes."""

    @property
    def folder(self) -> Path:
        """Where its files lie."""
        return self.path.parent

    @property
    def primary(self) -> Metric:
        """The metric that attempts are compared by."""
        return self.scorer.metrics[0]

    def summary_row(self) -> dict[str, Any]:
        """What a listing shows."""
        return {
            "problem_id": self.problem_id,
            "title": self.title,
            "kind": self.kind,
            "tags": list(self.tags),
            "summary": self.summary,
        }


DEEPEST = 100
"""Levels of nested tables and lists that `walk` follows."""


def walk(value: object, at: str = "", depth: int = 0) -> Iterator[tuple[str, object, int]]:
    """The value and all values inside, in order, each with its place and its depth."""
    yield at, value, depth
    if depth == DEEPEST:
        return
    if isinstance(value, Mapping):
        for key, one in cast("Mapping[object, object]", value).items():
            yield from walk(one, f"{at}.{key}" if at else str(key), depth + 1)
    elif isinstance(value, list | tuple):
        for place, one in enumerate(cast("list[object]", value)):
            yield from walk(one, f"{at}[{place}]", depth + 1)


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8: it holds no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def digest_of(text: str) -> str:
    """The sha256 of a manifest's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def plain_number(value: float) -> str:
    """A number as people write it: all of its digits, without a power of ten."""
    return format(Decimal(repr(value)), "f").removesuffix(".0")
