"""Shows a report, and writes the files of a final report beside the ledger.

Only the owner can read these files, and a file appears whole or not at all.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from pursuit.cli.console import Screen, clean
from pursuit.cli.context import Context
from pursuit.cli.options import check_choice
from pursuit.errors import InvalidArgument

Format = Literal["html", "md", "json"]
FORMATS: tuple[Format, ...] = ("json", "md", "html")


def rendered(report: Mapping[str, Any], form: Format) -> str:
    """The report in one of its three forms."""
    if form == "json":
        return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"
    from pursuit.reports import render_html, render_markdown

    return render_html(report) if form == "html" else render_markdown(report)


def format_of(given: str | None, output: Path | None, *, as_json: bool) -> Format:
    """The format: as given, else by the file's name, else JSON with `--json`, else Markdown."""
    suffix = output.suffix.removeprefix(".").lower() if output is not None else ""
    wanted = given or (suffix if suffix in FORMATS else "json" if as_json and output is None else "md")
    return check_choice("--format", wanted, FORMATS)


def show_report(screen: Screen, mission_id: str, report: Mapping[str, Any], form: Format, output: Path | None) -> None:
    """Prints a report, or writes it to a file."""
    if output is not None:
        write_whole(output, rendered(report, form))
        screen.answer({"session_id": mission_id, "format": form, "file": clean(output)})
        screen.fact("wrote", output)
    elif screen.json:
        screen.document(report if form == "json" else {"session_id": mission_id, "text": rendered(report, form)})
    elif screen.rich and form == "md":
        from rich.markdown import Markdown

        screen.show(Markdown(rendered(report, form), hyperlinks=False))
    else:
        screen.plain(rendered(report, form).rstrip("\n"))


def write_reports(context: Context, mission_id: str, report: Mapping[str, Any]) -> dict[str, str]:
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


def write_whole(path: Path, text: str) -> None:
    """Writes a private file atomically."""
    try:
        # mkstemp makes the file readable by the owner alone, whatever the umask says.
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise InvalidArgument(f"cannot write {path}: {error.strerror}", path=str(path)) from error
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        partial.replace(path)
    except OSError as error:
        raise InvalidArgument(f"cannot write {path}: {error.strerror}", path=str(path)) from error
    finally:
        partial.unlink(missing_ok=True)


def _folder(context: Context) -> Path:
    return context.ledger_path().parent / "reports"
