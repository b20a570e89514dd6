"""Shows a report, and writes the files of a final report beside the ledger.

Only the owner can read these files, and a file appears whole or not at all.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from pursuit.cli.console import CommandAnswer, Fact, Forms, Part, clean, counted
from pursuit.cli.context import Context
from pursuit.cli.options import check_choice
from pursuit.errors import InvalidArgument

if TYPE_CHECKING:
    from pursuit.reports.report import Report, Trial

Format = Literal["html", "md", "json"]
FORMATS: tuple[Format, ...] = ("json", "md", "html")
Table = Literal["csv", "parquet"]
TABLES: tuple[Table, ...] = ("csv", "parquet")
"""Formats that hold the trials alone."""


def rendered(report: Report, form: Format) -> str:
    """The report in one of its three forms."""
    if form == "json":
        return msgspec.json.format(msgspec.json.encode(report.data), indent=2).decode() + "\n"
    return report.html() if form == "html" else report.markdown()


def format_of(given: str | None, output: Path | None, *, as_json: bool) -> Format | Table:
    """The format: as given, else by the file's name, else JSON with `--json`, else Markdown."""
    known = (*FORMATS, *TABLES)
    if given is not None:
        wanted = check_choice("--format", given, known)
        if wanted == "parquet" and output is None:
            raise InvalidArgument("--format: parquet is not text; name a file with -o FILE.parquet", field="--format")
        return wanted
    if output is None:
        return "json" if as_json else "md"
    suffix = output.suffix.removeprefix(".").lower()
    if suffix not in known:
        ending = f"{output.name!r} has the ending .{suffix}" if suffix else f"{output.name!r} has no ending"
        known_endings = ", ".join(f".{one}" for one in known)
        raise InvalidArgument(f"-o: {ending}; known: {known_endings}. Name the format with --format", field="--output")
    return check_choice("--output", suffix, known)


def trials_answer(mission_id: str, trials: Sequence[Trial], form: Table, output: Path | None) -> CommandAnswer:
    """The trials as CSV, or where they were written."""
    from pursuit.reports.report import as_csv, as_parquet

    if output is None:
        return CommandAnswer(
            {"session_id": mission_id, "trials": msgspec.to_builtins(list(trials))}, as_csv(trials).rstrip("\n")
        )
    write_whole(output, as_csv(trials) if form == "csv" else as_parquet(trials))
    data = {"session_id": mission_id, "format": form, "file": clean(output), "trials": len(trials)}
    return CommandAnswer(data, Fact("wrote", f"{output} ({counted(len(trials), 'trial')})"))


def report_answer(mission_id: str, report: Report, form: Format, output: Path | None) -> CommandAnswer:
    """A report, or where it was written."""
    text = rendered(report, form)
    if output is not None:
        write_whole(output, text)
        return CommandAnswer({"session_id": mission_id, "format": form, "file": clean(output)}, Fact("wrote", output))
    piped = text.rstrip("\n")
    shown = Forms([piped], lambda _width: _markdown(text)) if form == "md" else piped
    return CommandAnswer(report.data if form == "json" else {"session_id": mission_id, "text": text}, shown)


def _markdown(text: str) -> Iterator[Part]:
    from rich.markdown import Markdown

    yield Markdown(text, hyperlinks=False)


def write_share(context: Context, mission_id: str, output: Path) -> CommandAnswer:
    """Writes the file that is handed on: the report with the timeline and each call whole."""
    from pursuit.page.share import render_share
    from pursuit.service.sharing import everything

    found = context.look(lambda runtime: everything(runtime.runner, mission_id))
    write_whole(output, render_share(found))
    wrote = Fact("wrote", f"{output} ({output.stat().st_size:,} bytes)")
    return CommandAnswer({"session_id": mission_id, "format": "html", "file": clean(output)}, wrote)


def write_reports(context: Context, mission_id: str, report: Report) -> dict[str, str]:
    """Writes all three forms beside the ledger and returns their paths by form."""
    folder = _folder(context)
    folder.mkdir(mode=0o700, exist_ok=True)
    paths: dict[str, str] = {}
    for form in FORMATS:
        path = folder / f"{mission_id}.{form}"
        write_whole(path, rendered(report, form))
        paths[form] = str(path)
    return paths


def remove_reports(context: Context, mission_id: str) -> None:
    """Deletes the report files of a mission."""
    for form in FORMATS:
        with suppress(OSError):
            (_folder(context) / f"{mission_id}.{form}").unlink(missing_ok=True)


def write_whole(path: Path, body: str | bytes) -> None:
    """Writes a private file atomically."""
    try:
        # mkstemp makes the file readable by the owner alone, whatever the umask says.
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise InvalidArgument(f"cannot write {path}: {error.strerror}", path=str(path)) from error
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(body if isinstance(body, bytes) else body.encode("utf-8", errors="replace"))
        partial.replace(path)
    except OSError as error:
        raise InvalidArgument(f"cannot write {path}: {error.strerror}", path=str(path)) from error
    finally:
        partial.unlink(missing_ok=True)


def _folder(context: Context) -> Path:
    return context.ledger_path.parent / "reports"
