"""How a baseline's script calls the problem's server, whatever that is called in one attempt.

Owns: where a script says `problem.tool(…)` or `"problem.tool"`, and the same script with another name in its place.
Does not know: attempts or servers. Pure. Invariant: every line stays where it is; a script that makes a name `problem`
of its own keeps it.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from contextlib import suppress

from pursuit.problems.files import parsed_python
from pursuit.sandbox.names import escaped

SERVER = "problem"
"""What a baseline calls the problem's server; in a mission each attempt has one of its own (`server_of`)."""

_QUOTED = re.compile(rf"(?<=[\"']){SERVER}\.(?=[\w{{])")


def addressed_script(source: str, server: str) -> str:
    """The script with the name of this attempt's server, as a name and at the beginning of texts."""
    source = source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")  # as the sandbox reads it
    lines = source.split("\n")
    with suppress(tokenize.TokenError, SyntaxError):
        for line, start in sorted(_names(source), reverse=True):
            text = lines[line - 1]
            lines[line - 1] = text[:start] + escaped(server) + text[start + len(SERVER) :]
    return _QUOTED.sub(f"{server}.", "\n".join(lines))


def _names(source: str) -> Iterator[tuple[int, int]]:
    """Where the server is named: line and column."""
    tree = parsed_python(source)
    nodes = [] if tree is None else list(ast.walk(tree))
    if any(isinstance(one, ast.Name) and one.id == SERVER and isinstance(one.ctx, ast.Store) for one in nodes):
        return
    if tree is None or any(isinstance(one, ast.arg) and one.arg == SERVER for one in nodes):
        return
    before, held = "", None
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if held is not None and token.string != "=":  # that would be an argument of this name
            yield held
        is_name = token.type == tokenize.NAME and token.string == SERVER and before != "."
        held = token.start if is_name else None
        before = token.string
