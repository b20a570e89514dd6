"""A `problem.toml`: brief, tools, submission schema, judge and limits.

Invariant: a `Manifest` that was read is consistent; what an agent may never see is in `scorer` and `baseline`, and
nowhere else.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from posixpath import normpath
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator, ConfigDict, Field, PlainValidator, ValidationInfo

from pursuit.config.servers import ServerConfig, ServerTable
from pursuit.core.base_model import (
    Broken,
    Filled,
    Flag,
    Positive,
    PositiveWhole,
    must,
    read_inside,
    refuse,
    rules,
)
from pursuit.problems.files import cannot_open, file_of, is_folder
from pursuit.problems.scorer import (
    SCORER_KINDS,
    Metric,
    Reading,
    Scorer,
    command_fault,
    once,
    rows_of,
    scorer_rules,
    table_of,
    unlike_json,
)

MANIFEST = "problem.toml"
UPSTREAM = "upstream"
"""What the problem's own server is called where servers have names."""

Kind = Literal["text", "decision", "optimization", "mcp", "coding"]
KINDS: tuple[Kind, ...] = get_args(Kind)
CitationMode = Literal["summary", "summary+raw", "raw"]

PROBLEM_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
ID_WORDS = "lower-case letters, digits, '.', '_' and '-', at most 64"
TAG = re.compile(r"[a-z0-9][a-z0-9 _-]{0,39}")
_ADDRESS = re.compile(r"https?://[^\s/?#]+[^\s]*", re.IGNORECASE)
SHORTEST_WALL, LONGEST_WALL = 0.001, 1_000_000_000
LARGEST_SCHEMA = 128 * 1024
LONGEST_TITLE, LONGEST_SUMMARY, LONGEST_STATEMENT = 120, 500, 64_000

# Headings of the first level in Markdown, outside of code. The marks of quotes and lists are peeled off one by one and
# never tried again: thousands in a row take no time.
_MARK = re.compile(r" {0,3}(?:>|[-*+]|\d{1,9}[.)])[ \t]?")
_FENCE = re.compile(r" {0,3}(?P<marks>`{3,}|~{3,})(?P<rest>.*)")
_HASHED = re.compile(r" {0,3}#(?:[ \t]|$)")
_UNDERLINE = re.compile(r" {0,3}=+[ \t]*$")
_HTML = re.compile(r"<h1[\s>/]", re.IGNORECASE)
_CODE = re.compile(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)")
_LINE_ENDS = re.compile(r"\r\n|\r|\n")


def scan_markdown(text: str) -> tuple[str | None, str | None]:
    """The first heading of the first level, and the fence of a code block that is not closed; None without one."""
    fence = before = ""
    heading: str | None = None
    for line in _LINE_ENDS.split(text):
        within = _peeled(line)
        found = _FENCE.match(within)
        if fence:
            if found is not None and found["marks"].startswith(fence) and not found["rest"].strip():
                fence = ""
            before = ""
            continue
        if found is not None and not (found["marks"][0] == "`" and "`" in found["rest"]):
            fence, before = found["marks"], ""
            continue
        if _HASHED.match(within) or (_HTML.search(line) and _HTML.search(_CODE.sub("", line))):
            heading = heading or line.strip()
        if _UNDERLINE.match(within) and before.strip():
            heading = heading or before.strip()
        before = line
    return heading, fence or None


def _peeled(line: str) -> str:
    """A line without the marks of quotes and lists that it begins with."""
    at = 0
    while (mark := _MARK.match(line, at)) is not None:
        at = mark.end()
    return line[at:]


def _markdown(text: str) -> Iterator[Broken]:
    """A second title, and a code block that would swallow the rest of the brief."""
    heading, fence = scan_markdown(text)
    if heading is not None:
        shown = f"has a heading of the first level, {heading[:60]!r}"
        yield Broken(f"{shown}; the title is the brief's only one, so begin with ##")
    if fence is not None:
        yield Broken(f"has a code block that is not closed; end it with {fence[:20]}")


def _brief(most: int, *, one_line: bool = True, markdown: bool = True) -> AfterValidator:
    """A text of the brief."""

    def check(text: str) -> str:
        text = text.strip()
        wrong = [*_markdown(text)] if markdown else []
        if one_line and len(text.splitlines()) > 1:
            wrong.append(Broken("must be one line"))
        elif len(text) > most:
            wrong.append(Broken(f"has {len(text)} characters; at most {most}"))
        refuse(wrong)
        return text

    return AfterValidator(check)


def _source(text: str) -> str:
    refuse(_markdown(text))
    return text


Source = Annotated[Filled, AfterValidator(_source)]
_BEGINS = "must begin with https://, http:// or doi:"
_BLANKS = "has blanks or characters that cannot be printed"


def _folder(name: str, info: ValidationInfo) -> str:
    if not is_folder(Reading.of(info).folder, name):
        raise ValueError(f"there is no folder {name[:80]!r}")
    return name


def _citation_rules(given: Mapping[str, Any], _info: ValidationInfo) -> Iterator[Broken]:
    if "summary" not in given and "raw" not in given:
        yield Broken("needs a summary or raw")


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """A source: in our words, as the literature has it, and where it is found."""

    summary: Source | None = None
    raw: Source | None = None
    url: (
        Annotated[
            Filled,
            must(lambda text: text.startswith(("https://", "http://", "doi:")), _BEGINS),
            must(lambda text: " " not in text and text.isprintable(), _BLANKS),
        ]
        | None
    ) = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """The files that a coding agent starts from: a folder beside the manifest.

    `check` is a command that the agent may know, such as the visible tests; changes to `protect` never count.
    """

    path: Annotated[Filled, AfterValidator(_folder)]
    check: tuple[str, ...] = ()
    protect: tuple[str, ...] = ()


def _limits_rules(given: Mapping[str, Any], info: ValidationInfo) -> Iterator[Broken]:
    tools = given.get("evaluation_tools", [])
    if "evaluations" in given and tools == []:
        state = "empty" if "evaluation_tools" in given else "missing"
        yield Broken(f"is {state}; name the tools whose calls are evaluations", "evaluation_tools")
    if isinstance(tools, list) and tools and not Reading.of(info).has_server:
        yield Broken("there is no server whose tools these could be", "evaluation_tools")


def _wall(seconds: float) -> float:
    if not SHORTEST_WALL <= seconds <= LONGEST_WALL:
        raise ValueError(f"must be from {SHORTEST_WALL} to {LONGEST_WALL:,} seconds")
    return seconds


def _tool(name: str) -> str:
    if not name.strip() or not name.isprintable():
        raise ValueError(f"{name[:60]!r} is no name of a tool")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an attempt may use, and how many `attempts` a caller has; None is no limit.

    Calls of `evaluation_tools` count as evaluations.
    """

    calls: PositiveWhole | None = None
    evaluations: PositiveWhole | None = None
    wall_seconds: Annotated[Positive, AfterValidator(_wall)] | None = None
    evaluation_tools: tuple[Annotated[str, AfterValidator(_tool)], ...] = ()
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


def _proposer(given: Mapping[str, Any], info: ValidationInfo) -> Mapping[str, Any]:
    Reading.of(info).check_proposer(given, info)
    return given


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A mission that solves it: who proposes, and for how long."""

    NEEDED: ClassVar[Mapping[str, str]] = {"proposer": "give a table with kind search or script"}

    proposer: Annotated[Mapping[str, Any], AfterValidator(_proposer)]
    max_iterations: PositiveWhole = 500
    max_wall_clock_seconds: Annotated[Positive, AfterValidator(float)] = 300.0


def _problem_id(name: str) -> str:
    if not PROBLEM_ID.fullmatch(name):
        raise ValueError(f"{name[:80]!r} must be made of {ID_WORDS}")
    return name


def _tag(tag: str) -> str:
    if not TAG.fullmatch(tag):
        raise ValueError(f"{tag[:60]!r} must be made of lower-case letters, digits, ' ', '_' and '-'")
    return tag


def _asset(name: str, info: ValidationInfo) -> str:
    found = file_of(Reading.of(info).folder, name)
    if isinstance(found, str):
        raise ValueError(found)
    if why := cannot_open(found):
        raise ValueError(f"{name!r} {why}")
    return name


def _cited(one: Citation, info: ValidationInfo) -> Citation:
    """A source that has what the brief shows."""
    mode = Reading.of(info).citation_mode
    if mode in ("raw", "summary") and getattr(one, mode) is None:
        refuse([Broken(f"is missing; citation_mode shows {mode}", mode)])
    # What is a heading only below the other part, such as a row of =.
    if mode == "summary+raw" and scan_markdown(f"{one.summary or ''}\n{one.raw or ''}")[0] is not None:
        refuse([Broken("makes the summary a heading of the first level; do not begin with =", "raw")])
    return one


def _server(value: object, info: ValidationInfo) -> ServerConfig:
    reading = Reading.of(info)
    config = read_inside(ServerTable, value, info).config(UPSTREAM, reading.folder)
    refuse(_wrong_place(config, reading))
    # Without a `cwd` it runs in the manifest's folder, wherever the client stands.
    cwd = "." if config.transport == "stdio" and config.cwd is None else config.cwd
    return replace(config, cwd=cwd, operators=False)


def _wrong_place(config: ServerConfig, reading: Reading) -> Iterator[Broken]:
    if config.url is not None and "${" not in config.url and not _ADDRESS.fullmatch(config.url):
        yield Broken("must be an address that begins with https:// or http://", "url")
    if config.cwd is not None and "${" not in config.cwd and not is_folder(reading.folder, config.cwd):
        yield Broken(f"there is no folder {config.cwd[:80]!r}", "cwd")
    if config.transport == "stdio" and config.cwd is None:
        command = [config.command or "", *config.args]
        wrong = command_fault(command, reading.folder, confined=reading.confined, judges=False)
        if wrong is not None and not any("${" in word for word in command):
            yield Broken(wrong[1], ("args", wrong[0] - 1) if wrong[0] else "command")


def _submission(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    refuse(_wrong_schema(schema))
    return schema


def _wrong_schema(schema: Mapping[str, Any]) -> Iterator[Broken]:
    if not schema:
        yield Broken("is empty; give a JSON Schema, or leave it out for free text")
        return
    if schema.get("type") != "object":
        yield Broken('must be "object": a submission has named parts', "type")
    wrong = unlike_json(schema, "")
    yield from (Broken(why, at or None) for at, why in wrong.told)
    if not wrong.writable:
        return
    size = len(json.dumps(schema, ensure_ascii=False).encode())
    if size > LARGEST_SCHEMA:
        yield Broken(f"has {size} bytes as JSON; at most {LARGEST_SCHEMA}")
        return
    from pursuit.core.validation import schema_faults  # noqa: PLC0415 - slow to load, and many have none

    for at, why in schema_faults(schema):
        if at != "type" or schema.get("type") == "object":
            yield Broken(f"is no JSON Schema: {why}", at or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One problem; `path` is its file."""

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}
    NEEDED: ClassVar[Mapping[str, str]] = {
        "kind": f"give one of {', '.join(KINDS)}",
        "scorer": f"a problem needs a judge: kind = {' or '.join(SCORER_KINDS)}",
    }

    path: Annotated[Path, Field(exclude=True)]
    problem_id: Annotated[Filled, AfterValidator(_problem_id)]
    title: Annotated[Filled, _brief(LONGEST_TITLE, markdown=False)]
    summary: Annotated[Filled, _brief(LONGEST_SUMMARY)]
    kind: Kind
    statement: Annotated[Filled, _brief(LONGEST_STATEMENT, one_line=False)]
    scorer: Annotated[Scorer, rules(scorer_rules)]
    tags: Annotated[tuple[Annotated[str, AfterValidator(_tag)], ...], once()] = ()
    citations: tuple[Annotated[Citation, rules(_citation_rules), AfterValidator(_cited)], ...] = ()
    assets: Annotated[tuple[Annotated[str, AfterValidator(_asset)], ...], once(normpath)] = ()
    server: Annotated[ServerConfig, PlainValidator(_server)] | None = None
    submission: Annotated[Mapping[str, Any], AfterValidator(_submission)] | None = None
    budget: Annotated[Limits, rules(_limits_rules)] = Limits()
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


def manifest_rules(given: Mapping[str, Any], _info: ValidationInfo) -> Iterator[Broken]:
    """What the parts of a manifest require of each other."""
    kind = given.get("kind")
    if kind == "mcp" and "server" not in given:
        yield Broken("is missing; a problem of kind mcp has one", "server")
    if (kind == "coding") != ("repository" in given):
        yield Broken("goes with kind coding: give both or neither", "repository")
    if kind == "coding" and "files" not in table_of(table_of(given, "submission"), "properties"):
        yield Broken("must have files: what a coding agent changed, by its path", "submission")
    metrics = rows_of(table_of(given, "scorer"), "metrics")
    if kind == "optimization" and metrics and "direction" not in metrics[0][1]:
        yield Broken("is missing; an optimization has minimize or maximize", ("scorer", "metrics", 0, "direction"))


def digest_of(text: str) -> str:
    """The sha256 of a manifest's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def plain_number(value: float) -> str:
    """A number as people write it: all of its digits, without a power of ten."""
    return format(Decimal(repr(value)), "f").removesuffix(".0")
