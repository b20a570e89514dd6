"""Reads a `problem.toml`.

Owns: the keys of a manifest and what is wrong with one. Does not know: the scorer's keys (`scorer_reading`) or how
manifests are found. Invariant: every fault of a file at once, each with file, field and reason; nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec

from pursuit.errors import Fault, ValidationFailed
from pursuit.problems.manifest import (
    CITATION_MODES,
    KINDS,
    UPSTREAM,
    Baseline,
    Citation,
    Limits,
    Manifest,
    Scorer,
    Visibility,
    digest_of,
)
from pursuit.problems.scorer_reading import read_scorer
from pursuit.tools.documents import parse_toml, read_text
from pursuit.tools.fields import Fields, as_table, kind
from pursuit.tools.server_config import ServerConfig, parse_servers

PROBLEM_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
ID_WORDS = "lower-case letters, digits, '.', '_' and '-', at most 64"
TAG = re.compile(r"[a-z0-9][a-z0-9 _-]{0,39}")
KEYS = (
    "problem_id", "title", "summary", "kind", "statement", "tags", "citations", "assets", "server", "submission",
    "scorer", "budget", "visibility", "baseline",
)  # fmt: skip
CITATION_KEYS = ("summary", "raw", "url")
BUDGET_KEYS = ("calls", "evaluations", "wall_seconds", "evaluation_tools")
VISIBILITY_KEYS = ("score", "citation_mode", "shared_attempt")
BASELINE_KEYS = ("proposer", "max_iterations", "max_wall_clock_seconds")
BASELINE_PROPOSERS = ("search", "script")
LONGEST_TITLE, LONGEST_SUMMARY, LONGEST_STATEMENT = 120, 500, 64_000
TELLING_DIGITS = 4
_FENCE = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^# ", re.MULTILINE)
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w])")


def read_manifest(path: Path) -> Manifest:
    """The problem in a file, or `ValidationFailed` with every fault."""
    text = read_text(path)
    manifest, faults = parse_manifest(parse_toml(text, source=str(path)), path)
    if manifest is None or faults:
        count = len(faults)
        raise ValidationFailed(faults, f"{path} has {count} fault{'' if count == 1 else 's'}")
    return replace(manifest, digest=digest_of(text))


def parse_manifest(table: Mapping[str, Any], path: Path) -> tuple[Manifest | None, list[Fault]]:
    """The problem in a table, and its faults; no problem if there are any."""
    faults: list[Fault] = []
    root = Fields(table, at="", source=str(path), faults=faults)
    root.only(KEYS)
    server = _server(root, path)
    scorer = read_scorer(root, path.parent, has_server="server" in table)
    manifest = Manifest(
        path=path.resolve(),
        problem_id=_matching(root, "problem_id", PROBLEM_ID, ID_WORDS),
        title=_line(root, "title", LONGEST_TITLE),
        summary=_line(root, "summary", LONGEST_SUMMARY),
        kind=root.word("kind", KINDS, needed=True) or "text",
        statement=_statement(root),
        scorer=scorer or Scorer(kind="predicates", metrics=()),
        tags=_tags(root),
        citations=_citations(root),
        assets=_assets(root, path, scorer),
        server=server,
        submission=_submission(root),
        budget=_budget(root),
        visibility=_visibility(root),
        baseline=_baseline(root, path),
    )
    _between(root, manifest, table)
    if scorer is not None:
        _leaks(root, manifest)
    return (None if faults else manifest), faults


def _section(root: Fields, key: str, known: Iterable[str]) -> Fields:
    """A table of the manifest, whose unknown keys are faults."""
    fields = Fields(root.subtable(key), at=key, source=root.source, faults=root.faults)
    fields.only(known)
    return fields


def _needed(fields: Fields, key: str) -> str:
    text = fields.text(key)
    if text is None and key not in fields.table:
        fields.fault(key, "is missing")
    return text or ""


def _matching(fields: Fields, key: str, pattern: re.Pattern[str], words: str) -> str:
    text = _needed(fields, key)
    if text and not pattern.fullmatch(text):
        fields.fault(key, f"{text[:80]!r} must be made of {words}")
    return text


def _line(fields: Fields, key: str, longest: int) -> str:
    text = _needed(fields, key).strip()
    if "\n" in text:
        fields.fault(key, "must be one line")
    elif len(text) > longest:
        fields.fault(key, f"has {len(text)} characters; at most {longest}")
    return text


def _statement(root: Fields) -> str:
    text = _needed(root, "statement").strip()
    if len(text) > LONGEST_STATEMENT:
        root.fault("statement", f"has {len(text)} characters; at most {LONGEST_STATEMENT}")
    if _HEADING.search(_FENCE.sub("", text)):
        root.fault("statement", "has a heading of the first level; the title is the brief's only one, so begin with ##")
    return text


def _tags(root: Fields) -> tuple[str, ...]:
    tags = root.texts("tags") or ()
    for place, tag in enumerate(tags):
        if not TAG.fullmatch(tag):
            root.fault(f"tags[{place}]", f"{tag[:60]!r} must be made of lower-case letters, digits, ' ', '_' and '-'")
        elif tag in tags[:place]:
            root.fault(f"tags[{place}]", f"{tag!r} stands there twice")
    return tags


def _citations(root: Fields) -> tuple[Citation, ...]:
    given = root.table.get("citations", [])
    if not isinstance(given, list):
        root.fault("citations", f"must be a list of tables ([[citations]]), not {kind(given)}")
        return ()
    found: list[Citation] = []
    for place, entry in enumerate(cast("list[object]", given)):
        table = as_table(entry)
        if table is None:
            root.fault(f"citations[{place}]", f"must be a table, not {kind(entry)}")
            continue
        fields = Fields(table, at=f"citations[{place}]", source=root.source, faults=root.faults)
        fields.only(CITATION_KEYS)
        citation = Citation(summary=fields.text("summary"), raw=fields.text("raw"), url=fields.text("url"))
        if "summary" not in table and "raw" not in table:
            fields.fault("", "needs a summary or raw")
        if citation.url is not None and not citation.url.startswith(("https://", "http://", "doi:")):
            fields.fault("url", "must begin with https://, http:// or doi:")
        found.append(citation)
    return tuple(found)


def _assets(root: Fields, path: Path, scorer: Scorer | None) -> tuple[str, ...]:
    assets = root.texts("assets") or ()
    folder = path.resolve().parent
    hidden = {path.resolve()}
    if scorer is not None and scorer.function is not None:
        hidden.add((folder / scorer.function.partition(":")[0]).resolve())
    for place, name in enumerate(assets):
        at, target = f"assets[{place}]", (folder / name).resolve()
        if not name.strip():
            root.fault(at, "must not be empty")
        elif not target.is_relative_to(folder):
            root.fault(at, f"{name!r} lies outside of the problem's folder")
        elif not target.is_file():
            root.fault(at, f"there is no file {name!r}")
        elif target in hidden:
            root.fault(at, f"{name!r} holds scoring data, which no agent may see")
        elif name in assets[:place]:
            root.fault(at, f"{name!r} stands there twice")
    return assets


def _server(root: Fields, path: Path) -> ServerConfig | None:
    if "server" not in root.table:
        return None
    found, faults = parse_servers(
        {"server": root.table["server"]}, source=root.source, base=path.resolve().parent, prefix=""
    )
    root.faults.extend(replace(fault, field=fault.field.removeprefix(".")) for fault in faults)
    config = found.get("server")
    return None if config is None else replace(config, name=UPSTREAM, operators=False)


def _submission(root: Fields) -> Mapping[str, Any] | None:
    if "submission" not in root.table:
        return None
    schema = root.subtable("submission")
    if not schema:
        if as_table(root.table["submission"]) is not None:
            root.fault("submission", "is empty; give a JSON Schema, or leave it out for free text")
        return None
    from pursuit.tools.validation import UnusableSchema, compiled  # noqa: PLC0415 - a listing does without

    if schema.get("type") != "object":
        root.fault("submission.type", 'must be "object": a submission has named parts')
    try:
        compiled(schema)
    except (UnusableSchema, msgspec.MsgspecError, TypeError) as error:
        root.fault("submission", f"is no JSON Schema: {error}")
    return schema


def _budget(root: Fields) -> Limits:
    fields = _section(root, "budget", BUDGET_KEYS)
    calls, evaluations = (fields.number(key, whole=True) for key in ("calls", "evaluations"))
    tools = fields.texts("evaluation_tools") or ()
    if "evaluations" in fields.table and not tools and "evaluation_tools" not in fields.table:
        fields.fault("evaluation_tools", "is missing; name the tools whose calls are evaluations")
    return Limits(
        calls=None if calls is None else int(calls),
        evaluations=None if evaluations is None else int(evaluations),
        wall_seconds=fields.number("wall_seconds"),
        evaluation_tools=tools,
    )


def _visibility(root: Fields) -> Visibility:
    fields = _section(root, "visibility", VISIBILITY_KEYS)
    return Visibility(
        score=fields.flag("score") or False,
        citation_mode=fields.word("citation_mode", CITATION_MODES) or "summary",
        shared_attempt=fields.flag("shared_attempt") or False,
    )


def _baseline(root: Fields, path: Path) -> Baseline | None:
    if "baseline" not in root.table:
        return None
    fields = _section(root, "baseline", BASELINE_KEYS)
    proposer = Fields(fields.subtable("proposer"), at="baseline.proposer", source=root.source, faults=root.faults)
    if "proposer" not in fields.table:
        fields.fault("proposer", "is missing; give a table with kind search or script")
    elif as_table(fields.table["proposer"]) is not None:
        chosen = proposer.word("kind", BASELINE_PROPOSERS, needed=True)
        file = proposer.text("file")
        if chosen == "script" and (("file" in proposer.table) == ("script" in proposer.table)):
            proposer.fault("file", "give exactly one of file and script")
        if file is not None and not (path.parent / file).is_file():
            proposer.fault("file", f"there is no file {file!r}")
    most, seconds = fields.number("max_iterations", whole=True), fields.number("max_wall_clock_seconds")
    return Baseline(
        proposer=dict(proposer.table),
        max_iterations=500 if most is None else int(most),
        max_wall_clock_seconds=300.0 if seconds is None else seconds,
    )


def _between(root: Fields, manifest: Manifest, table: Mapping[str, Any]) -> None:
    """What one part of a manifest asks of another."""
    if manifest.kind == "mcp" and "server" not in table:
        root.fault("server", "is missing; a problem of kind mcp has one")
    if manifest.kind == "optimization" and manifest.scorer.metrics and manifest.primary.direction is None:
        root.fault("scorer.metrics[0].direction", "is missing; an optimization is to minimize or to maximize")
    if manifest.budget.evaluation_tools and "server" not in table:
        root.fault("budget.evaluation_tools", "there is no server whose tools these could be")
    wanted = {"raw": ("raw",), "summary": ("summary",)}.get(manifest.visibility.citation_mode, ())
    for place, citation in enumerate(manifest.citations):
        for part in wanted:
            if getattr(citation, part) is None and f"citations[{place}]" not in {one.field for one in root.faults}:
                root.fault(f"citations[{place}].{part}", f"is missing; citation_mode shows {part}")


def _leaks(root: Fields, manifest: Manifest) -> None:
    """A number that only the scorer may know, in what agents read."""
    secret = {
        value: f"scorer.metrics[{place}].{name}"
        for place, metric in enumerate(manifest.scorer.metrics)
        for name, value in (("target", metric.target), ("best_known", metric.best_known))
        if value is not None and is_telling(value)
    }
    shown = {"title": manifest.title, "summary": manifest.summary, "statement": manifest.statement}
    shown |= {f"citations[{n}].summary": one.summary or "" for n, one in enumerate(manifest.citations)}
    shown |= {f"citations[{n}].raw": one.raw or "" for n, one in enumerate(manifest.citations)}
    for field, text in shown.items():
        for number in dict.fromkeys(float(found) for found in _NUMBER.findall(text)):
            if number in secret:
                root.fault(field, f"tells agents the number of {secret[number]}")


def is_telling(value: float) -> bool:
    """Whether a number has so many digits that it stands in a text for one reason only."""
    digits = f"{value:.15g}".lstrip("-").partition("e")[0].replace(".", "").strip("0")
    return len(digits) >= TELLING_DIGITS
