"""Serves a runtime: opens it, composes the server over it, and runs the transport.

Invariant: however serving ends, every mission is recorded and resumable.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, nullcontext
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus
from mcp.server.lowlevel import Server

from pursuit.server.logs import event
from pursuit.server.missions.server import mission_server, opening_server
from pursuit.server.stdio import serve_stdio

if TYPE_CHECKING:
    from starlette.routing import Route

    from pursuit.runtime import Runtime
    from pursuit.server.bind import HttpBinding
    from pursuit.server.gateway.upstreams import GatewayOptions

log = logging.getLogger(__name__)


async def serve(
    runtime: Runtime,
    door: HttpBinding | None = None,
    *,
    gateway: GatewayOptions | None = None,
    page: Callable[[Runtime], AbstractAsyncContextManager[Sequence[Route]]] | None = None,
    listening: Callable[[str], None] | None = None,
) -> None:
    """Serves missions, or with `gateway` the configured servers; SIGHUP reloads a gateway's configuration.

    Serves HTTP at `door` until cancelled; without `door`, serves stdio until standard input ends. `page` opens the
    routes of the operator's page, which HTTP serves beside MCP.
    """
    composed = mission_server(runtime) if gateway is None else _reloading(runtime, gateway)
    if door is None:
        async with runtime, composed as server:
            await _over_stdio(server)
        return
    from pursuit.server.access import MISSIONS, UPSTREAM  # noqa: PLC0415
    from pursuit.server.http import serve_http  # noqa: PLC0415
    from pursuit.server.operator_api import approval_routes  # noqa: PLC0415 - stdio starts without a web stack

    rules = MISSIONS if gateway is None else UPSTREAM
    # Bound first: without its address, the server must not start schedules, missions or processes.
    with closing(await anyio.to_thread.run_sync(door.listen)) as listener:
        runtime.serves_http = True
        async with runtime, composed as server, nullcontext(()) if page is None else page(runtime) as more:
            own = [] if door.operators is None else approval_routes(runtime.runner, door.operators, door.oauth)
            routes = [*own, *more]
            await serve_http(server, door, listener, routes=routes, rules=rules, listening=listening)


async def serve_missions(open_runtime: Callable[[], Runtime]) -> None:
    """Serves missions over stdio; a runtime without commands, for all missions, opens when it is needed."""
    async with opening_server(open_runtime) as server:
        await _over_stdio(server)


async def _over_stdio(server: Server[Any]) -> None:
    event(log, logging.INFO, "serving", transport="stdio")
    await serve_stdio(server)
    event(log, logging.INFO, "the client has gone")


async def serve_page(
    runtime: Runtime,
    door: HttpBinding,
    page: Callable[[Runtime], AbstractAsyncContextManager[Sequence[Route]]],
    listening: Callable[[str], None],
) -> None:
    """Serves only the operator's page, without MCP and without driving missions, until cancelled."""
    from pursuit.server.http import serve_http  # noqa: PLC0415 - stdio starts without a web stack

    async with runtime, page(runtime) as routes:
        await serve_http(None, door, routes=routes, listening=listening)


@asynccontextmanager
async def _reloading(runtime: Runtime, options: GatewayOptions) -> AsyncGenerator[Server[Any]]:
    from pursuit.server.gateway.server import open_gateway  # noqa: PLC0415 - missions are served without it

    async def reload(*, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGHUP) as signals:
            task_status.started()
            async for _ in signals:
                await gateway.reload()

    await runtime.toolbox.host.pool.connect_required()
    async with open_gateway(runtime, options) as gateway, anyio.create_task_group() as tasks:
        if options.reloads:
            await tasks.start(reload)
        yield await gateway.server()
        tasks.cancel_scope.cancel()
