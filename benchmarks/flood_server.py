"""The servers of `floods.py`. It imports little, so that it starts at once.

Run: python benchmarks/flood_server.py (notes | pages | deep | trap) NOTIFICATIONS PAGES
"""

from __future__ import annotations

import json
import sys
from typing import Any

LEVELS = 100_000
EXPRESSIONS = "".join(f"{{v{number}}}" for number in range(40))


def play_server() -> None:
    """A server of the 2025 era that answers each request with a flood."""

    what, notifications, pages = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

    def say(**message: Any) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    for line in sys.stdin:
        asked = json.loads(line)
        method, ident, params = asked.get("method"), asked.get("id"), asked.get("params") or {}
        if ident is None:
            continue
        if method == "initialize":
            offers = {"tools": {}, "resources": {"listChanged": True}}
            info = {"name": "flood", "version": "1"}
            version = {"protocolVersion": "2025-06-18", "capabilities": offers, "serverInfo": info}
            say(id=ident, result=version)
        elif method == "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("notify", "deep")]
            say(id=ident, result={"tools": tools})
        elif method == "resources/list" and what == "pages":
            page = int(params.get("cursor", 0))
            entries = [{"uri": f"page://{page}", "name": "x" * 1_000_000}]
            say(id=ident, result={"resources": entries, **({"nextCursor": str(page + 1)} if page < pages else {})})
        elif method == "resources/templates/list":
            template = f"trap://{EXPRESSIONS}!"
            say(id=ident, result={"resourceTemplates": [{"uriTemplate": template, "name": "trap"}]})
        elif method == "tools/call" and params["name"] == "deep":
            nested = "[" * LEVELS + "]" * LEVELS
            sys.stdout.write(f'{{"jsonrpc":"2.0","id":{ident},"result":{nested}}}\n')
            sys.stdout.flush()
        elif method == "tools/call":
            for _ in range(notifications):
                say(method="notifications/resources/list_changed", params={"pad": "x" * 2_000_000})
            say(id=ident, result={"content": []})
        else:
            say(id=ident, result={"resources": [], "prompts": [], "contents": []})


if __name__ == "__main__":
    play_server()
