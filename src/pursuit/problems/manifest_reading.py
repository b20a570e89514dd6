"""Reads a `problem.toml`; its `[scorer]` is read by `scorer_reading`.

Invariant: every fault of a file at once, each with file, field and reason; nothing is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from posixpath import normpath
from typing import Any

from pursuit.config.files import Fields, as_table, parse_toml, read_text, unreadable
from pursuit.config.servers import ServerConfig, parse_servers
from pursuit.core.patterns import SyntaxProblem, checked_script
from pursuit.errors import Fault, ValidationFailed
from pursuit.problems.files import cannot_open, file_of, is_folder, not_a_file, text_of
from pursuit.problems.manifest import (
    CITATION_MODES,
    KINDS,
    UPSTREAM,
    Baseline,
    Citation,
    Limits,
    Manifest,
    Repository,
    Scorer,
    Visibility,
    digest_of,
)
from pursuit.problems.scorer_reading import (
    check_plain,
    check_texts,
    command_fault,
    plain_copy,
    read_list,
    read_scorer,
)
from pursuit.problems.secrecy import check_assets

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


PROBLEM_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
ID_WORDS = "lower-case letters, digits, '.', '_' and '-', at most 64"
TAG = re.compile(r"[a-z0-9][a-z0-9 _-]{0,39}")
_ADDRESS = re.compile(r"https?://[^\s/?#]+[^\s]*", re.IGNORECASE)
KEYS = (
    "problem_id", "title", "summary", "kind", "statement", "tags", "citations", "assets", "server", "submission",
    "scorer", "budget", "visibility", "baseline", "repository",
)  # fmt: skip
CITATION_KEYS = ("summary", "raw", "url")
BUDGET_KEYS = ("calls", "evaluations", "wall_seconds", "evaluation_tools", "attempts")
BASELINE_KEYS = ("proposer", "max_iterations", "max_wall_clock_seconds")
BASELINE_PROPOSERS = ("search", "script")
SCRIPT_KEYS = ("kind", "file", "script")
REPOSITORY_KEYS = ("path", "check", "protect")
VISIBILITY_KEYS = ("score", "target", "public", "citation_mode", "shared_attempt")
SHORTEST_WALL, LONGEST_WALL = 0.001, 1_000_000_000
LARGEST_SCHEMA = 128 * 1024
LONGEST_TITLE, LONGEST_SUMMARY, LONGEST_STATEMENT = 120, 500, 64_000


def read_manifest(path: Path) -> Manifest:
    """The problem in a file, or `ValidationFailed` with every fault."""
    wrong = not_a_file(path)
    if wrong is not None:
        raise unreadable(str(path), wrong)
    text = read_text(path)
    manifest, faults = parse_manifest(parse_toml(text, source=str(path)), path)
    if manifest is None or faults:
        count = len(faults)
        raise ValidationFailed(faults, f"{path} has {count} fault{'' if count == 1 else 's'}")
    return replace(manifest, digest=digest_of(text))


def parse_manifest(
    table: Mapping[str, Any], path: Path, *, confined: bool = True
) -> tuple[Manifest | None, list[Fault]]:
    """The problem in a table, and its faults; no problem if there are any.

    What has no folder of its own is not `confined`: its server may be a file anywhere.
    """
    faults: list[Fault] = []
    given = Fields(table, at="", source=str(path), faults=faults)
    root = Fields(plain_copy(given), at="", source=str(path), faults=faults)
    manifest = _parsed(root, path, confined=confined)
    return (None if faults else manifest), faults


def _parsed(root: Fields, path: Path, *, confined: bool) -> Manifest:
    table = root.table
    root.only(KEYS)
    check_texts(root)
    problem_id = root.text("problem_id", needed=True) or ""
    if problem_id and not PROBLEM_ID.fullmatch(problem_id):
        root.fault("problem_id", f"{problem_id[:80]!r} must be made of {ID_WORDS}")
    server = _server(root, path, confined=confined)
    scorer = read_scorer(root, path.parent, has_server="server" in table)
    manifest = Manifest(
        path=path.resolve(),
        problem_id=problem_id,
        title=_words(root, "title", LONGEST_TITLE),
        summary=_words(root, "summary", LONGEST_SUMMARY),
        kind=root.word("kind", KINDS, needed=True) or "text",
        statement=_words(root, "statement", LONGEST_STATEMENT),
        scorer=scorer or Scorer(kind="predicates", metrics=()),
        tags=read_list(root, "tags", _wrong_tag),
        citations=_citations(root),
        assets=read_list(root, "assets", lambda name: _wrong_asset(path.parent, name), normpath),
        server=server,
        submission=_submission(root),
        budget=_budget(root),
        visibility=_visibility(root),
        baseline=_baseline(root, path.parent),
        repository=_repository(root, path.parent),
    )
    _between(root, manifest, table)
    check_assets(root, manifest)
    return manifest


def _words(root: Fields, key: str, longest: int) -> str:
    """A text of the brief; the title and the summary are one line."""
    text = (root.text(key, needed=True) or "").strip()
    if key != "statement" and len(text.splitlines()) > 1:
        root.fault(key, "must be one line")
    elif len(text) > longest:
        root.fault(key, f"has {len(text)} characters; at most {longest}")
    if key != "title":
        _check_markdown(root, key, text)
    return text


def _check_markdown(fields: Fields, key: str, text: str) -> None:
    """A fault for a second title, and for a code block that would swallow the rest of the brief."""
    heading, fence = scan_markdown(text)
    if heading is not None:
        shown = f"has a heading of the first level, {heading[:60]!r}"
        fields.fault(key, f"{shown}; the title is the brief's only one, so begin with ##")
    if fence is not None:
        fields.fault(key, f"has a code block that is not closed; end it with {fence[:20]}")


def _wrong_tag(tag: str) -> str | None:
    return None if TAG.fullmatch(tag) else f"{tag[:60]!r} must be made of lower-case letters, digits, ' ', '_' and '-'"


def _citations(root: Fields) -> tuple[Citation, ...]:
    found: list[Citation] = []
    for fields in root.rows("citations", CITATION_KEYS):
        citation = Citation(summary=fields.text("summary"), raw=fields.text("raw"), url=fields.text("url"))
        if "summary" not in fields.table and "raw" not in fields.table:
            fields.fault("", "needs a summary or raw")
        if citation.url is not None and not citation.url.startswith(("https://", "http://", "doi:")):
            fields.fault("url", "must begin with https://, http:// or doi:")
        elif citation.url is not None and (" " in citation.url or not citation.url.isprintable()):
            fields.fault("url", "has blanks or characters that cannot be printed")
        for part in ("summary", "raw"):
            _check_markdown(fields, part, getattr(citation, part) or "")
        found.append(citation)
    return tuple(found)


def _wrong_asset(folder: Path, name: str) -> str | None:
    found = file_of(folder, name)
    if isinstance(found, str):
        return found
    why = cannot_open(found)
    return None if why is None else f"{name!r} {why}"


def _server(root: Fields, path: Path, *, confined: bool) -> ServerConfig | None:
    if "server" not in root.table:
        return None
    found, faults = parse_servers(
        {"server": root.table["server"]}, source=root.source, base=path.resolve().parent, prefix=""
    )
    root.faults.extend(replace(fault, field=fault.field.removeprefix(".")) for fault in faults)
    config = found.get("server")
    if config is None:
        return None
    fields = root.inside("server")
    if config.url is not None and "${" not in config.url and not _ADDRESS.fullmatch(config.url):
        fields.fault("url", "must be an address that begins with https:// or http://")
    if config.cwd is not None and "${" not in config.cwd and not is_folder(path.parent, config.cwd):
        fields.fault("cwd", f"there is no folder {config.cwd[:80]!r}")
    if config.transport == "stdio" and config.cwd is None:
        command = [config.command or "", *config.args]
        wrong = command_fault(command, path.parent, confined=confined, judges=False)
        if wrong is not None and not any("${" in word for word in command):
            fields.fault("command" if wrong[0] == 0 else f"args[{wrong[0] - 1}]", wrong[1])
        config = replace(config, cwd=".")  # of the manifest's folder, wherever one stands
    return replace(config, name=UPSTREAM, operators=False)


def _submission(root: Fields) -> Mapping[str, Any] | None:
    if "submission" not in root.table:
        return None
    schema = root.subtable("submission")
    if not schema:
        if as_table(root.table["submission"]) is not None:
            root.fault("submission", "is empty; give a JSON Schema, or leave it out for free text")
        return None
    if schema.get("type") != "object":
        root.fault("submission.type", 'must be "object": a submission has named parts')
    if check_plain(root, "submission", schema):
        size = len(json.dumps(schema, ensure_ascii=False).encode())
        if size > LARGEST_SCHEMA:
            root.fault("submission", f"has {size} bytes as JSON; at most {LARGEST_SCHEMA}")
            return None
        from pursuit.core.validation import schema_faults  # noqa: PLC0415 - slow to load, and many have none

        for place, reason in schema_faults(schema):
            at = f"submission.{place}" if place else "submission"
            if at != "submission.type" or schema.get("type") == "object":
                root.fault(at, f"is no JSON Schema: {reason}")
    return schema


def _budget(root: Fields) -> Limits:
    fields = root.inside("budget")
    fields.only(BUDGET_KEYS)
    calls, evaluations, attempts = (fields.number(key, whole=True) for key in ("calls", "evaluations", "attempts"))
    if "evaluations" in fields.table and fields.table.get("evaluation_tools", []) == []:
        state = "empty" if "evaluation_tools" in fields.table else "missing"
        fields.fault("evaluation_tools", f"is {state}; name the tools whose calls are evaluations")
    seconds = fields.number("wall_seconds")
    if seconds is not None and not SHORTEST_WALL <= seconds <= LONGEST_WALL:
        fields.fault("wall_seconds", f"must be from {SHORTEST_WALL} to {LONGEST_WALL:,} seconds")
    return Limits(
        calls=None if calls is None else int(calls),
        evaluations=None if evaluations is None else int(evaluations),
        wall_seconds=seconds,
        evaluation_tools=read_list(fields, "evaluation_tools", _wrong_tool, same=None),
        attempts=None if attempts is None else int(attempts),
    )


def as_names(schema: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The parts that a submission has."""
    return as_table((schema or {}).get("properties")) or {}


def _wrong_tool(name: str) -> str | None:
    return None if name.strip() and name.isprintable() else f"{name[:60]!r} is no name of a tool"


def _visibility(root: Fields) -> Visibility:
    fields = root.inside("visibility")
    fields.only(VISIBILITY_KEYS)
    return Visibility(
        score=fields.flag("score") or False,
        target=fields.flag("target") or False,
        public=fields.texts("public") or (),
        citation_mode=fields.word("citation_mode", CITATION_MODES) or "summary",
        shared_attempt=fields.flag("shared_attempt") or False,
    )


def _repository(root: Fields, folder: Path) -> Repository | None:
    if "repository" not in root.table:
        return None
    fields = root.inside("repository")
    fields.only(REPOSITORY_KEYS)
    path = fields.text("path", needed=True) or "."
    if not is_folder(folder, path):
        fields.fault("path", f"there is no folder {path[:80]!r}")
    return Repository(path=path, check=fields.texts("check") or (), protect=fields.texts("protect") or ())


def _between(root: Fields, manifest: Manifest, table: Mapping[str, Any]) -> None:
    """Checks what one part of a manifest requires of another."""
    if manifest.kind == "mcp" and "server" not in table:
        root.fault("server", "is missing; a problem of kind mcp has one")
    if (manifest.kind == "coding") != (manifest.repository is not None):
        root.fault("repository", "goes with kind coding: give both or neither")
    if manifest.kind == "coding" and "files" not in as_names(manifest.submission):
        root.fault("submission", "must have files: what a coding agent changed, by its path")
    if manifest.kind == "optimization" and manifest.scorer.metrics and manifest.primary.direction is None:
        root.fault("scorer.metrics[0].direction", "is missing; an optimization has minimize or maximize")
    if manifest.budget.evaluation_tools and "server" not in table:
        root.fault("budget.evaluation_tools", "there is no server whose tools these could be")
    mode = manifest.visibility.citation_mode
    wanted = {"raw": ("raw",), "summary": ("summary",)}.get(mode, ())
    for place, citation in enumerate(manifest.citations):
        if any(fault.field.startswith(f"citations[{place}]") for fault in root.faults):
            continue
        for part in wanted:
            if getattr(citation, part) is None:
                root.fault(f"citations[{place}].{part}", f"is missing; citation_mode shows {part}")
        # What is a heading only below the other part, such as a row of =.
        if mode == "summary+raw" and scan_markdown(f"{citation.summary or ''}\n{citation.raw or ''}")[0] is not None:
            root.fault(f"citations[{place}].raw", "makes the summary a heading of the first level; do not begin with =")


def _baseline(root: Fields, folder: Path) -> Baseline | None:
    """The baseline of a manifest, if it has one."""
    if "baseline" not in root.table:
        return None
    fields = root.inside("baseline")
    fields.only(BASELINE_KEYS)
    proposer = fields.inside("proposer")
    if "proposer" not in fields.table:
        if as_table(root.table["baseline"]) is not None:
            fields.fault("proposer", "is missing; give a table with kind search or script")
    elif as_table(fields.table["proposer"]) is not None:
        chosen = proposer.word("kind", BASELINE_PROPOSERS, needed=True)
        if chosen == "script":
            _check_script(proposer, folder)
        elif chosen == "search":
            _check_search(proposer)
    most, seconds = fields.number("max_iterations", whole=True), fields.number("max_wall_clock_seconds")
    return Baseline(
        proposer=dict(proposer.table),
        max_iterations=500 if most is None else int(most),
        max_wall_clock_seconds=300.0 if seconds is None else float(seconds),
    )


def _check_script(proposer: Fields, folder: Path) -> None:
    proposer.only(SCRIPT_KEYS)
    file, script = proposer.text("file"), proposer.text("script")
    if ("file" in proposer.table) == ("script" in proposer.table):
        proposer.fault("file", "give exactly one of file and script")
    if file is not None:
        path = file_of(folder, file)
        script = None if isinstance(path, str) else text_of(path)
        if script is None:
            proposer.fault("file", path if isinstance(path, str) else f"{file!r} is no text that could be a script")
    if script is not None:
        try:
            checked_script(script)
        except SyntaxProblem as problem:
            proposer.fault("script" if file is None else "file", str(problem))


def _check_search(proposer: Fields) -> None:
    from pydantic import ValidationError  # noqa: PLC0415 - only a baseline that searches needs it

    from pursuit.core.base_model import faults_of  # noqa: PLC0415
    from pursuit.core.search import SearchProposer  # noqa: PLC0415

    if "tool" not in proposer.table and "tool_name" not in proposer.table:
        proposer.fault("tool", "is missing; name the tool whose arguments are searched")
        return
    try:
        SearchProposer.model_validate(dict(proposer.table))
    except ValidationError as error:
        for fault in faults_of(error, SearchProposer, source=proposer.source):
            proposer.faults.append(replace(fault, field=f"{proposer.at}.{fault.field}"))
