"""A `problem.toml`: brief, tools, submission schema, judge and limits.

Invariant: a `Manifest` that was read is consistent; only `scorer` and `baseline` hold content that an agent may never
see.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
    refusing,
    rules,
)
from pursuit.problems.files import file_of, is_folder
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
"""The name of the problem's own server."""

Kind = Literal["text", "decision", "optimization", "mcp", "coding"]
KINDS: tuple[Kind, ...] = get_args(Kind)
CitationMode = Literal["summary", "summary+raw", "raw"]

PROBLEM_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
ID_WORDS = "lower-case letters, digits, '.', '_' and '-', at most 64"
TAG = re.compile(r"[a-z0-9][a-z0-9 _-]{0,39}")
_ADDRESS = re.compile(r"https?://[^\s/?#]+[^\s]*", re.IGNORECASE)
SHORTEST_WALL, MAX_WALL = 0.001, 1_000_000_000
MAX_SCHEMA = 128 * 1024
MAX_TITLE, MAX_SUMMARY, MAX_STATEMENT = 120, 500, 64_000


def scan_markdown(text: str) -> tuple[str | None, str | None]:
    """The first heading of the first level, and the fence of an unclosed code block; None for each that is missing."""
    from markdown_it import MarkdownIt  # noqa: PLC0415 - rich needs it anyway; most commands read no manifest

    heading = fence = None
    tokens = MarkdownIt("commonmark").parse(f"{text}\n")
    for place, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag == "h1":
            heading = heading or tokens[place + 1].content or token.markup
        elif token.type == "fence" and token.map is not None:
            first, last = token.map
            fence = token.markup if last - first < token.content.count("\n") + 2 else fence
        for one in (token, *(token.children or ())):
            if one.type in ("html_block", "html_inline") and "<h1" in one.content.lower():
                heading = heading or one.content.strip()
    return heading, fence


def _markdown(text: str) -> Iterator[Broken]:
    """Reports a second title, and a code block that would swallow the rest of the brief."""
    heading, fence = scan_markdown(text)
    if heading is not None:
        shown = f"contains the first-level heading {heading[:60]!r}"
        yield Broken(f"{shown}; only the title is a first-level heading, so begin with ##")
    if fence is not None:
        yield Broken(f"contains a code block that is not closed; end it with {fence[:20]}")


def _brief(most: int, *, one_line: bool = True, markdown: bool = True) -> AfterValidator:

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


Source = Annotated[Filled, refusing(_markdown)]
_BEGINS = "must begin with https://, http:// or doi:"
_BLANKS = "contains blanks or characters that cannot be printed"


def _folder(name: str, info: ValidationInfo) -> str:
    if not is_folder(Reading.of(info).folder, name):
        raise ValueError(f"folder {name[:80]!r} does not exist")
    return name


def _citation_rules(given: Mapping[str, Any], _info: ValidationInfo) -> Iterator[Broken]:
    if "summary" not in given and "raw" not in given:
        yield Broken("needs a summary or raw")


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
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
        yield Broken("needs a [server] that offers these tools", "evaluation_tools")


_wall = must(
    lambda seconds: SHORTEST_WALL <= seconds <= MAX_WALL,
    f"must be from {SHORTEST_WALL} to {MAX_WALL:,} seconds",
)
_tool = must(lambda name: name.strip() and name.isprintable(), "{!r} is not a valid tool name")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The budgets of an attempt, and how many `attempts` a caller has; None is unlimited.

    Calls of `evaluation_tools` count as evaluations.
    """

    calls: PositiveWhole | None = None
    evaluations: PositiveWhole | None = None
    wall_seconds: Annotated[Positive, _wall] | None = None
    evaluation_tools: tuple[Annotated[str, _tool], ...] = ()
    attempts: PositiveWhole | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    """The information that agents see, and whether all clients work on one attempt.

    With `target`, agents may know the targets. `public` is ignored; older manifests have it.
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
    NEEDED: ClassVar[Mapping[str, str]] = {"proposer": "give a table with kind search or script"}

    proposer: Annotated[Mapping[str, Any], AfterValidator(_proposer)]
    max_iterations: PositiveWhole = 500
    max_wall_clock_seconds: Annotated[Positive, AfterValidator(float)] = 300.0


_problem_id = must(PROBLEM_ID.fullmatch, f"{{!r}} must consist of {ID_WORDS}")
_tag = must(TAG.fullmatch, "{!r} must consist of lower-case letters, digits, ' ', '_' and '-'")


def _asset(name: str, info: ValidationInfo) -> str:
    found = file_of(Reading.of(info).folder, name)
    if isinstance(found, str):
        raise ValueError(found)
    if not os.access(found, os.R_OK):
        raise ValueError(f"{name!r} cannot be read")
    return normpath(name)


def _cited(one: Citation, info: ValidationInfo) -> Citation:
    mode = Reading.of(info).citation_mode
    if mode in ("raw", "summary") and getattr(one, mode) is None:
        refuse([Broken(f"is missing; citation_mode shows {mode}", mode)])
    # Text that becomes a heading only below the other part, such as a row of =.
    if mode == "summary+raw" and scan_markdown(f"{one.summary or ''}\n{one.raw or ''}")[0] is not None:
        refuse([Broken("makes the summary a heading of the first level; do not begin with =", "raw")])
    return one


def _server(value: object, info: ValidationInfo) -> ServerConfig:
    reading = Reading.of(info)
    config = ServerConfig.of(read_inside(ServerTable, value, info), UPSTREAM, reading.folder)
    refuse(_wrong_place(config, reading))
    # Without a `cwd` it runs in the manifest's folder, independent of the client's folder.
    cwd = "." if config.transport == "stdio" and config.cwd is None else config.cwd
    return config.model_copy(update={"cwd": cwd, "operators": False})


def _wrong_place(config: ServerConfig, reading: Reading) -> Iterator[Broken]:
    if config.url is not None and "${" not in config.url and not _ADDRESS.fullmatch(config.url):
        yield Broken("must begin with https:// or http://", "url")
    if config.cwd is not None and "${" not in config.cwd and not is_folder(reading.folder, config.cwd):
        yield Broken(f"folder {config.cwd[:80]!r} does not exist", "cwd")
    if config.transport == "stdio" and config.cwd is None:
        command = [config.command or "", *config.args]
        wrong = command_fault(command, reading.folder, judges=False)
        if wrong is not None and not any("${" in word for word in command):
            yield Broken(wrong[1], ("args", wrong[0] - 1) if wrong[0] else "command")


def _wrong_schema(schema: Mapping[str, Any]) -> Iterator[Broken]:
    if not schema:
        yield Broken("is empty; give a JSON Schema, or omit it for free text")
        return
    if schema.get("type") != "object":
        yield Broken('must be "object": a submission has named parts', "type")
    wrong = [*unlike_json(schema)]
    yield from wrong
    if wrong:
        return
    try:
        size = len(json.dumps(schema, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        return  # the manifest reports lone surrogates, wherever they are
    if size > MAX_SCHEMA:
        yield Broken(f"has {size} bytes as JSON; at most {MAX_SCHEMA}")
        return
    from pursuit.core.validation import schema_faults  # noqa: PLC0415 - slow to load, and often not needed

    for at, why in schema_faults(schema):
        if at != "type" or schema.get("type") == "object":
            yield Broken(f"is not a valid JSON Schema: {why}", at or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}
    NEEDED: ClassVar[Mapping[str, str]] = {
        "kind": f"give one of {', '.join(KINDS)}",
        "scorer": f"a problem needs a judge: kind = {' or '.join(SCORER_KINDS)}",
    }

    path: Annotated[Path, Field(exclude=True)]
    problem_id: Annotated[Filled, _problem_id]
    title: Annotated[Filled, _brief(MAX_TITLE, markdown=False)]
    summary: Annotated[Filled, _brief(MAX_SUMMARY)]
    kind: Kind
    statement: Annotated[Filled, _brief(MAX_STATEMENT, one_line=False)]
    scorer: Annotated[Scorer, rules(scorer_rules)]
    tags: Annotated[tuple[Annotated[str, _tag], ...], once()] = ()
    citations: tuple[Annotated[Citation, rules(_citation_rules), AfterValidator(_cited)], ...] = ()
    assets: Annotated[tuple[Annotated[str, AfterValidator(_asset)], ...], once(normpath)] = ()
    server: Annotated[ServerConfig, PlainValidator(_server)] | None = None
    submission: Annotated[Mapping[str, Any], refusing(_wrong_schema)] | None = None
    budget: Annotated[Limits, rules(_limits_rules)] = Limits()
    visibility: Visibility = Visibility()
    baseline: Baseline | None = None
    repository: Repository | None = None
    digest: Annotated[str, Field(exclude=True)] = ""
    """The sha256 of the manifest file."""

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def primary(self) -> Metric:
        return self.scorer.metrics[0]

    def summary_row(self) -> dict[str, Any]:
        return {
            "problem_id": self.problem_id,
            "title": self.title,
            "kind": self.kind,
            "tags": list(self.tags),
            "summary": self.summary,
        }


def manifest_rules(given: Mapping[str, Any], _info: ValidationInfo) -> Iterator[Broken]:
    kind = given.get("kind")
    if kind == "mcp" and "server" not in given:
        yield Broken("is missing; a problem of kind mcp needs it", "server")
    if (kind == "coding") != ("repository" in given):
        yield Broken("goes with kind coding: give both or neither", "repository")
    if kind == "coding" and "files" not in table_of(table_of(given, "submission"), "properties"):
        yield Broken("must have files: the files that a coding agent changed, by path", "submission")
    metrics = rows_of(table_of(given, "scorer"), "metrics")
    if kind == "optimization" and metrics and "direction" not in metrics[0][1]:
        yield Broken("is missing; an optimization needs minimize or maximize", ("scorer", "metrics", 0, "direction"))


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def plain_number(value: float) -> str:
    """A number with all of its digits, without an exponent."""
    return format(Decimal(repr(value)), "f").removesuffix(".0")
