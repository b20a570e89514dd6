"""How values become markup: the templates, and filters for what tools and models wrote.

Invariant: what comes from a tool is text. It is escaped, its control and direction marks are replaced, an address in it
is no link, and an image is shown only if it is a small bitmap of a known format.
"""

from __future__ import annotations

import base64
import difflib
import json
from binascii import Error as NotBase64
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final, cast

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from pursuit import __version__
from pursuit.core.caps import SHOWN
from pursuit.core.report import iso
from pursuit.reports.wording import amount, compact, evidence_words, figure, seconds_between, span, text

LARGEST_IMAGE: Final = 2 * 1024 * 1024
"""Bytes of an image that is shown; a larger one is named with its size."""
FOLDED_NODES: Final = 2_000
"""A value with more parts is shown as plain JSON: each fold is an element that the browser must keep."""
LONGEST_TEXT: Final = 4_000_000
MOST_COMPARED: Final = 5_000
"""Lines of two values that are compared: the time grows with their square, and missions wait meanwhile."""
_OPEN_DEPTH = 2
_LONG_LINE = 120
_SIGNATURES: Final[Mapping[str, tuple[bytes, ...]]] = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}
TONES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("completed", "met", "ok", "ready", "connected", "passed", "approved", "allow"), "good"),
    **dict.fromkeys(("running", "working", "open"), "live"),
    **dict.fromkeys(("waiting", "paused", "interrupted", "inconclusive", "unknown", "timed_out", "skipped"), "warn"),
    **dict.fromkeys(("input_required", "ask"), "warn"),
    **dict.fromkeys(("failed", "unmet", "denied", "deny", "lost", "expired"), "bad"),
}
"""The tone of a status; any other is calm."""


def tone(status: Any) -> str:
    """The tone of a status, for its colour; the word itself always stands beside it."""
    return TONES.get(str(status), "calm")


def when(value: Any) -> Markup:
    """A moment, also one in seconds, as a `<time>`; the page's script shows it in the reader's zone."""
    if not value:
        return Markup("&ndash;")
    shown = text(iso(value) if isinstance(value, float) else value)
    return Markup('<time datetime="{}">{}</time>').format(shown, shown[:19].replace("T", " ") + " UTC")


def pretty(value: Any) -> str:
    """A value as indented JSON."""
    return text(json.dumps(value, indent=2, ensure_ascii=False, default=str))[:LONGEST_TEXT]


def folded(value: Any) -> Markup:
    """A JSON value whole, with parts that fold; strings keep their lines."""
    if _nodes(value, FOLDED_NODES) >= FOLDED_NODES:
        return Markup('<pre class="json">{}</pre>').format(pretty(value))
    return Markup('<div class="json">{}</div>').format(_fold(value, 0))


def _nodes(value: Any, most: int) -> int:
    """How many parts a value has, counted up to `most`."""
    count, left = 0, [value]
    while left and count < most:
        one = left.pop()
        count += 1
        if isinstance(one, Mapping):
            left.extend(cast("Mapping[Any, Any]", one).values())
        elif isinstance(one, list | tuple):
            left.extend(cast("Sequence[Any]", one))
    return count


def _fold(value: Any, depth: int) -> Markup:
    match value:
        case Mapping() if value:
            entries = [
                Markup('<li><span class="key">{}</span> {}</li>').format(text(str(key)), _fold(item, depth + 1))
                for key, item in cast("Mapping[Any, Any]", value).items()
            ]
            return _details(entries, "key", depth, "{}")
        case list() | tuple() if value:
            items = cast("Sequence[Any]", value)
            return _details(
                [Markup("<li>{}</li>").format(_fold(item, depth + 1)) for item in items], "item", depth, "[]"
            )
        case str():
            shown = text(value)
            if len(shown) <= _LONG_LINE and "\n" not in shown:
                return Markup('<span class="str">{}</span>').format(shown)
            return Markup('<pre class="str">{}</pre>').format(shown[:LONGEST_TEXT])
        case _:
            return Markup('<span class="num">{}</span>').format(text(json.dumps(value, default=str)))


def _details(entries: list[Markup], noun: str, depth: int, signs: str) -> Markup:
    opened = Markup(" open") if depth < _OPEN_DEPTH else Markup("")
    count = f"{signs} {len(entries):,} {noun}{'' if len(entries) == 1 else 's'}"
    body = Markup("").join(entries)
    return Markup("<details{}><summary>{}</summary><ul>{}</ul></details>").format(opened, count, body)


def content(result: Any) -> Markup:
    """What a call returned: text as text, small bitmaps as images, everything else as JSON."""
    blocks = cast("Mapping[str, Any]", result).get("content") if isinstance(result, Mapping) else None
    if not isinstance(blocks, list):
        return folded(result)
    shown: list[Markup] = []
    left: dict[str, Any] = {key: item for key, item in cast("Mapping[str, Any]", result).items() if key != "content"}
    texts = [
        cast("Mapping[str, Any]", one).get("text") for one in cast("list[Any]", blocks) if isinstance(one, Mapping)
    ]
    if any(_json(one) == left.get("structuredContent", _Nothing) for one in texts):
        del left["structuredContent"]  # servers send the same value as text, for older clients
    for block in cast("list[Any]", blocks):
        one = cast("Mapping[str, Any]", block) if isinstance(block, Mapping) else dict[str, Any]()
        match one.get("type"):
            case "text":
                shown.append(_text_block(text(one.get("text"))))
            case "image":
                shown.append(image(one.get("data"), one.get("mimeType")))
            case _:
                shown.append(folded(block))
    if left:
        shown.append(folded(left))
    return Markup("").join(shown)


class _Nothing:
    """Stands for no value."""


def _json(shown: Any) -> Any:
    """The value of a text that is JSON, or None."""
    try:
        return json.loads(shown)
    except (ValueError, TypeError, RecursionError):
        return None


def _text_block(shown: str) -> Markup:
    value = _json(shown)
    if isinstance(value, dict | list):
        with suppress(RecursionError):  # a text can nest deeper than messages may
            return folded(value)
    return Markup('<pre class="text">{}</pre>').format(shown[:LONGEST_TEXT])


def image(data: Any, mime: Any) -> Markup:
    """An image as a `data:` address, if it is a bitmap of a known format and not too large."""
    kind = str(mime)[:80]
    try:
        raw = base64.b64decode(str(data), validate=True)
    except (NotBase64, ValueError):
        return Markup('<p class="note">An image that is not base64 ({}).</p>').format(kind)
    if not any(raw.startswith(sign) for sign in _SIGNATURES.get(kind, ())):
        return Markup('<p class="note">Not shown: {} of {:,} bytes.</p>').format(kind, len(raw))
    if len(raw) > LARGEST_IMAGE:
        return Markup('<p class="note">An image of {:,} bytes ({}) is too large to show.</p>').format(len(raw), kind)
    packed = base64.b64encode(raw).decode()
    return Markup('<img class="result" alt="Image that the tool returned" src="data:{};base64,{}">').format(
        kind, packed
    )


def changes(before: Any, after: Any) -> Markup | None:
    """How one JSON value differs from another, line by line; None if it does not."""
    old, new = pretty(before).splitlines(), pretty(after).splitlines()
    if old != new and max(len(old), len(new)) > MOST_COMPARED:
        return Markup('<p class="note">They differ, and {:,} and {:,} lines are too many to compare.</p>').format(
            len(old), len(new)
        )
    body = "\n".join([*difflib.unified_diff(old, new, lineterm="", n=2)][2:])
    return diff(body) if body else None


def diff(body: Any) -> Markup:
    """A unified diff with its lines marked; the sign at the start of each says the same as its colour."""
    rows: list[Markup] = []
    for line in text(body)[:LONGEST_TEXT].split("\n"):
        kind = {"+": "ins", "-": "del", "@": "at"}.get(line[:1], "same")
        rows.append(Markup('<span class="{}">{}</span>').format(kind, line))
    return Markup('<pre class="diff">{}</pre>').format(Markup("\n").join(rows))


def sparkline(values: Sequence[float], level: float | None = None) -> Markup:
    """The last values of a metric as a small line, with its target; the words beside it say the same."""
    if len(values) < 2:
        return Markup("")
    low, high = min(*values, *([] if level is None else [level])), max(*values, *([] if level is None else [level]))
    height, step = (high - low) or 1.0, 98 / (len(values) - 1)

    def place(value: float) -> float:
        return 22 - 20 * (value - low) / height

    points = " ".join(f"{1 + index * step:.1f},{place(value):.1f}" for index, value in enumerate(values))
    goal = Markup("")
    if level is not None:
        goal = Markup('<line class="target" x1="0" x2="100" y1="{0}" y2="{0}"/>').format(f"{place(level):.1f}")
    head = Markup('<svg class="spark" viewBox="0 0 100 24" aria-hidden="true">{}').format(goal)
    return head + Markup('<polyline class="line" points="{}"/></svg>').format(points)


def _finalize(value: Any) -> Any:
    return text(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def environment() -> Environment:
    """The templates, with everything escaped unless our own code made it."""
    made = Environment(
        loader=PackageLoader("pursuit.page", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    filters = cast("dict[str, Any]", made.filters)  # pyright: ignore[reportUnknownMemberType] - jinja2 types neither
    known = cast("dict[str, Any]", made.globals)  # pyright: ignore[reportUnknownMemberType]
    filters |= {"figure": figure, "span": span, "when": when, "tone": tone, "folded": folded, "content": content}
    filters |= {"amount": amount, "diff": diff, "sparkline": sparkline, "evidence": evidence_words, "compact": compact}
    known |= {"version": __version__, "changes": changes, "seconds_between": seconds_between, "shown_caps": SHOWN}
    known |= {"cap_labels": {cap.used: cap.label for cap in SHOWN}}
    return made
