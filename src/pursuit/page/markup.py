"""Turns values into markup: the templates, and filters for output of tools and models.

Invariant: output of tools is text. It is escaped, control and direction marks are replaced, addresses do not become
links, and an image is shown only if it is a small bitmap of a known format.
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
from pursuit.core.report import iso
from pursuit.reports.html import printable
from pursuit.reports.wording import amount, compact, evidence_words, figure, seconds_between, span, text

MAX_IMAGE: Final = 2 * 1024 * 1024
"""Maximum bytes of a displayed image; of a larger image only the size is shown."""
FOLDED_NODES: Final = 2_000
"""A value with more parts is shown as plain JSON: each fold is an element in the browser's memory."""
MAX_TEXT: Final = 4_000_000
MAX_COMPARED: Final = 5_000
"""Maximum lines of compared values: the time grows quadratically, and missions wait until it ends."""
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
"""The tone of each status; other statuses are calm."""


def tone(status: Any) -> str:
    """The tone of a status, for its colour; the status is always shown as text, too."""
    return TONES.get(str(status), "calm")


def when(value: Any) -> Markup:
    """A time (ISO text or seconds) as a `<time>`; the page's script shows it in the reader's zone."""
    if not value:
        return Markup("&ndash;")
    shown = text(iso(value) if isinstance(value, float) else value)
    return Markup('<time datetime="{}">{}</time>').format(shown, shown[:19].replace("T", " ") + " UTC")


def pretty(value: Any) -> str:
    return text(json.dumps(value, indent=2, ensure_ascii=False, default=str))[:MAX_TEXT]


def folded(value: Any) -> Markup:
    """A complete JSON value with foldable parts; strings keep their line breaks."""
    if _nodes(value, FOLDED_NODES) >= FOLDED_NODES:
        return Markup('<pre class="json">{}</pre>').format(pretty(value))
    return Markup('<div class="json">{}</div>').format(_fold(value, 0))


def _nodes(value: Any, most: int) -> int:
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
            return Markup('<pre class="str">{}</pre>').format(shown[:MAX_TEXT])
        case _:
            return Markup('<span class="num">{}</span>').format(text(json.dumps(value, default=str)))


def _details(entries: list[Markup], noun: str, depth: int, signs: str) -> Markup:
    opened = Markup(" open") if depth < _OPEN_DEPTH else Markup("")
    count = f"{signs} {len(entries):,} {noun}{'' if len(entries) == 1 else 's'}"
    body = Markup("").join(entries)
    return Markup("<details{}><summary>{}</summary><ul>{}</ul></details>").format(opened, count, body)


def content(result: Any) -> Markup:
    blocks = cast("Mapping[str, Any]", result).get("content") if isinstance(result, Mapping) else None
    if not isinstance(blocks, list):
        return folded(result)
    shown: list[Markup] = []
    left: dict[str, Any] = {key: item for key, item in cast("Mapping[str, Any]", result).items() if key != "content"}
    texts = [
        cast("Mapping[str, Any]", one).get("text") for one in cast("list[Any]", blocks) if isinstance(one, Mapping)
    ]
    if "structuredContent" in left and any(_json(one) == left["structuredContent"] for one in texts):
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


def _json(shown: Any) -> Any:
    try:
        return json.loads(shown)
    except (ValueError, TypeError, RecursionError):
        return None


def _text_block(shown: str) -> Markup:
    value = _json(shown)
    if isinstance(value, dict | list):
        with suppress(RecursionError):  # a text can nest deeper than messages may
            return folded(value)
    return Markup('<pre class="text">{}</pre>').format(shown[:MAX_TEXT])


def image(data: Any, mime: Any) -> Markup:
    kind = str(mime)[:80]
    try:
        raw = base64.b64decode(str(data), validate=True)
    except (NotBase64, ValueError):
        return Markup('<p class="note">An image that is not base64 ({}).</p>').format(kind)
    if not any(raw.startswith(sign) for sign in _SIGNATURES.get(kind, ())):
        return Markup('<p class="note">Not shown: {} of {:,} bytes.</p>').format(kind, len(raw))
    if len(raw) > MAX_IMAGE:
        return Markup('<p class="note">An image of {:,} bytes ({}) is too large to show.</p>').format(len(raw), kind)
    packed = base64.b64encode(raw).decode()
    return Markup('<img class="result" alt="Image that the tool returned" src="data:{};base64,{}">').format(
        kind, packed
    )


def changes(before: Any, after: Any) -> Markup | None:
    """The line-by-line difference of two JSON values; None if they are equal."""
    old, new = pretty(before).splitlines(), pretty(after).splitlines()
    if old != new and max(len(old), len(new)) > MAX_COMPARED:
        return Markup('<p class="note">They differ, but {:,} and {:,} lines are too many to compare.</p>').format(
            len(old), len(new)
        )
    body = "\n".join([*difflib.unified_diff(old, new, lineterm="", n=2)][2:])
    return diff(body) if body else None


def diff(body: Any) -> Markup:
    rows: list[Markup] = []
    for line in text(body)[:MAX_TEXT].split("\n"):
        kind = {"+": "ins", "-": "del", "@": "at"}.get(line[:1], "same")
        rows.append(Markup('<span class="{}">{}</span>').format(kind, line))
    return Markup('<pre class="diff">{}</pre>').format(Markup("\n").join(rows))


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("pursuit.page", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=printable,
    )
    filters = cast("dict[str, Any]", made.filters)  # pyright: ignore[reportUnknownMemberType] - jinja2 types neither
    known = cast("dict[str, Any]", made.globals)  # pyright: ignore[reportUnknownMemberType]
    filters |= {"figure": figure, "span": span, "when": when, "tone": tone, "folded": folded, "content": content}
    filters |= {"amount": amount, "diff": diff, "evidence": evidence_words, "compact": compact}
    known |= {"version": __version__, "changes": changes, "seconds_between": seconds_between}
    return made
