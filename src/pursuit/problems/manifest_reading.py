"""Reads a `problem.toml`: `Manifest` says which keys and values there are, the rules here what they must be together.

The rules of its `[scorer]` are in `scorer_reading`. Invariant: every fault of a file at once, each with file, field and
reason; nothing is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from posixpath import normpath
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pursuit.config.files import as_table, parse_toml, read_text, unreadable
from pursuit.config.servers import ServerConfig, parse_servers
from pursuit.core.base_model import faults_of
from pursuit.errors import Fault, ValidationFailed
from pursuit.problems.files import cannot_open, file_of, is_folder, not_a_file
from pursuit.problems.manifest import UPSTREAM, Manifest, digest_of
from pursuit.problems.missions import baseline_faults
from pursuit.problems.scorer_reading import (
    Wrong,
    command_fault,
    given_text,
    given_texts,
    plain_copy,
    rows_of,
    scorer_rules,
    table_of,
    unlike_json,
    wrong_items,
    wrong_texts,
)
from pursuit.problems.secrecy import secret_assets

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


@cache
def _adapter() -> TypeAdapter[Manifest]:
    return TypeAdapter(Manifest)


def parse_manifest(
    table: Mapping[str, Any], path: Path, *, confined: bool = True
) -> tuple[Manifest | None, list[Fault]]:
    """The problem in a table, and its faults; no problem if there are any.

    What has no folder of its own is not `confined`: its server may be a file anywhere.
    """
    given, wrong = plain_copy(table)
    server, faults = _server(given, path, confined=confined)
    known = {**given, "path": path.resolve(), "digest": "", "server": server}
    wrong += [*wrong_texts(given), *_rules(given, path.parent), *scorer_rules(given, path.parent)]
    wrong += [(key, "is not a known key") for key in ("path", "digest") if key in given]
    manifest = None
    try:
        manifest = _adapter().validate_python(known)
        wrong += secret_assets(manifest)
    except ValidationError as error:
        faults += faults_of(error, Manifest, source=str(path))
    faults += [Fault(field=field, reason=reason, source=str(path)) for field, reason in wrong]
    return (None if faults else manifest), list(dict.fromkeys(faults))


def _rules(given: Mapping[str, Any], folder: Path) -> Iterator[Wrong]:
    """What the parts of a manifest must be, and what they require of each other."""
    name, kind = given_text(given, "problem_id"), given.get("kind")
    if name is not None and not PROBLEM_ID.fullmatch(name):
        yield "problem_id", f"{name[:80]!r} must be made of {ID_WORDS}"
    yield from _words(given)
    yield from wrong_items(given, "tags", _wrong_tag, str)
    yield from wrong_items(given, "assets", lambda name: _wrong_asset(folder, name), normpath)
    yield from _citations(given)
    yield from _submission(given)
    yield from _budget(given)
    yield from _repository(given, folder)
    yield from baseline_faults(table_of(given, "baseline"), folder)
    if kind == "mcp" and "server" not in given:
        yield "server", "is missing; a problem of kind mcp has one"
    if (kind == "coding") != ("repository" in given):
        yield "repository", "goes with kind coding: give both or neither"
    if kind == "coding" and "files" not in as_names(as_table(given.get("submission"))):
        yield "submission", "must have files: what a coding agent changed, by its path"
    metrics = rows_of(table_of(given, "scorer"), "metrics")
    if kind == "optimization" and metrics and "direction" not in metrics[0][1]:
        yield "scorer.metrics[0].direction", "is missing; an optimization has minimize or maximize"


def _words(given: Mapping[str, Any]) -> Iterator[Wrong]:
    """The texts of the brief; the title and the summary are one line."""
    longest = {"title": LONGEST_TITLE, "summary": LONGEST_SUMMARY, "statement": LONGEST_STATEMENT}
    for key, most in longest.items():
        text = (given_text(given, key) or "").strip()
        if key != "statement" and len(text.splitlines()) > 1:
            yield key, "must be one line"
        elif len(text) > most:
            yield key, f"has {len(text)} characters; at most {most}"
        if key != "title":
            yield from _markdown(key, text)


def _markdown(field: str, text: str) -> Iterator[Wrong]:
    """A second title, and a code block that would swallow the rest of the brief."""
    heading, fence = scan_markdown(text)
    if heading is not None:
        shown = f"has a heading of the first level, {heading[:60]!r}"
        yield field, f"{shown}; the title is the brief's only one, so begin with ##"
    if fence is not None:
        yield field, f"has a code block that is not closed; end it with {fence[:20]}"


def _wrong_tag(tag: str) -> str | None:
    return None if TAG.fullmatch(tag) else f"{tag[:60]!r} must be made of lower-case letters, digits, ' ', '_' and '-'"


def _citations(given: Mapping[str, Any]) -> Iterator[Wrong]:
    mode = table_of(given, "visibility").get("citation_mode", "summary")
    for place, row in rows_of(given, "citations"):
        wrong = list(_citation(f"citations[{place}]", row))
        yield from wrong
        summary, raw = given_text(row, "summary"), given_text(row, "raw")
        if wrong or any(key in row and given_text(row, key) is None for key in ("summary", "raw", "url")):
            continue
        for part in ("raw", "summary"):
            if mode == part and part not in row:
                yield f"citations[{place}].{part}", f"is missing; citation_mode shows {part}"
        # What is a heading only below the other part, such as a row of =.
        if mode == "summary+raw" and scan_markdown(f"{summary or ''}\n{raw or ''}")[0] is not None:
            why = "makes the summary a heading of the first level; do not begin with ="
            yield f"citations[{place}].raw", why


def _citation(at: str, row: Mapping[str, Any]) -> Iterator[Wrong]:
    url = given_text(row, "url")
    if "summary" not in row and "raw" not in row:
        yield at, "needs a summary or raw"
    if url is not None and not url.startswith(("https://", "http://", "doi:")):
        yield f"{at}.url", "must begin with https://, http:// or doi:"
    elif url is not None and (" " in url or not url.isprintable()):
        yield f"{at}.url", "has blanks or characters that cannot be printed"
    for part in ("summary", "raw"):
        yield from _markdown(f"{at}.{part}", given_text(row, part) or "")


def _wrong_asset(folder: Path, name: str) -> str | None:
    found = file_of(folder, name)
    if isinstance(found, str):
        return found
    why = cannot_open(found)
    return None if why is None else f"{name!r} {why}"


def _server(given: Mapping[str, Any], path: Path, *, confined: bool) -> tuple[ServerConfig | None, list[Fault]]:
    if "server" not in given:
        return None, []
    source = str(path)
    found, faults = parse_servers({"server": given["server"]}, source=source, base=path.resolve().parent)
    config = found.get("server")
    if config is None:
        return None, [replace(fault, field=fault.field.removeprefix("servers.")) for fault in faults]
    wrong = [*_wrong_place(config, path.parent, confined=confined)]
    if config.transport == "stdio" and config.cwd is None:
        config = replace(config, cwd=".")  # of the manifest's folder, wherever one stands
    faults = [Fault(field=f"server.{key}", reason=reason, source=source) for key, reason in wrong]
    return replace(config, name=UPSTREAM, operators=False), faults


def _wrong_place(config: ServerConfig, folder: Path, *, confined: bool) -> Iterator[Wrong]:
    if config.url is not None and "${" not in config.url and not _ADDRESS.fullmatch(config.url):
        yield "url", "must be an address that begins with https:// or http://"
    if config.cwd is not None and "${" not in config.cwd and not is_folder(folder, config.cwd):
        yield "cwd", f"there is no folder {config.cwd[:80]!r}"
    if config.transport == "stdio" and config.cwd is None:
        command = [config.command or "", *config.args]
        wrong = command_fault(command, folder, confined=confined, judges=False)
        if wrong is not None and not any("${" in word for word in command):
            yield "command" if wrong[0] == 0 else f"args[{wrong[0] - 1}]", wrong[1]


def _submission(given: Mapping[str, Any]) -> Iterator[Wrong]:
    schema = as_table(given.get("submission"))
    if schema is None:
        return
    if not schema:
        yield "submission", "is empty; give a JSON Schema, or leave it out for free text"
        return
    if schema.get("type") != "object":
        yield "submission.type", 'must be "object": a submission has named parts'
    wrong = unlike_json(schema, "submission")
    yield from wrong.told
    if not wrong.writable:
        return
    size = len(json.dumps(schema, ensure_ascii=False).encode())
    if size > LARGEST_SCHEMA:
        yield "submission", f"has {size} bytes as JSON; at most {LARGEST_SCHEMA}"
        return
    from pursuit.core.validation import schema_faults  # noqa: PLC0415 - slow to load, and many have none

    for place, reason in schema_faults(schema):
        at = f"submission.{place}" if place else "submission"
        if at != "submission.type" or schema.get("type") == "object":
            yield at, f"is no JSON Schema: {reason}"


def _budget(given: Mapping[str, Any]) -> Iterator[Wrong]:
    budget = table_of(given, "budget")
    if "evaluations" in budget and budget.get("evaluation_tools", []) == []:
        state = "empty" if "evaluation_tools" in budget else "missing"
        yield "budget.evaluation_tools", f"is {state}; name the tools whose calls are evaluations"
    seconds = budget.get("wall_seconds")
    if isinstance(seconds, int | float) and seconds > 0 and not SHORTEST_WALL <= seconds <= LONGEST_WALL:
        yield "budget.wall_seconds", f"must be from {SHORTEST_WALL} to {LONGEST_WALL:,} seconds"
    yield from ((f"budget.{at}", why) for at, why in wrong_items(budget, "evaluation_tools", _wrong_tool))
    if given_texts(budget, "evaluation_tools") and "server" not in given:
        yield "budget.evaluation_tools", "there is no server whose tools these could be"


def as_names(schema: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The parts that a submission has."""
    return as_table((schema or {}).get("properties")) or {}


def _wrong_tool(name: str) -> str | None:
    return None if name.strip() and name.isprintable() else f"{name[:60]!r} is no name of a tool"


def _repository(given: Mapping[str, Any], folder: Path) -> Iterator[Wrong]:
    path = given_text(table_of(given, "repository"), "path")
    if path is not None and not is_folder(folder, path):
        yield "repository.path", f"there is no folder {path[:80]!r}"
