"""How many tokens a request has, and how many of them a provider's prompt cache holds.

A token is four bytes of the prompt's JSON: simple, the same everywhere, and in proportion to what real ones count.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from provider_rules import Json, Shape

BYTES = 4
LEAST_CACHED = 1_024
"""Both providers cache nothing shorter."""
OPENAI_STEP = 128
LOOKBACK = 20
"""Anthropic looks for an earlier entry so many blocks before each breakpoint."""
IMAGE_TOKENS = 1_500


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Input tokens: read from the cache, written to it, and neither."""

    fresh: int
    written: int = 0
    cached: int = 0

    @property
    def total(self) -> int:
        return self.fresh + self.written + self.cached


def tokens_of(value: Any) -> int:
    """The tokens of a text, or of a value as JSON."""
    return -(-len(_rendered(value)) // BYTES)


class PromptCache:
    """What a provider has seen; prefixes never expire."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()
        self._lock = threading.Lock()

    def count(self, body: Json, shape: Shape) -> Counted:
        """Counts the tokens of a request and keeps its prefixes."""
        with self._lock:
            return self._by_breakpoints(body) if shape == "anthropic" else self._by_prefix(body, shape)

    def _by_prefix(self, body: Json, shape: Shape) -> Counted:
        parts = [body.get("tools") or [], body.get("instructions") or ""]
        given = body["messages"] if shape == "openai-chat" else body.get("input") or ""
        parts += given if isinstance(given, list) else [given]
        prompt = b"".join(map(_rendered, parts))
        step, chain = OPENAI_STEP * BYTES, _seed(body, body.get("prompt_cache_key"))
        known, chains = 0, list[bytes]()
        for start in range(0, len(prompt) - step + 1, step):
            chain = hashlib.sha256(chain + prompt[start : start + step]).digest()
            chains.append(chain)
            known += known == len(chains) - 1 and chain in self._seen
        total = -(-len(prompt) // BYTES)
        cached = known * OPENAI_STEP if known * OPENAI_STEP >= LEAST_CACHED else 0
        if total >= LEAST_CACHED:
            self._seen.update(chains)
        return Counted(fresh=total - cached, cached=cached)

    def _by_breakpoints(self, body: Json) -> Counted:
        chain, size = _seed(body), 0
        ends: list[tuple[bytes, int]] = []
        marks: list[int] = []
        for content, marked in _cacheable(body):
            chain = hashlib.sha256(chain + content).digest()
            size += len(content)
            ends.append((chain, -(-size // BYTES)))
            if marked:
                marks.append(len(ends) - 1)
        if body.get("cache_control"):
            marks.append(len(ends) - 1)
        total = ends[-1][1]
        read, upto = 0, 0
        for mark in marks:
            back = [tokens for chain, tokens in ends[max(0, mark - LOOKBACK) : mark + 1] if chain in self._seen]
            read = max([read, *back])
        for mark in marks:
            chain, tokens = ends[mark]
            if tokens >= LEAST_CACHED:
                self._seen.add(chain)
                upto = max(upto, tokens)
        written = max(0, upto - read)
        return Counted(fresh=total - read - written, written=written, cached=read)


def _seed(body: Json, key: str | None = None) -> bytes:
    return hashlib.sha256(f"{body['model']}|{key}".encode()).digest()


def _cacheable(body: Json) -> Iterator[tuple[bytes, bool]]:
    """The blocks of Anthropic's prompt in the order of its cache: tools, system, messages; with their breakpoints."""
    for tool in body.get("tools") or ():
        yield _unmarked(tool)
    for block in _text(body.get("system") or []):
        yield _unmarked(block)
    # A change of these makes the cached messages invalid, though not the tools and the system text before them.
    yield _rendered([body.get("thinking"), body.get("tool_choice")]), False
    for message in body["messages"]:
        for block in _text(message["content"]):
            content, marked = _unmarked(block)
            yield message["role"].encode() + content, marked


def _text(content: str | list[Json]) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _unmarked(block: Json) -> tuple[bytes, bool]:
    marked = block.get("cache_control") is not None
    plain = {name: value for name, value in block.items() if name != "cache_control"}
    if isinstance(block.get("content"), list):
        inner = [_unmarked(part) for part in block["content"]]
        marked = marked or any(mark for _content, mark in inner)
        plain["content"] = [content.decode() for content, _mark in inner]
    return _rendered(plain), marked


def _rendered(value: Any) -> bytes:
    """JSON in the order in which it came: a provider that reads keys in another order reads another prompt."""
    text = value if isinstance(value, str) else json.dumps(_images(value), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def _images(value: Any) -> Any:
    """The value with images and audio as texts of `IMAGE_TOKENS` tokens, which stand for their bytes."""
    if isinstance(value, list):
        return [_images(part) for part in value]
    if not isinstance(value, dict):
        return value
    data = value.get("data") or value.get("url") or value.get("image_url")
    if isinstance(data, str) and (data.startswith("data:") or "media_type" in value or "format" in value):
        digest = hashlib.sha256(data.encode()).hexdigest()
        return (digest * (IMAGE_TOKENS * BYTES // len(digest) + 1))[: IMAGE_TOKENS * BYTES]
    return {name: _images(part) for name, part in value.items()}
