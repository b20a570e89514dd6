"""What the public servers are asked: for each, what it does and ways to be wrong.

Owns: the requests, and what a client that is asked says. Does not know: how a server is started. Invariant: in a fresh
world, in this order, a server fails exactly where a request says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Request(NamedTuple):
    """What to ask; `fails` is whether the server itself must answer with an error, None where servers differ."""

    method: str
    params: dict[str, Any]
    fails: bool | None = False


def call(tool: str, /, **arguments: Any) -> Request:
    return Request("tools/call", {"name": tool, "arguments": arguments})


def read(uri: str) -> Request:
    return Request("resources/read", {"uri": uri})


def prompt(name: str, **arguments: str) -> Request:
    return Request("prompts/get", {"name": name, "arguments": arguments})


def bad(request: Request) -> Request:
    return request._replace(fails=True)


def more(request: Request, **params: Any) -> Request:
    return request._replace(params={**request.params, **params})


# Ways to be wrong that every server has its own answer to.
WRONG = tuple(
    request._replace(fails=None)
    for request in (
        call("no_such_tool"),
        read("nowhere://at/all"),
        prompt("no-such-prompt"),
        Request("no/such/method", {"a": [None]}),
    )
)


def everything(_world: Path) -> Sequence[Request]:
    return (*_everything_tools(), *_everything_else())


def _everything_tools() -> Sequence[Request]:
    slow = call("trigger-long-running-operation", duration=0.2, steps=4)
    return (
        call("echo", message="Grüße, \u2028 \U0001f642 \x01"),
        bad(call("echo")),
        bad(call("echo", message=None)),
        call("get-sum", a=2, b=0.5),
        bad(call("get-sum", a="x", b=1)),
        call("get-tiny-image"),
        call("get-annotated-message", messageType="error", includeImage=True),
        call("get-annotated-message", messageType="debug", includeImage=False),
        call("get-structured-content", location="Chicago"),
        bad(call("get-structured-content", location="Nowhere")),
        call("get-resource-links", count=3),
        call("get-resource-reference", resourceType="Blob", resourceId=2),
        call("get-env"),
        more(slow, _meta={"progressToken": "p-1"}),
        more(slow, _meta={"progressToken": 17, "example.org/more": {"x": None}}),
        slow,
        call("gzip-file-as-resource", name="a.txt.gz", data="data:text/plain,hello", outputType="resource"),
        read("demo://resource/session/a.txt.gz"),
        # Not the tool that must be a task: a plain call of it is refused directly, and answered through the gateway.
    )


def _everything_else() -> Sequence[Request]:
    dynamic = "demo://resource/dynamic"
    complete = Request("completion/complete", {"ref": {"type": "ref/prompt", "name": "completable-prompt"}})
    sales = {"arguments": {"department": "Sales"}}
    return (
        read("demo://resource/static/document/features.md"),
        read(f"{dynamic}/text/1"),
        read(f"{dynamic}/blob/2"),
        bad(read(f"{dynamic}/text/none")),
        Request("resources/subscribe", {"uri": f"{dynamic}/text/1"}),
        Request("resources/unsubscribe", {"uri": f"{dynamic}/text/1"}),
        Request("logging/setLevel", {"level": "error"}),
        bad(Request("logging/setLevel", {"level": "shrill"})),
        prompt("simple-prompt"),
        prompt("args-prompt", city="Oslo"),
        bad(prompt("args-prompt")),
        prompt("resource-prompt", resourceType="Text", resourceId="1"),
        more(complete, argument={"name": "department", "value": "S"}),
        more(complete, argument={"name": "name", "value": ""}, context=sales),
        Request("ping", {}),
    )


# What a client that can be asked is asked by the same server, and what it says.
ABLE: Mapping[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {},
    "roots": {"listChanged": True},
}
ANSWERS: Mapping[str, Any] = {
    "roots/list": {"roots": [{"uri": "file:///somewhere", "name": "s", "_meta": {"example.org/x": None}}]},
    "sampling/createMessage": {
        "role": "assistant",
        "content": {"type": "text", "text": "forty-two"},
        "model": "none",
        "stopReason": "endTurn",
    },
    "elicitation/create": {"action": "accept", "content": {"name": "Ann", "interpretation": "technical"}},
}
ASKING: Sequence[Request] = (
    call("trigger-sampling-request", prompt="How many?", maxTokens=7),
    call("trigger-elicitation-request"),
    call("trigger-url-elicitation", url="https://example.org/go", elicitationId="e-1"),
    bad(call("trigger-url-elicitation", url="https://example.org/go", elicitationId="e-2", errorPath=True)),
    call("get-roots-list"),
)


def filesystem(world: Path) -> Sequence[Request]:
    file, new = str(world / "a.txt"), str(world / "new.txt")
    return (
        call("list_allowed_directories"),
        call("list_directory", path=str(world)),
        call("directory_tree", path=str(world)),
        call("list_directory_with_sizes", path=str(world)),
        call("read_text_file", path=file),
        call("read_text_file", path=file, head=1),
        bad(call("read_text_file", path=file, head=1, tail=1)),
        call("read_file", path=file),
        call("read_media_file", path=str(world / "sub" / "dot.png")),
        call("read_multiple_files", paths=[file, str(world / "none")]),
        call("get_file_info", path=file),
        call("search_files", path=str(world), pattern="**/*.png"),
        call("write_file", path=new, content="ünï\n\ttext"),
        call("edit_file", path=new, edits=[{"oldText": "text", "newText": "words"}], dryRun=True),
        call("edit_file", path=new, edits=[{"oldText": "text", "newText": "words"}]),
        bad(call("edit_file", path=new, edits=[{"oldText": "not there", "newText": ""}])),
        call("read_text_file", path=new),
        call("create_directory", path=str(world / "deep" / "er")),
        call("move_file", source=new, destination=str(world / "deep" / "moved.txt")),
        bad(call("move_file", source=new, destination=file)),
        bad(call("read_text_file", path=str(world.parent / "outside.txt"))),
        bad(call("write_file", path=file)),
    )


def git(world: Path) -> Sequence[Request]:
    at = {"repo_path": str(world)}
    return (
        call("git_status", **at),
        call("git_diff_unstaged", **at),
        call("git_diff_unstaged", **at, context_lines=0),
        call("git_diff_staged", **at),
        call("git_add", **at, files=["a.txt"]),
        call("git_diff_staged", **at),
        call("git_reset", **at),
        call("git_add", **at, files=["."]),
        call("git_commit", **at, message="second\n\nwith ünïcode"),
        bad(call("git_commit", **at, message="nothing")),
        call("git_log", **at, max_count=5),
        call("git_show", **at, revision="HEAD~1"),
        bad(call("git_show", **at, revision="no-such-revision")),
        call("git_create_branch", **at, branch_name="side", base_branch=None),
        call("git_checkout", **at, branch_name="side"),
        call("git_branch", **at, branch_type="local"),
        call("git_diff", **at, target="main~1"),
        bad(call("git_status", repo_path=str(world / "none"))),
        bad(call("git_log", **at, max_count="many")),
        bad(call("git_status")),
    )


def sqlite(_world: Path) -> Sequence[Request]:
    return (
        call("list_tables"),
        call("describe_table", table_name="fruit"),
        call("create_table", query="create table more (id integer primary key, words text)"),
        call("create_table", query="create table more (id integer)"),
        call("write_query", query="insert into more (words) values ('blå'), (null)"),
        call("read_query", query="select * from more left join fruit on 1"),
        call("read_query", query="select nothing"),
        call("read_query", query="delete from more"),
        bad(call("read_query")),
        call("append_insight", insight="figs sell"),
        read("memo://insights"),
        prompt("mcp-demo", topic="figs"),
        bad(prompt("mcp-demo")),
    )
