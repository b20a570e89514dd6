"""One set of promises, kept by every way to reach a server: stdio and HTTP in both eras, SSE, in process, functions."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import psutil
import pytest
from process_ends import lives
from quick_start import quick

from pursuit.config.servers import ClientSettings, ServerConfig, Timeouts, parse_servers
from pursuit.core.tools import CallFailed, Tool, ToolOverride, ToolResult, Upstream
from pursuit.errors import UpstreamUnavailable
from pursuit.upstream.client import McpUpstream
from pursuit.upstream.connection import Era
from pursuit.upstream.factory import in_process, mcp_upstream, sdk_server
from pursuit.upstream.functions import FunctionUpstream, tool
from pursuit.upstream.pool import Pool
from pursuit.upstream.stdio import command_line

SERVERS = Path(__file__).parent.parent / "servers"
sys.path.insert(0, str(SERVERS))

from fixture import RUNNING, TOOLS, build  # noqa: E402 - found through the path above
from http_fixture import served, sse_app  # noqa: E402 - found through the path above

# They share a server, so one worker runs them all.

ARGUMENTS = {"null": None, "nested": {"null": None, "list": [None, {"deep": None}]}, "class": 1, "_x": "ü\n"}


# On a machine that stalls, an exit code may come late.
PATIENT = ClientSettings(exit_wait=60.0)


def fixture_config(**more: Any) -> ServerConfig:
    args = (quick(str(SERVERS / "fixture.py")),)
    return ServerConfig(**{"name": "fixture", "command": sys.executable, "args": args, "client": PATIENT, **more})


def odd_config(*words: str, client: ClientSettings = PATIENT, **more: Any) -> ServerConfig:
    args = ("-S", str(SERVERS / "odd.py"), *words)
    return ServerConfig(name="odd", command=sys.executable, args=args, client=client, **more)


@tool(read_only=True)
def echo(**arguments: Any) -> dict[str, Any]:
    return {"arguments": arguments}


def fail() -> None:
    raise ValueError("it did not work")


async def hang(path: str) -> None:
    Path(path).write_text("started")
    try:
        await anyio.sleep_forever()
    finally:
        Path(path).write_text("cancelled")


@asynccontextmanager
async def stdio_upstream(config: ServerConfig | None = None, era: Era = "auto") -> Any:
    async with anyio.create_task_group() as tasks:
        upstream = mcp_upstream("fixture", config or fixture_config(), tasks, era=era)
        yield upstream
        await upstream.aclose()


@asynccontextmanager
async def http_upstream(era: Era = "auto", **options: Any) -> Any:
    async with served(build().streamable_http_app(**options)) as url, anyio.create_task_group() as tasks:
        config = ServerConfig(name="fixture", transport="http", url=f"{url}/mcp")
        upstream = mcp_upstream("fixture", config, tasks, era=era)
        yield upstream
        await upstream.aclose()


@asynccontextmanager
async def sse_upstream() -> Any:
    async with served(sse_app(build())) as url, anyio.create_task_group() as tasks:
        config = ServerConfig(name="fixture", transport="sse", url=f"{url}/sse")
        upstream = mcp_upstream("fixture", config, tasks)
        yield upstream
        await upstream.aclose()


@asynccontextmanager
async def pooled(thing: Any) -> Any:
    async with Pool({}, {"fixture": thing}) as pool:
        yield pool.upstream("fixture")


WAYS: dict[str, Callable[[], Any]] = {
    "stdio-2026": stdio_upstream,
    "stdio-2025": partial(stdio_upstream, era="legacy"),
    "http-2026": http_upstream,
    "http-2025": partial(http_upstream, "legacy"),
    "sse-2025": sse_upstream,
    "in-process": lambda: pooled(build()),
    "functions": lambda: pooled({"echo": echo, "fail": fail, "hang": hang}),
}


class Reached:
    """An upstream that lives in its own loop for all tests of a module; a server of the SDK is slow to start."""

    def __init__(self, way: str, upstream: Any, portal: anyio.from_thread.BlockingPortal) -> None:
        self.way = way
        self.upstream = upstream
        self.portal = portal

    def run(self, function: Callable[[Any], Awaitable[Any]]) -> Any:
        async def bounded() -> Any:
            with anyio.fail_after(120):
                return await function(self.upstream)

        return self.portal.call(bounded)

    def call(self, name: str, arguments: dict[str, Any] | None = None) -> ToolResult:
        return self.run(lambda upstream: upstream.call(name, arguments or {}, call_id="c-1"))


@pytest.fixture(scope="module", params=list(WAYS))
def reached(request: pytest.FixtureRequest) -> Iterator[Reached]:
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(WAYS[request.param]()) as upstream,
    ):
        yield Reached(request.param, upstream, portal)


MCP = ("stdio", "http", "sse", "in-process")


def only(*ways: str) -> pytest.MarkDecorator:
    """The test is about a promise of these ways alone."""
    return pytest.mark.parametrize(
        "reached", [way for way in WAYS if way.startswith(ways)], indirect=True, scope="module"
    )


def test_all_pages_are_listed_untouched(reached: Reached) -> None:
    tools: Sequence[Tool] = reached.run(lambda upstream: upstream.tools())
    names = [one.name for one in tools]
    if reached.way == "functions":
        assert names == ["echo", "fail", "hang"]
        return
    assert names == TOOLS
    by_name = {one.name: one for one in tools}
    assert by_name["slow"].definition["_meta"] == {"com.example/kept": [1, None]}
    assert by_name["slow"].definition["title"] == "Slow"
    # A server in our own process is the operator's own; a foreign one is not believed.
    assert by_name["echo"].traits.read_only is (reached.way == "in-process")


def test_explicit_nulls_arrive(reached: Reached) -> None:
    result = reached.call("echo", ARGUMENTS)
    assert result.structured["arguments"] == ARGUMENTS
    assert not result.is_error


@only(*MCP)
def test_the_call_id_travels(reached: Reached) -> None:
    assert reached.call("echo").structured["meta"]["pursuit/callId"] == "c-1"


def test_a_failing_tool_is_a_result(reached: Reached) -> None:
    result = reached.call("fail")
    assert result.is_error
    assert "it did not work" in result.content[0]["text"]


@only(*MCP)
def test_a_refusal_is_a_failed_call(reached: Reached) -> None:
    with pytest.raises(CallFailed, match="no such luck"):
        reached.call("refuse")


@only(*MCP)
def test_progress_arrives(reached: Reached) -> None:

    async def main(upstream: Upstream) -> list[Any]:
        seen: list[Any] = []
        all_seen = anyio.Event()

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            seen.append((progress, total, message))
            if len(seen) == 3:
                all_seen.set()

        await upstream.call("slow", {}, call_id="c-2", on_progress=on_progress)
        await all_seen.wait()
        return seen

    assert sorted(reached.run(main)) == [(0, 3, "step 0"), (1, 3, "step 1"), (2, 3, "step 2")]


def test_cancelling_reaches_the_tool_and_the_connection_stays(reached: Reached, tmp_path: Path) -> None:
    path = tmp_path / "hang"

    async def main(upstream: Upstream) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(upstream.call, "hang", {"path": str(path)}, call_id="c-3"))
            await written(path, "started")
            tasks.cancel_scope.cancel()
        await written(path, "cancelled")

    reached.run(main)
    assert reached.call("echo", {"still": "here"}).structured["arguments"] == {"still": "here"}


@only(*MCP)
def test_a_question_to_a_person_is_a_failed_call(reached: Reached) -> None:
    expected = "Elicitation not supported" if reached.way.endswith("2025") else "requires user input"
    with pytest.raises(CallFailed, match=expected):
        reached.call("ask")


@only("stdio")
def test_only_a_safe_environment_is_inherited(reached: Reached, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "PYTEST_CURRENT_TEST" in os.environ
    assert "PYTEST_CURRENT_TEST" not in reached.call("environment").structured["names"]


async def written(path: Path, content: str) -> None:
    """Files are how another process reports; there is nothing to wait on but the file."""
    with anyio.fail_after(120):
        while not path.exists() or path.read_text() != content:
            await anyio.sleep(0.01)


async def gone(*pids: int, within: float = 60.0) -> bool:
    with anyio.move_on_after(within):
        while any(map(lives, pids)):
            await anyio.sleep(0.01)
        return True
    return False


async def test_one_odd_tool_is_left_out_and_the_rest_are_listed() -> None:
    config = odd_config(tools={"loose": ToolOverride(read_only=True, timeout=5)}, trust_annotations=True)
    async with stdio_upstream(config) as upstream:
        tools, warnings = list(await upstream.tools()), upstream.warnings
    assert [one.name for one in tools] == ["fine", "loose", "odd_ref", "mistyped"]
    assert tools[0].definition == {"name": "fine", "inputSchema": {"type": "object"}, "x-unknown": {"kept": None}}
    assert (tools[1].traits.read_only, tools[1].traits.timeout) == (True, 5)
    assert tools[3].traits.read_only is False
    # The listing came twice, by its endless cursor: so do the warnings.
    reasons = "\n".join(warnings)
    for words in (
        "fine: listed twice",
        "no-schema is left out",
        "listy is left out",
        "no usable name",
        "not an object",
    ):
        assert words in reasons


async def test_tools_that_the_operator_disabled_are_not_listed() -> None:
    async with stdio_upstream(odd_config(enabled_tools=("fine", "l*"), disabled_tools=("loose",))) as upstream:
        found = [one.name for one in await upstream.tools()]
    assert found == ["fine"]


async def test_a_server_that_hangs_up_on_discovery_is_reached_by_the_handshake() -> None:
    async with stdio_upstream(odd_config("hangup")) as upstream:
        result = await upstream.call("fine", {}, call_id="c")
        version, pid = upstream.protocol_version, result.content[0]["text"]
    assert version == "2025-06-18"
    assert not psutil.pid_exists(int(pid))


async def test_a_malformed_result_is_a_failed_call() -> None:
    async with stdio_upstream(odd_config()) as upstream:
        with pytest.raises(CallFailed, match="malformed"):
            await upstream.call("malformed", {}, call_id="c")
        with pytest.raises(CallFailed, match="not valid JSON"):
            await upstream.call("fine", {"value": object()}, call_id="c")


async def test_a_flood_and_a_large_result_pass() -> None:
    async with stdio_upstream(odd_config()) as upstream:
        found = len((await upstream.call("flood", {}, call_id="c")).content[0]["text"])
    assert found == 3_000_000


@pytest.mark.parametrize(("limit", "most"), [(2, 2), (None, 6)])
async def test_calls_run_side_by_side_up_to_the_limit(limit: int | None, most: int) -> None:
    RUNNING.update(now=0, most=0)
    async with anyio.create_task_group() as tasks:
        config = ServerConfig(name="fixture", concurrency=limit)
        upstream = McpUpstream(config, in_process(sdk_server(build())), tasks=tasks)
        async with anyio.create_task_group() as calls:
            for number in range(6):
                calls.start_soon(partial(upstream.call, "crowd", {"most": most}, call_id=f"c-{number}"))
        await upstream.aclose()
    assert RUNNING["most"] == most


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (ServerConfig(name="x", command="no-such-command-at-all"), "'no-such-command-at-all' was not found"),
        (ServerConfig(name="x", command=str(SERVERS / "fixture.py")), "is not executable"),
        (ServerConfig(name="x", command=sys.executable, cwd="/no/such/place"), "/no/such/place does not exist"),
        (ServerConfig(name="x", command="a", args=("${PURSUIT_UNSET}",)), r"PURSUIT_UNSET\} in args\[0\]"),
        (ServerConfig(name="x", transport="http", url="http://127.0.0.1:1"), "the connection failed"),
        (ServerConfig(name="x", transport="sse", url="http://127.0.0.1:1"), "the connection failed"),
        (ServerConfig(name="x", transport="http", url="ftp://127.0.0.1/x"), "url is malformed|deny"),
    ],
)
async def test_what_cannot_be_started_says_why(config: ServerConfig, reason: str) -> None:
    async with stdio_upstream(config) as upstream:
        with pytest.raises(UpstreamUnavailable, match=reason):
            await upstream.tools()
        with pytest.raises(CallFailed, match=f"(?s)not sent: .*{reason}"):
            await upstream.call("fine", {}, call_id="c")


async def test_a_command_that_is_no_mcp_server_is_told_in_one_sentence() -> None:
    async with stdio_upstream(
        ServerConfig(name="x", command="sh", args=("-c", "echo Welcome to the shell; seq 40"))
    ) as upstream:
        with pytest.raises(UpstreamUnavailable) as caught:
            await upstream.tools()
        assert caught.value.message == (
            "server 'x': its standard output is not MCP (its process exited with 0); its first line there is "
            "'Welcome to the shell'"
        )


async def test_a_command_that_may_be_downloading_gets_time_and_a_hint(tmp_path: Path) -> None:
    npx = tmp_path / "npx"
    npx.write_text("#!/bin/sh\nexec sleep 3600\n")
    npx.chmod(0o755)
    tables = {
        "cold": {"command": "npx"},
        "told": {"command": "/x/uvx", "timeouts": {"connect": 5}},
        "own": {"command": "x"},
    }
    servers, faults = parse_servers(tables, source="x", base=tmp_path)
    assert not faults
    assert [one.timeouts.connect for one in servers.values()] == [180.0, 5.0, 30.0]
    async with stdio_upstream(ServerConfig(name="x", command=str(npx), timeouts=Timeouts(connect=0.2))) as upstream:
        with pytest.raises(UpstreamUnavailable, match=r"within 0\.2 s; .*npx may still be downloading it: run it once"):
            await upstream.tools()


async def test_secrets_stay_out_of_every_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PURSUIT_TEST_PROGRAM", "hunter2-program")
    async with stdio_upstream(fixture_config(env={"API_TOKEN": "no such luck"})) as upstream:
        with pytest.raises(CallFailed, match=r"refused the call: \*\*\*"):
            await upstream.call("refuse", {}, call_id="c")
    async with stdio_upstream(ServerConfig(name="x", command="${PURSUIT_TEST_PROGRAM}")) as upstream:
        with pytest.raises(UpstreamUnavailable, match=r"'\*\*\*' was not found"):
            await upstream.tools()


def test_a_launcher_that_does_not_work_is_tried_once_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = tmp_path / "tried"
    launcher = tmp_path / "setpriv"
    launcher.write_text(f'#!/bin/sh\necho "$@" >> "{tried}"\nexit 1\n')
    launcher.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    config = ServerConfig(name="x", command=sys.executable, args=("-V",))
    assert [command_line(config, os.environ) for _ in range(2)] == [(sys.executable, "-V")] * 2
    if sys.platform == "linux":
        assert tried.read_text() == "--pdeathsig TERM -- true\n"


async def test_closing_ends_grandchildren_and_secrets_stay_out_of_the_tail() -> None:
    config = fixture_config(env={"API_TOKEN": "hunter2-secret"}, args=(str(SERVERS / "fixture.py"),))
    async with stdio_upstream(config, "legacy") as upstream:
        pids = (await upstream.call("spawn", {}, call_id="c")).structured
        with pytest.raises(CallFailed) as caught:
            await upstream.call("crash", {}, call_id="c")
        assert "hunter2" not in str(caught.value)
        assert "token=***" in str(caught.value)
    assert await gone(pids["pid"])
    assert not psutil.pid_exists(pids["server"]), "a zombie was left"


async def test_a_server_that_ignores_everything_is_killed(tmp_path: Path) -> None:
    hasty = ClientSettings(stdin_grace=0.2, term_grace=0.2)
    pidfile = tmp_path / "pid"
    async with stdio_upstream(odd_config("deaf", f"pidfile={pidfile}", client=hasty)) as upstream:
        await upstream.call("fine", {}, call_id="c")
    assert not psutil.pid_exists(int(pidfile.read_text()))


PARENT = """
import sys, anyio
from pursuit.upstream.pool import Pool
from pursuit.config.servers import ServerConfig
async def main():
    config = ServerConfig(name="odd", command=sys.executable, args=("-S", *sys.argv[1:]))
    async with Pool({"odd": config}) as pool:
        print((await pool.upstream("odd").call("fine", {}, call_id="c")).content[0]["text"], flush=True)
        await anyio.sleep_forever()
anyio.run(main)
"""


@pytest.mark.parametrize("word", ["polite", "lingers"])
async def test_no_server_outlives_a_killed_parent(word: str) -> None:
    if word == "lingers" and (sys.platform != "linux" or shutil.which("setpriv") is None):
        pytest.skip("only Linux tells a child that its parent died")
    async with await anyio.open_process(
        [sys.executable, "-c", PARENT, str(SERVERS / "odd.py"), word], stderr=None
    ) as parent:
        with anyio.fail_after(120):
            pid = int(await parent.stdout.receive())
        assert psutil.pid_exists(pid)
        parent.kill()
        assert await gone(pid)


async def test_the_pool_lists_what_answers_and_names_what_does_not() -> None:
    configs = {
        "odd": odd_config(),
        "broken": ServerConfig(name="broken", command="no-such-command-at-all"),
        "off": ServerConfig(name="off", command="x", enabled=False),
    }
    async with Pool(configs, {"here": [echo], "one": fail, "built": build()}) as pool:
        catalogue = await pool.catalogue()
        assert {"odd.fine", "here.echo", "one.fail", "built.echo"} <= set(catalogue.tools)
        assert list(catalogue.failures) == ["broken"]
        assert "not found" in catalogue.failures["broken"]
        assert any("no-schema" in warning for warning in catalogue.warnings)
        with pytest.raises(UpstreamUnavailable, match="did you mean 'here'"):
            pool.upstream("heer")
        with pytest.raises(UpstreamUnavailable, match="disabled"):
            pool.upstream("off")


async def test_a_required_server_that_fails_is_an_error() -> None:
    config = ServerConfig(name="broken", command="no-such-command-at-all", required=True)
    async with Pool({"broken": config}, {"here": [echo]}) as pool:
        with pytest.raises(UpstreamUnavailable, match="required servers cannot be reached: server 'broken'"):
            await pool.catalogue()
        assert list((await pool.catalogue(["here"])).tools) == ["here.echo"]


async def test_a_hanging_server_delays_no_other_call_and_leaving_the_pool_is_bounded() -> None:
    configs = {"odd": odd_config(), "silent": odd_config("silent")}
    with anyio.fail_after(20):  # to connect to the silent one would be given up after 30 s
        async with (
            Pool(configs, {"here": FunctionUpstream("here", [echo])}) as pool,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(pool.upstream("silent").tools)
            result = await pool.upstream("odd").call("fine", {}, call_id="c")
            assert int(result.content[0]["text"]) > 0
            assert (await pool.upstream("here").call("echo", {"a": 1}, call_id="c")).structured
            tasks.cancel_scope.cancel()
