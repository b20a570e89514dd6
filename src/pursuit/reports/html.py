"""A report as one self-contained HTML file.

Owns: the page and what it may load, which is nothing. Does not know what a report means: that is `view`.
Invariant: every value of the report passes through the template's escaping; only our own SVG is taken as markup.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from pursuit.reports.plots import line_plot
from pursuit.reports.view import MetricView, read
from pursuit.reports.wording import figure

if TYPE_CHECKING:
    from jinja2 import Template

# More plots than this are a wall; the other metrics are listed in a table.
MAX_PLOTS = 24


def render_html(report: Mapping[str, Any]) -> str:
    """The report as one HTML file: no script, nothing loaded from anywhere, light and dark, fit for print."""
    view = read(report)
    # The plots escape their own few words: they are all that the template takes as markup.
    plots = [(metric, _plot(metric)) for metric in view.metrics[:MAX_PLOTS]]
    return template("report.html.j2").render(view=view, plots=plots, others=view.metrics[MAX_PLOTS:], figure=figure)


def _plot(metric: MetricView) -> str:
    return line_plot(metric.points, label=metric.name, best=metric.best, target=metric.target, goal=metric.goal)


@cache
def template(name: str) -> Template:
    """A page of ours. Imported here: a command that writes no report must not pay for a template engine."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415  see above

    loader = PackageLoader("pursuit.reports", "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(name)
