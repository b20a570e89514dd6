"""A server on the raw wire, so that no SDK tidies what it says: odd schemas, odd results, and every kind of question.

`modern` on the command line makes it one of 2026-07-28, otherwise it shakes hands as 2025-11-25. `name=X` is its name,
`pages=N` in how many pages it lists its tools, `tidy` leaves the odd ones out, `secretive` neither lists nor follows
resources, `dotted` has names with dots. What it was asked lies in `log=PATH`,
one JSON line for each message.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

WORDS = set(sys.argv[1:])
GIVEN = dict(word.split("=", 1) for word in WORDS if "=" in word)
MODERN = "modern" in WORDS
NAME = GIVEN.get("name", "hostile")
PAGES = int(GIVEN.get("pages", "5"))
ENVELOPE = "io.modelcontextprotocol/"
INFO = {"name": NAME, "version": "0.0", "title": f"The {NAME} one", "x-info": None}
CAPABILITIES = {
    "tools": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "prompts": {"listChanged": True},
    "completions": {},
    "logging": {},
    "experimental": {"x": {"deep": [None]}},
}
OBJECT = {"type": "object"}
ODD: list[Any] = [
    {"name": "hyphen", "inputSchema": {**OBJECT, "properties": {"a-b": {"type": "string"}}, "x-schema": None}},
    {
        "name": "keywords",
        "title": "From and _x",
        "inputSchema": {**OBJECT, "properties": {"from": {"type": "integer"}, "_x": {}}, "required": ["from"]},
        "annotations": {"readOnlyHint": True, "x-hint": [None]},
        "icons": [{"src": "data:,x", "mimeType": "image/png", "x": 1}],
        "_meta": {"com.example/x": {"deep": None}},
        "x-unknown": {"kept": None},
    },
    {"name": "no_properties", "inputSchema": {"type": "object", "additionalProperties": False}},
    {"name": "no_type", "inputSchema": {"properties": {"a": {"type": "null"}}}},
    {
        "name": "refs",
        "inputSchema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$defs": {"n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
            **OBJECT,
            "properties": {"n": {"$ref": "#/$defs/n"}, "tree": {"$ref": "#"}},
        },
        "outputSchema": {**OBJECT, "properties": {"n": {"$ref": "#/$defs/n"}}, "$defs": {"n": {}}},
    },
    {"name": "unusable"},
    {"name": "hyphen", "inputSchema": OBJECT, "description": "the second of that name"},
    "not an object",
]
NAMES = ("echo", "image", "audio", "mixed", "wrong", "refuse", "steps", "logs", "slow", "elicit", "sample", "roots")
TOOLS: list[Any] = ([] if "tidy" in WORDS else ODD) + [
    {"name": name, "inputSchema": OBJECT} for name in (*NAMES, "grow", "twice", "die", "broken_text", "forgetful")
]
EXTRA: list[Any] = [{"name": "dot.ted", "inputSchema": OBJECT}] if "dotted" in WORDS else []
LOCK = threading.Lock()
ANSWERS: dict[Any, Any] = {}
ANSWERED = threading.Condition()
CANCELLED: set[Any] = set()
STATE: dict[str, Any] = {"level": None, "listening": {}}


class Refused(Exception):
    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.body = {"code": code, "message": message, **({} if data is None else {"data": data})}


def say(message: dict[str, Any]) -> None:
    with LOCK:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def push(method: str, params: dict[str, Any]) -> Any:
    """Asks the client, as servers of the old era do."""
    with ANSWERED:
        number = f"push-{len(ANSWERS)}"
        ANSWERS[number] = None
        say({"id": number, "method": method, "params": params})
        ANSWERED.wait_for(lambda: ANSWERS[number] is not None)
        return ANSWERS[number]


def ask(params: dict[str, Any], key: str, method: str, question: dict[str, Any]) -> tuple[dict[str, Any] | None, Any]:
    """A question in the way of its era: the result that asks, or the answer."""
    if not MODERN:
        reply = push(method, question)
        return None, reply.get("result", reply.get("error"))
    if params.get("requestState") == f"asked {key}":
        return None, params["inputResponses"][key]
    asking = {"inputRequests": {key: {"method": method, "params": question}}, "requestState": f"asked {key}"}
    return {"resultType": "input_required", **asking, "x-unknown": None}, None


FORM = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}
SAMPLE = {"messages": [{"role": "user", "content": text("say x")}], "maxTokens": 5, "x-odd": None}
LIST_CHANGED = "notifications/tools/list_changed"


class Call:
    """One call of a tool: a method for each of them; any other one echoes."""

    def __init__(self, ident: Any, params: dict[str, Any]) -> None:
        self.ident = ident
        self.params = params
        self.meta = params.get("_meta", {})
        self.token = self.meta.get("progressToken")

    def answer(self) -> dict[str, Any]:
        return getattr(self, self.params["name"], self.echo)()

    def echo(self) -> dict[str, Any]:
        name = self.params["name"]
        if name not in {tool["name"] for tool in (*TOOLS, *EXTRA) if isinstance(tool, dict)}:
            raise Refused(-32602, f"Tool {name} not found here", {"name": name})
        shown = {key: one for key, one in self.meta.items() if not key.startswith(ENVELOPE) and key != "progressToken"}
        arguments = {"arguments": self.params.get("arguments"), "given": "arguments" in self.params}
        return {"content": [], "structuredContent": {**arguments, "meta": shown}}

    def image(self) -> dict[str, Any]:
        return {"content": [{"type": "image", "data": "aGk=", "mimeType": "image/png", "annotations": {"x": None}}]}

    def audio(self) -> dict[str, Any]:
        return {"content": [{"type": "audio", "data": "aGk=", "mimeType": "audio/wav", "_meta": {"a": None}}]}

    def mixed(self) -> dict[str, Any]:
        link = {"type": "resource_link", "uri": "x://1", "name": "n", "size": None, "x": []}
        held = {"type": "resource", "resource": {"uri": "x://2", "text": "t", "x": None}}
        blocks = [text("a"), link, held, {"type": "hologram", "depth": 3}]
        return {"content": blocks, "structuredContent": {"n": None, "big": 2**70, "f": 1.0}, "x-top": {"k": None}}

    def wrong(self) -> dict[str, Any]:
        return {"content": [text("one"), text("two")], "isError": True, "_meta": {"why": None}}

    def broken_text(self) -> dict[str, Any]:
        self.progress(1, total=3, message="\ud800")
        for number in (float("nan"), float("inf"), -float("inf"), 10**400):
            self.progress(2, total=number)
            self.progress(number, total=3)
        return {"content": [text("\ud800")]}

    def refuse(self) -> dict[str, Any]:
        raise Refused(-31999, "no ü", {"null": None, "list": [1]})

    def progress(self, number: float, **more: Any) -> None:
        if self.token is not None:
            params = {"progressToken": self.token, "progress": number, **more}
            say({"method": "notifications/progress", "params": params})

    def steps(self) -> dict[str, Any]:
        for number in (1, 2, 3):
            self.progress(number, total=3, message=f"s{number}", x=None)
        return {"content": [text("with token" if self.token is not None else "without")]}

    def gate(self) -> str | None:
        """Waits until the file exists that the arguments name."""
        gate = (self.params.get("arguments") or {}).get("gate")
        while gate is not None and not Path(gate).exists():
            time.sleep(0.01)
        return gate

    def logs(self) -> dict[str, Any]:
        level = self.meta.get(f"{ENVELOPE}logLevel") if MODERN else STATE["level"]
        gate = self.gate()
        for one in ("debug", "error"):
            if level == "debug" or (level is not None and one == "error"):
                data = {"n": gate and Path(gate).name}
                say({"method": "notifications/message", "params": {"level": one, "data": data, "x": 1}})
        return {"content": [text(str(level))]}

    def slow(self) -> dict[str, Any]:
        end = time.monotonic() + 30
        while self.ident not in CANCELLED and time.monotonic() < end:
            time.sleep(0.01)
        note({"cancelled": self.ident in CANCELLED})
        return {"content": []}

    def nap(self) -> dict[str, Any]:
        time.sleep(self.params["arguments"]["s"])
        return {"content": [text("rested")]}

    def large(self) -> dict[str, Any]:
        big = {"content": [text("x" * (17 << 20))]}
        if self.params["arguments"].get("last"):  # the id comes after what is too long
            print(json.dumps({"jsonrpc": "2.0", "result": big, "id": self.ident}), flush=True)
        return big

    def elicit(self) -> dict[str, Any]:
        self.gate()
        asking, answer = ask(self.params, "who", "elicitation/create", FORM)
        return asking or {"content": [text(json.dumps(answer))]}

    def forgetful(self) -> dict[str, Any]:
        """Asks in the new way, and keeps nothing."""
        if "inputResponses" in self.params:
            return {"content": [text(json.dumps(self.params["inputResponses"]))]}
        return {
            "resultType": "input_required",
            "inputRequests": {"k": {"method": "elicitation/create", "params": FORM}},
        }

    def puzzle(self) -> dict[str, Any]:
        return {"resultType": "input_required", "inputRequests": {"k": self.params["arguments"]["question"]}}

    def link(self) -> dict[str, Any]:
        return {"content": [{"type": "resource_link", "uri": "x://shared", "name": "n", "x": None}, text("t")]}

    def twice(self) -> dict[str, Any]:
        self.progress(1)
        asking, answer = ask(self.params, "who", "elicitation/create", FORM)
        self.progress(2)
        return asking or {"content": [text(json.dumps(answer))]}

    def sample(self) -> dict[str, Any]:
        asking, answer = ask(self.params, "model", "sampling/createMessage", SAMPLE)
        return asking or {"content": [text(json.dumps(answer))]}

    def roots(self) -> dict[str, Any]:
        asking, answer = ask(self.params, "roots", "roots/list", {})
        return asking or {"content": [text(json.dumps(answer))]}

    def grow(self) -> dict[str, Any]:
        EXTRA.append({"name": f"grown{len(EXTRA) + 1}", "inputSchema": OBJECT})
        changed(LIST_CHANGED, {})
        return {"content": [text(str(len(EXTRA)))]}

    def die(self) -> dict[str, Any]:
        print("out of cheese", file=sys.stderr, flush=True)
        os._exit(3)


def changed(method: str, params: dict[str, Any]) -> None:
    if not MODERN:
        say({"method": method, "params": params} if params else {"method": method})
        return
    for ident, wanted in STATE["listening"].items():
        kind = method.removeprefix("notifications/").split("/")[0]
        if wanted.get(f"{kind}ListChanged") or params.get("uri") in wanted.get("resourceSubscriptions", ()):
            meta = {f"{ENVELOPE}subscriptionId": ident}
            say({"method": method, "params": {**params, "_meta": meta}})


def listing(params: dict[str, Any]) -> dict[str, Any]:
    everything = [*TOOLS, *EXTRA]
    size = -(-len(everything) // PAGES)
    place = int(params.get("cursor", "p0")[1:])
    page = {"tools": everything[place * size : (place + 1) * size], "_meta": {"page": place, "x": None}, "x-list": None}
    return page | ({"nextCursor": f"p{place + 1}"} if (place + 1) * size < len(everything) else {})


def hello(_params: dict[str, Any]) -> dict[str, Any]:
    words = {"capabilities": CAPABILITIES, "instructions": f"Be kind to {NAME}."}
    if MODERN:
        return {**words, "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private"}
    return {**words, "protocolVersion": "2025-11-25", "serverInfo": INFO}


def resources(_params: dict[str, Any]) -> dict[str, Any]:
    if "secretive" in WORDS:
        time.sleep(30)
    shared = {"uri": "x://shared", "name": "shared", "x": None}
    return {"resources": [{"uri": f"x://{NAME}", "name": "one", "size": None}, shared], "x-list": 1}


def templates(_params: dict[str, Any]) -> dict[str, Any]:
    return {"resourceTemplates": [{"uriTemplate": f"{NAME}://{{id}}", "name": "t", "x": None}]}


def read(params: dict[str, Any]) -> dict[str, Any]:
    uri = params["uri"]
    if uri.startswith((f"x://{NAME}", "x://shared", f"{NAME}://")):
        return {"contents": [{"uri": uri, "text": NAME, "x": None}], "x-read": None}
    raise Refused(-32602 if MODERN else -32002, "Resource not found", {"uri": uri})


def subscribe(params: dict[str, Any]) -> dict[str, Any]:
    if "secretive" in WORDS:
        raise Refused(-32002, "not to be followed", {"uri": params["uri"]})
    say({"method": "notifications/resources/updated", "params": {"uri": params["uri"], "x": None}})
    return {}


def prompts(_params: dict[str, Any]) -> dict[str, Any]:
    found = [{"name": "greet", "arguments": [{"name": "who", "x": None}], "x": None}]
    return {"prompts": [*found, {"name": "a.b"}] if "dotted" in WORDS else found}


def prompt(params: dict[str, Any]) -> dict[str, Any]:
    if params["name"] != "greet":
        raise Refused(-32602, f"no prompt {params['name']}")
    return {"messages": [{"role": "user", "content": text(NAME), "x": None}], "x": None}


def complete(params: dict[str, Any]) -> dict[str, Any]:
    return {"completion": {"values": [NAME, json.dumps(params["ref"])], "hasMore": False}, "x": None}


def set_level(params: dict[str, Any]) -> dict[str, Any]:
    STATE["level"] = params["level"]
    return {}


METHODS: dict[str, Any] = {
    "tools/list": listing,
    "resources/list": resources,
    "resources/templates/list": templates,
    "resources/read": read,
    "prompts/list": prompts,
    "prompts/get": prompt,
    "completion/complete": complete,
    "x/custom": lambda params: {"custom": params.get("n"), "none": None},
}
if MODERN:
    METHODS["server/discover"] = hello
else:
    METHODS |= {
        "initialize": hello,
        "ping": lambda _params: {},
        "resources/subscribe": subscribe,
        "resources/unsubscribe": lambda _params: {},
        "logging/setLevel": set_level,
    }


def answer(ident: Any, method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "tools/call":
        return Call(ident, params).answer()
    if method not in METHODS:
        raise Refused(-32601, f"Method not found: {method}")
    return METHODS[method](params)


def respond(ident: Any, method: str, params: dict[str, Any]) -> None:
    try:
        result = answer(ident, method, params)
    except Refused as refused:
        say({"id": ident, "error": refused.body})
        return
    if MODERN:
        cached = {"ttlMs": 5, "cacheScope": "public"} if method.endswith(("/list", "/read")) else {}
        meta = {f"{ENVELOPE}serverInfo": INFO, **result.get("_meta", {})}
        result = {"resultType": "complete", **cached, **result, "_meta": meta}
    if ident not in CANCELLED:
        say({"id": ident, "result": result})


def listen(ident: Any, params: dict[str, Any]) -> None:
    STATE["listening"][ident] = params["notifications"]
    meta = {f"{ENVELOPE}subscriptionId": ident}
    acknowledged = {"notifications": params["notifications"], "_meta": meta}
    say({"method": "notifications/subscriptions/acknowledged", "params": acknowledged})
    for uri in params["notifications"].get("resourceSubscriptions", ()):
        say({"method": "notifications/resources/updated", "params": {"uri": uri, "x": None, "_meta": meta}})


def note(line: dict[str, Any]) -> None:
    if "log" in GIVEN:
        with LOCK, Path(GIVEN["log"]).open("a") as file:
            file.write(json.dumps(line) + "\n")


def main() -> None:
    while line := sys.stdin.readline():
        message = json.loads(line)
        note(message)
        method, params = message.get("method"), message.get("params", {})
        if method is None:
            with ANSWERED:
                ANSWERS[message["id"]] = message
                ANSWERED.notify_all()
        elif method == "notifications/cancelled":
            CANCELLED.add(params["requestId"])
            STATE["listening"].pop(params["requestId"], None)
        elif method == "subscriptions/listen" and MODERN:
            listen(message["id"], params)
        elif "id" in message and method == "tools/call":
            threading.Thread(target=respond, args=(message["id"], method, params), daemon=True).start()
        elif "id" in message:
            respond(message["id"], method, params)


if __name__ == "__main__":
    main()
