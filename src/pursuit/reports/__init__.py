"""The final report of a mission, for people: one HTML file, or Markdown.

Both are pure functions of the report's JSON (`pursuit.report/1`) and trust no string in it.
"""

from __future__ import annotations

from pursuit.reports.html import render_html
from pursuit.reports.markdown import render_markdown

__all__ = ["render_html", "render_markdown"]
