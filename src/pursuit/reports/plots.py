"""Line and scatter plots as inline SVG, without a plotting library: a report must open anywhere, for ever.

Any finite points give well-formed XML; every coordinate is finite and inside the picture. The page's style sheet sets
the colours.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from pursuit.reports.wording import figure, text

Point = tuple[float, float]

WIDTH, HEIGHT = 480.0, 230.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 16.0, 14.0, 30.0
MAX_POINTS = 600
MAX_HOVERS = 120
LETTER = 6.4
"""The approximate width of a digit in the axis labels."""

LOG_DECADES = 3
# Beyond these a difference of two values would overflow or vanish; a plot cannot show it.
_MAX_VALUE, _MIN_SPAN = 1e300, 1e-300


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    low: float
    high: float
    start: float
    end: float
    logarithmic: bool
    ticks: tuple[tuple[float, str], ...]

    def place(self, value: float) -> float:
        """The pixel of a value; values outside are moved to the edge."""
        inner = math.log10(max(value, _MIN_SPAN)) if self.logarithmic else value
        share = min(1.0, max(0.0, (inner - self.low) / (self.high - self.low)))
        return self.start + share * (self.end - self.start)


def line_plot(
    points: Sequence[Point],
    *,
    label: str,
    best: float | None = None,
    target: float | None = None,
    goal: str = "",
    trace: Sequence[Point] = (),
) -> str:
    """One metric over iterations as an `<svg>` element; `goal` is the target in words.

    The first point whose value is `best` is marked. `trace` is the best value so far, drawn as a second line.
    """
    kept = thin([(_bounded(x), _bounded(y)) for x, y in points], keep=None if best is None else _bounded(best))
    if not kept:
        return ""
    level = None if target is None else _bounded(target)
    y_axis = value_axis([y for _, y in kept], level)
    x_axis = _linear([x for x, _ in kept], _left(y_axis), WIDTH - RIGHT, count=6, whole=True)
    parts = [*_grid(x_axis, y_axis), *_target(x_axis, y_axis, level, goal)]
    pixels = [(x_axis.place(x), y_axis.place(y)) for x, y in kept]
    if len(pixels) > 1:
        parts.append(f'<polyline class="line" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)}"/>')
    if len(trace) > 1:
        parts.append(_steps([(x_axis.place(_bounded(x)), y_axis.place(_bounded(y))) for x, y in trace]))
    parts.extend(_marks(kept, pixels, best))
    parts.extend(_hovers(kept, pixels, x_axis.start))
    return _svg(f"{label} over iterations", parts)


def _steps(pixels: Sequence[Point]) -> str:
    corners = [pixels[0]]
    for x, y in pixels[1:]:
        if y != corners[-1][1]:
            corners += [(x, corners[-1][1]), (x, y)]
    corners.append((pixels[-1][0], corners[-1][1]))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    return f'<polyline class="trace" points="{path}"><title>best so far</title></polyline>'


def _svg(label: str, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" '
    return f'{head}aria-label="{_escaped(label)}">{"".join(parts)}</svg>'


def _escaped(words: str) -> str:
    return escape(text(words), quote=True)


def thin(points: Sequence[Point], *, keep: float | None = None) -> list[Point]:
    """At most `MAX_POINTS`: the first, the last, the first one with the value `keep`, and each stretch's extremes."""
    if len(points) <= MAX_POINTS:
        return list(points)
    stretches = (MAX_POINTS - 3) // 2
    chosen = {0, len(points) - 1}
    chosen.update([index for index, (_, y) in enumerate(points) if y == keep][:1])
    for number in range(stretches):
        stretch = range(number * len(points) // stretches, (number + 1) * len(points) // stretches)
        chosen.add(min(stretch, key=lambda index: points[index][1]))
        chosen.add(max(stretch, key=lambda index: points[index][1]))
    return [points[index] for index in sorted(chosen)]


def value_axis(values: Sequence[float], target: float | None) -> Scale:
    low, high = min(values), max(values)
    if low > _MIN_SPAN and high / low > 10**LOG_DECADES:
        return _logarithmic([*values, *([target] if target is not None and target > _MIN_SPAN else [])])
    return _linear([*values, *([] if target is None else [target])], HEIGHT - BOTTOM, TOP, count=5)


def _linear(values: Sequence[float], start: float, end: float, *, count: int, whole: bool = False) -> Scale:
    low, high = min(values), max(values)
    if high - low <= max(1e-9 * max(abs(low), abs(high)), _MIN_SPAN):
        # a single value is centred
        margin = max(1.0, abs(low) * 0.05) if whole or abs(low) < _MIN_SPAN * 1e9 else abs(low) * 0.05
        low, high = low - margin, high + margin
    elif not whole:
        low, high = low - 0.04 * (high - low), high + 0.04 * (high - low)
    step = nice_step((high - low) / count)
    if whole:
        step = max(1.0, step)
    first, last = math.ceil(low / step), math.floor(high / step)
    ticks = tuple((index * step, _tick_text(index * step, step)) for index in range(first, last + 1))
    return Scale(low=low, high=high, start=start, end=end, logarithmic=False, ticks=ticks)


def _logarithmic(values: Sequence[float]) -> Scale:
    low, high = math.log10(min(values)), math.log10(max(values))
    low, high = low - 0.04 * (high - low), high + 0.04 * (high - low)
    low, high = max(low, sys.float_info.min_10_exp), min(high, sys.float_info.max_10_exp)
    stride = max(1, math.ceil((high - low) / 6))
    exponents = [power for power in range(math.ceil(low), math.floor(high) + 1) if power % stride == 0]
    ticks = tuple((10.0**power, f"1e{power}" if abs(power) > 3 else f"{10.0**power:g}") for power in exponents)
    return Scale(low=low, high=high, start=HEIGHT - BOTTOM, end=TOP, logarithmic=True, ticks=ticks)


def nice_step(rough: float) -> float:
    """The smallest of 1, 2, 5 and 10, times a power of ten, that is not below `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= rough), 10 * power)


def _tick_text(value: float, step: float) -> str:
    """The value with only as many digits as the step between ticks requires."""
    place = math.floor(math.log10(step) + 1e-9)
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)) + 1e-9)
    if size >= 6 or place < -4:
        mantissa, _, exponent = f"{value:.{min(12, max(0, size - place))}e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:,.{max(0, -place)}f}"


def _grid(x_axis: Scale, y_axis: Scale) -> list[str]:
    floor, left, right = HEIGHT - BOTTOM, x_axis.start, WIDTH - RIGHT
    parts = [f'<line class="axis" x1="{left:.0f}" y1="{floor:.0f}" x2="{right:.0f}" y2="{floor:.0f}"/>']
    for value, words in y_axis.ticks:
        y = y_axis.place(value)
        parts.append(f'<line class="grid" x1="{left:.0f}" y1="{y:.1f}" x2="{right:.0f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{left - 8:.0f}" y="{y + 4:.1f}" text-anchor="end">{words}</text>')
    for value, words in x_axis.ticks:
        x = x_axis.place(value)
        parts.append(f'<line class="axis" x1="{x:.1f}" y1="{floor:.0f}" x2="{x:.1f}" y2="{floor + 4:.0f}"/>')
        parts.append(f'<text x="{x:.1f}" y="{floor + 18:.0f}" text-anchor="middle">{words}</text>')
    return parts


def _left(y_axis: Scale) -> float:
    """The left edge of the plot, right of the longest label of its vertical axis."""
    return max(LEFT, 14.0 + LETTER * max((len(words) for _, words in y_axis.ticks), default=0))


def _target(x_axis: Scale, y_axis: Scale, target: float | None, words: str) -> list[str]:
    if target is None or (y_axis.logarithmic and target <= _MIN_SPAN):
        return []
    y = y_axis.place(target)
    line = f'<line class="target" x1="{x_axis.start:.0f}" y1="{y:.1f}" x2="{WIDTH - RIGHT:.0f}" y2="{y:.1f}">'
    return [f"{line}<title>{_escaped(words)}</title></line>"]


def _marks(points: Sequence[Point], pixels: Sequence[Point], best: float | None) -> list[str]:
    """A dot at the best point, or else at a single point that would be invisible."""
    marked = None if best is None else _bounded(best)
    index = next((place for place, (_, y) in enumerate(points) if y == marked), None)
    if index is None:
        alone = pixels[:1] if len(pixels) == 1 else pixels[:0]
        return [f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in alone]
    x, y = pixels[index]
    return [f'<circle class="best" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>']


def _hovers(points: Sequence[Point], pixels: Sequence[Point], start: float) -> list[str]:
    """Invisible columns whose titles a browser shows under the pointer; left out if they would be too narrow."""
    if len(points) > MAX_HOVERS:
        return []
    edges = [start, *((one[0] + two[0]) / 2 for one, two in pairwise(pixels)), WIDTH - RIGHT]
    return [
        f'<rect class="hover" x="{left:.1f}" y="{TOP:.0f}" width="{max(0.0, right - left):.1f}" '
        f'height="{HEIGHT - TOP - BOTTOM:.0f}"><title>iteration {at:.0f}: {figure(value)}</title></rect>'
        for (at, value), left, right in zip(points, edges[:-1], edges[1:], strict=True)
    ]


def _bounded(value: float) -> float:
    return min(_MAX_VALUE, max(-_MAX_VALUE, value))


def scatter_plot(
    points: Sequence[tuple[float, float, str]], *, label: str, target: float | None = None, whole: bool = True
) -> str:
    """Named points as an `<svg>` element: the result over its cost; `whole` if the cost is an integer."""
    kept = [(_bounded(x), _bounded(y), name) for x, y, name in points[:MAX_POINTS]]
    if not kept:
        return ""
    level = None if target is None else _bounded(target)
    y_axis = value_axis([y for _, y, _ in kept], level)
    most = max(x for x, _, _ in kept) or 1.0
    x_axis = _linear([0.0, most], _left(y_axis), WIDTH - RIGHT, count=6, whole=whole)
    goal = "" if level is None else f"target {figure(level)}"
    parts = [*_grid(x_axis, y_axis), *_target(x_axis, y_axis, level, goal)]
    parts += [
        f'<circle class="dot" cx="{x_axis.place(x):.1f}" cy="{y_axis.place(y):.1f}" r="4.5">'
        f"<title>{_escaped(name)}: {figure(y)}</title></circle>"
        for x, y, name in kept
    ]
    return _svg(label, parts)
