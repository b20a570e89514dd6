"""Renders a report as Markdown that is readable as plain text, too.

Values are escaped for CommonMark with GitHub's tables: they cannot start a block, leave their table cell, or become
links, images or HTML.
"""

from __future__ import annotations

import re

from pursuit.reports.html import template
from pursuit.reports.report import Report
from pursuit.reports.view import read
from pursuit.reports.wording import figure, text

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&!$@]|(?<=www)\.|:(?=//))", re.IGNORECASE)
_OPENING = re.compile(r"^([-+=]|\d{1,9}(?=[.)]))")
_MARKS = {"met": "\u2713 ", "unmet": "\u2717 ", "inconclusive": "? "}
_GAP = re.compile(r"\n{3,}")


def render_markdown(report: Report) -> str:
    shown = template("report.md.j2").render(view=read(report), report=report, md=inline, figure=figure, marks=_MARKS)
    return _GAP.sub("\n\n", shown).rstrip("\n") + "\n"


def inline(value: str | None) -> str:
    """A value on one line, without markup."""
    flat = " ".join(text(value).split())
    return _OPENING.sub(_defuse, _SPECIAL.sub(r"\\\1", flat))


def _defuse(match: re.Match[str]) -> str:
    """Escapes text that would start a list or an underline; after a number, escapes the dot or bracket."""
    return f"\\{match[0]}" if not match[0].isdigit() else f"{match[0]}\\"
