"""Which way to reach a server: from its configuration, or from the object itself, to an `McpUpstream`.

Owns: the choice of the transport and the child's environment. Does not know: sessions or processes. Invariant: a
variable is expanded at each connect, and its value goes to the child process and nowhere else.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from typing import Any

import anyio
import anyio.abc
from mcp.client.stdio import get_default_environment
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher

from pursuit.errors import UpstreamUnavailable
from pursuit.tools.connection import Era, Line, Opener
from pursuit.tools.inprocess import in_process, is_server
from pursuit.tools.launch import Launch
from pursuit.tools.server_config import ServerConfig, expand, secrets_of
from pursuit.tools.session import McpUpstream
from pursuit.tools.stderr import StderrTail
from pursuit.tools.stdio import stdio


def mcp_upstream(name: str, thing: Any, tasks: anyio.abc.TaskGroup, *, era: Era = "auto") -> McpUpstream | None:
    """The upstream for a configuration or an SDK server object; None for anything else."""
    tail = StderrTail()
    if isinstance(thing, ServerConfig):
        opener = over_stdio(thing, tail) if thing.transport == "stdio" else _not_yet(thing)
        return McpUpstream(thing, opener, tasks=tasks, tail=tail, era=era)
    if is_server(thing):
        # The user's own object: its annotations are the operator's word.
        config = ServerConfig(name=name, trust_annotations=True)
        return McpUpstream(config, in_process(thing), tasks=tasks, tail=tail)
    return None


def over_stdio(config: ServerConfig, tail: StderrTail) -> Opener:
    """An opener that starts the configured command."""

    async def opened(stack: AsyncExitStack, over: anyio.Event) -> Line:
        environ = dict(os.environ)
        ready = expand(config, environ)
        tail.secrets = secrets_of(config, ready, environ)
        launch = Launch(
            argv=(ready.command or "", *ready.args),
            env=get_default_environment() | dict(ready.env),
            cwd=ready.cwd,
        )
        line = await stack.enter_async_context(stdio(launch, tail=tail, over=over))
        return Line(dispatcher=JSONRPCDispatcher(line.inbox, line.outbox), ending=line.ending)

    return opened


def _not_yet(config: ServerConfig) -> Opener:
    async def opened(_stack: AsyncExitStack, _over: anyio.Event) -> Line:
        raise UpstreamUnavailable(f"the transport {config.transport!r} is not available yet in this release")

    return opened
