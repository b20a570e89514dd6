"""What a tool may do, from the operator's word and the server's own annotations.

Owns: the order of belief. Does not know: where either came from. Invariant: without the operator's trust an annotation
never makes a tool look safer; nothing known means the worst.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pursuit.tools.contract import Traits
from pursuit.tools.server_config import ToolOverride

_SILENT = ToolOverride()


def traits(
    override: ToolOverride | None,
    annotations: Mapping[str, Any] | None,
    trusted: bool = False,
    *,
    timeout: float | None = None,
) -> Traits:
    """The operator's word first; then, if the server is trusted, its annotations; then what follows from read-only.

    An untrusted annotation could only tighten, and where the operator is silent the answer is the worst already.
    `timeout` is the server's own call timeout, for a tool without one.
    """
    said = override or _SILENT
    hints: Mapping[str, Any] = annotations if trusted and annotations is not None else {}
    read_only = _first(said.read_only, _hint(hints, "readOnlyHint"), default=False)
    if said.destructive:
        # The operator's "destructive" outweighs a server that calls itself read-only.
        read_only = said.read_only or False
    destructive = not read_only and _hint(hints, "destructiveHint") is not False
    return Traits(
        read_only=read_only,
        idempotent=_first(said.idempotent, read_only or _hint(hints, "idempotentHint"), default=False),
        parallel_safe=_first(said.parallel_safe, read_only, default=False),
        destructive=_first(said.destructive, destructive, default=True),
        timeout=said.timeout if said.timeout is not None else timeout,
    )


def _hint(hints: Mapping[str, Any], key: str) -> bool | None:
    """A hint counts only as a real true or false: servers send texts and numbers too."""
    value = hints.get(key)
    return value if isinstance(value, bool) else None


def _first(*answers: bool | None, default: bool) -> bool:
    return next((answer for answer in answers if answer is not None), default)
