"""An MCP server that plays Mastermind: `python -m pursuit.demo.mastermind CODE`.

It is stateless, so a game can continue with a new server; the problem that serves it counts the guesses.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from pydantic import Field

COLOURS = "ABCDEF"
PLACES = 4
Code = Annotated[str, Field(pattern=f"^[{COLOURS}]{{{PLACES}}}$", description="four of the letters A to F")]


def pegs(secret: str, guess: str) -> tuple[int, int]:
    """The number of correct letters in the right place, and in another place."""
    black = sum(one == other for one, other in zip(secret, guess, strict=True))
    return black, sum((Counter(secret) & Counter(guess)).values()) - black


def build_server(secret: str) -> MCPServer:
    server = MCPServer("mastermind", version="1", log_level="WARNING")

    @server.tool(structured_output=True)
    async def guess(code: Code) -> dict[str, Any]:
        """Compares a guess with the hidden code: `black` counts letters in place, `white` those elsewhere."""
        black, white = pegs(secret, code)
        return {"black": black, "white": white, "metrics": {"black": black, "white": white}}

    @server.tool(structured_output=True)
    async def final_answer(code: Code) -> dict[str, Any]:
        """Submits the hidden code; allowed once."""
        return {"right": code == secret}

    # The decorators register them; the type checker wants each name to be used.
    _ = guess, final_answer
    return server


def main(argv: list[str]) -> int:
    """Serves over standard input and output until it is closed."""
    if len(argv) != 1 or len(argv[0]) != PLACES or set(argv[0]) - set(COLOURS):
        sys.stderr.write("usage: python -m pursuit.demo.mastermind CODE (four of the letters A to F)\n")
        return 2
    build_server(argv[0]).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
