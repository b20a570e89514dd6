"""Which arguments of one tool another one takes.

Owns: reading that off the other tool's JSON Schema. Pure. Invariant: what a schema says nothing about is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

_FURTHER = ("$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties")
"""Where a schema may name further properties than those that it lists."""


def fitting(args: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that the schema knows; all of them where it lists none, or says that there may be others."""
    known = schema.get("properties")
    if not isinstance(known, Mapping) or schema.get("additionalProperties") or any(one in schema for one in _FURTHER):
        return dict(args)
    names = cast("Mapping[str, Any]", known)
    return {name: value for name, value in args.items() if name in names}
