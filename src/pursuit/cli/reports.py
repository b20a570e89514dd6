"""Shows a report, and writes the files of a final report beside the ledger.

Only the owner can read these files, and each is written atomically.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from pursuit.cli.console import CommandAnswer, Fact, Forms, Part, clean, counted
from pursuit.cli.context import Context
from pursuit.cli.options import check_choice
from pursuit.config.files import write_private
from pursuit.errors import InvalidArgument
from pursuit.reports.report import Report, Trial, as_csv, as_parquet
from pursuit.service.timeline import shared_mission

Format = Literal["html", "md", "json"]
FORMATS: tuple[Format, ...] = ("json", "md", "html")
Table = Literal["csv", "parquet"]
TABLES: tuple[Table, ...] = ("csv", "parquet")
"""Formats that contain only the trials."""


def rendered(report: Report, form: Format) -> str:
    if form == "json":
        return msgspec.json.format(msgspec.json.encode(report.data), indent=2).decode() + "\n"
    return report.html() if form == "html" else report.markdown()


def format_of(given: str | None, output: Path | None, *, as_json: bool) -> Format | Table:
    """Returns the given format, else the format of the file's suffix, else JSON with `--json`, else Markdown."""
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
    if output is None:
        return CommandAnswer(
            {"session_id": mission_id, "trials": msgspec.to_builtins(list(trials))}, as_csv(trials).rstrip("\n")
        )
    write_whole(output, as_csv(trials) if form == "csv" else as_parquet(trials))
    data = {"session_id": mission_id, "format": form, "file": clean(output), "trials": len(trials)}
    return CommandAnswer(data, Fact("wrote", f"{output} ({counted(len(trials), 'trial')})"))


def report_answer(mission_id: str, report: Report, form: Format, output: Path | None) -> CommandAnswer:
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
    """Writes the file to share: the report with the timeline and every call in full."""
    from pursuit.page.share import render_share

    found = context.look(lambda runtime: shared_mission(runtime.runner, mission_id))
    write_whole(output, render_share(found))
    wrote = Fact("wrote", f"{output} ({output.stat().st_size:,} bytes)")
    return CommandAnswer({"session_id": mission_id, "format": "html", "file": clean(output)}, wrote)


def write_reports(context: Context, mission_id: str, report: Report) -> dict[str, str]:
    folder = _folder(context)
    folder.mkdir(mode=0o700, exist_ok=True)
    paths: dict[str, str] = {}
    for form in FORMATS:
        path = folder / f"{mission_id}.{form}"
        write_whole(path, rendered(report, form))
        paths[form] = str(path)
    return paths


def remove_reports(context: Context, mission_id: str) -> None:
    for form in FORMATS:
        with suppress(OSError):
            (_folder(context) / f"{mission_id}.{form}").unlink(missing_ok=True)


def write_whole(path: Path, body: str | bytes) -> None:
    try:
        write_private(path, body)
    except OSError as error:
        raise InvalidArgument(f"cannot write {path}: {error.strerror}", path=str(path)) from error


def _folder(context: Context) -> Path:
    return context.ledger_path.parent / "reports"
