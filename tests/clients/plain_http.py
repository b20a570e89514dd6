"""Requests of the new era over HTTP by hand: one POST each, every header as it is given."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

VERSION = "2026-07-28"
ENVELOPE = "io.modelcontextprotocol/"
TASKS: Mapping[str, Any] = {"extensions": {f"{ENVELOPE}tasks": {}}}


def post(
    url: str,
    method: str,
    params: Mapping[str, Any] | None = None,
    *,
    able: Mapping[str, Any] = TASKS,
    token: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The answer, `result` or `error`, with the HTTP status."""
    given = dict(params or {})
    named = given.get("taskId") or given.get("name") or given.get("uri")
    meta = {
        f"{ENVELOPE}protocolVersion": VERSION,
        f"{ENVELOPE}clientInfo": {"name": "t", "version": "1"},
        f"{ENVELOPE}clientCapabilities": able,
    }
    said = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**given, "_meta": meta}}
    sent = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": method,
        **({} if named is None else {"Mcp-Name": str(named)}),
        **({} if token is None else {"Authorization": f"Bearer {token}"}),
        **(headers or {}),
    }
    request = urllib.request.Request(url, json.dumps(said).encode(), sent)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    lines = [line.removeprefix("data:").strip() for line in text.splitlines() if line.startswith("data:")]
    found = json.loads(lines[-1] if lines else text)
    return {"status": status, **{key: found[key] for key in ("result", "error") if key in found}}
