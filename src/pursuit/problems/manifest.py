"""The values that a `problem.toml` stands for: brief, tools, submission schema, judge and limits.

The annotations are what a file may say; `manifest_reading` checks the rest. Invariant: a `Manifest` is consistent; what
an agent may never see is in `scorer` and `baseline`, and nowhere else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast, get_args

from pydantic import AfterValidator, ConfigDict, Field

from pursuit.config.servers import ServerConfig
from pursuit.config.surroundings import IsolationKey
from pursuit.core.base_model import AnyNumber, Filled, Flag, NotNegative, Positive, PositiveWhole

MANIFEST = "problem.toml"
UPSTREAM = "upstream"
"""What the problem's own server is called where servers have names."""

Kind = Literal["text", "decision", "optimization", "mcp", "coding"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Direction = Literal["minimize", "maximize"]
ScorerKind = Literal["function", "command", "predicates", "tool"]
SCORER_KINDS: tuple[ScorerKind, ...] = get_args(ScorerKind)
CitationMode = Literal["summary", "summary+raw", "raw"]
CommandOutput = Literal["json", "exit_code"]
Real = Annotated[AnyNumber, AfterValidator(float)]


BriefText = Annotated[Filled, AfterValidator(str.strip)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """A source: in our words, as the literature has it, and where it is found."""

    summary: Filled | None = None
    raw: Filled | None = None
    url: Filled | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One number of a score. `target` is what counts as solved, `best_known` what the literature reached."""

    name: Annotated[Filled, Field(alias="metric")]
    unit: Filled = ""
    direction: Direction | None = None
    target: Real | None = None
    best_known: Real | None = None

    def met(self, value: float) -> bool:
        """Whether a value reaches the target; without a target every value does."""
        if self.target is None:
            return True
        return value >= self.target if self.direction == "maximize" else value <= self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringRule:
    """One expression over the submission, and the metric that it gives."""

    metric: Filled
    expression: Filled


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """The judge. Only what goes with its kind is there; every constraint holds at or below `tolerance`.

    `files` are paths or globs, relative to the manifest, of what else it reads or imports.
    """

    NEEDED: ClassVar[Mapping[str, str]] = {
        "kind": f"give one of {', '.join(SCORER_KINDS)}",
        "metrics": "give [[scorer.metrics]], the one that attempts are compared by first",
    }

    kind: ScorerKind
    metrics: tuple[Metric, ...]
    constraints: tuple[str, ...] = ()
    tolerance: Annotated[NotNegative, AfterValidator(float)] = 0.0
    timeout: Positive = 60.0
    function: Filled | None = None
    command: tuple[str, ...] = ()
    output: CommandOutput = "json"
    predicates: tuple[ScoringRule, ...] = ()
    tool: Filled | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    isolation: IsolationKey | None = None
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """The files that a coding agent starts from: a folder beside the manifest.

    `check` is a command that the agent may know, such as the visible tests; changes to `protect` never count.
    """

    path: Filled
    check: tuple[str, ...] = ()
    protect: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an attempt may use, and how many `attempts` a caller has; None is no limit.

    Calls of `evaluation_tools` count as evaluations.
    """

    calls: PositiveWhole | None = None
    evaluations: PositiveWhole | None = None
    wall_seconds: Positive | None = None
    evaluation_tools: tuple[str, ...] = ()
    attempts: PositiveWhole | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    """What an agent sees, and whether all clients work at one attempt.

    With `target` the author says that agents may know the targets. `public` has no effect; older manifests have it.
    """

    score: Flag = False
    target: Flag = False
    public: tuple[str, ...] = ()
    citation_mode: CitationMode = "summary"
    shared_attempt: Flag = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A mission that solves it: who proposes, and for how long."""

    NEEDED: ClassVar[Mapping[str, str]] = {"proposer": "give a table with kind search or script"}

    proposer: Mapping[str, Any]
    max_iterations: PositiveWhole = 500
    max_wall_clock_seconds: Annotated[Positive, AfterValidator(float)] = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One problem; `path` is its file."""

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}
    NEEDED: ClassVar[Mapping[str, str]] = {
        "kind": f"give one of {', '.join(KINDS)}",
        "scorer": f"a problem needs a judge: kind = {' or '.join(SCORER_KINDS)}",
    }

    path: Annotated[Path, Field(exclude=True)]
    problem_id: Filled
    title: BriefText
    summary: BriefText
    kind: Kind
    statement: BriefText
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
    digest: Annotated[str, Field(exclude=True)] = ""
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
