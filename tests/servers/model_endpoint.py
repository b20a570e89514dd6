"""A stand-in of three provider APIs on loopback: real HTTP, validated requests, scripted answers, no model.

`/v1/chat/completions` and `/v1/responses` answer like OpenAI's, `/v1/messages` like Anthropic's. Each request is
validated (`provider_rules`), counted (`provider_usage`) and answered whole or as a stream (`provider_wire`). A request
that the provider would refuse gets its 400, and fails the test when the endpoint closes.

As a process of its own (`EndpointProcess`) it answers with a function of a file, until its standard input closes.
"""

from __future__ import annotations

import hashlib
import json
import runpy
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from provider_rules import Json, Shape, validate
from provider_usage import Counted, PromptCache
from provider_wire import Reply, broken, calls, failing, refused, stream, whole, written

__all__ = ["EndpointProcess", "ModelEndpoint", "Reply", "Turn", "calls", "failing", "transcript"]

PATHS: dict[str, Shape] = {
    "/v1/chat/completions": "openai-chat",
    "/v1/responses": "openai-responses",
    "/v1/messages": "anthropic",
}
Answer = Callable[[Json], Reply]


class ModelEndpoint:
    """Serves replies in order, the last one for ever; a function is called with the request.

    `seen` are the requests: path, headers, body, shape and, once it is counted, usage. `violations` are the faults of
    requests that a provider refuses; leaving the context raises if there are any. `arrived` is released for each
    request, `halfway` for each answer with the fault `stall` or `hold`, and `connections` counts those that clients
    opened. Without `strict` nothing is refused: other agents send what a provider accepts beyond its types. `record`
    gets a line for each request that is answered.
    """

    def __init__(self, *replies: Reply | Answer, strict: bool = True, record: Path | None = None) -> None:
        self._replies = list(replies)
        self._strict = strict
        self._record = record
        self.seen: list[Json] = []
        self.violations: list[str] = []
        self.connections = 0
        self.arrived = threading.Semaphore(0)
        self.halfway = threading.Semaphore(0)
        self.resume = threading.Semaphore(0)
        self._issued: dict[str, list[Json]] = {}
        self._cache = PromptCache()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"endpoint": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if self.violations:
            said = "\n".join(["the provider refuses:", *self.violations])
            if value is None:
                raise AssertionError(said)
            value.add_note(said)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """What makes the providers' libraries come here."""
        return environment(self.url)

    def prompts(self) -> list[str]:
        """The text of the last message in each request."""
        return [transcript(request)[-1].text for request in self.seen]

    def _accept(self, request: Json) -> tuple[Reply, Counted]:
        """The answer to a request, a 400 if the provider would refuse it."""
        with self._lock:
            place = len(self.seen)
            self.seen.append(request)
            reply = self._replies[0]
            beta = request["shape"] == "anthropic" and "beta=true" in request["path"]
            faults = validate(request["body"], request["shape"], beta=beta, issued=self._issued) if self._strict else []
            if faults:
                self.violations += [f"request {place}: {fault}" for fault in faults]
                reply = Reply(status=400, text="; ".join(faults))
            elif len(self._replies) > 1:
                self._replies.pop(0)
        self.arrived.release()
        if not isinstance(reply, Reply):
            reply = self._called(reply, request)
        if reply.status != 200:
            return reply, Counted(fresh=0)
        counted = self._cache.count(request["body"], request["shape"])
        request["usage"] = {"fresh": counted.fresh, "written": counted.written, "cached": counted.cached}
        if self._record is not None:
            with self._lock, self._record.open("a") as lines:
                lines.write(json.dumps(request) + "\n")
        return reply, counted

    def _called(self, answer: Answer, request: Json) -> Reply:
        try:
            return answer(request)
        except Exception as error:
            self.violations.append(f"the script failed: {type(error).__name__}: {error}")
            return Reply(status=400, text="the script failed")

    def _answer(self, request: Json, reply: Reply, counted: Counted) -> Json:
        body = request["body"]
        place = next(number for number, one in enumerate(self.seen) if one is request)
        token = f"{hashlib.sha256(json.dumps(body).encode()).hexdigest()[:12]}{place:04d}"
        answer = whole(request["shape"], reply, body, token, counted)
        if request["shape"] == "anthropic":
            thoughts = [one for one in answer["content"] if one["type"] in ("thinking", "redacted_thinking")]
            self._issued |= {one["id"]: thoughts for one in answer["content"] if one["type"] == "tool_use"}
        return answer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    endpoint: ModelEndpoint

    def setup(self) -> None:
        super().setup()
        with self.endpoint._lock:
            self.endpoint.connections += 1

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        shape = PATHS.get(self.path.partition("?")[0])
        if shape is None:
            self._send(404, refused("openai-chat", 404, f"no such path: {self.path}"))
            return
        try:
            body = json.loads(sent)
        except ValueError:
            self.endpoint.violations.append("a body is not valid JSON")
            self._send(400, refused(shape, 400, "the body is not valid JSON"))
            return
        request = {"path": self.path, "headers": dict(self.headers), "body": body, "shape": shape}
        reply, counted = self.endpoint._accept(request)
        if reply.fault == "hang":
            self.endpoint._over.wait(600)
            self.close_connection = True
        elif reply.status != 200:
            said = reply.text or f"scripted status {reply.status}"
            self._send(reply.status, refused(shape, reply.status, said), reply.headers)
        elif body.get("stream"):
            self._stream(request, reply, self.endpoint._answer(request, reply, counted))
        else:
            if reply.fault == "hold":
                self._hold()
            answer = b"<html>" if reply.fault == "junk" else self.endpoint._answer(request, reply, counted)
            self._send(200, answer, reply.headers, missing=50 if reply.fault in ("cut", "stall") else 0)
            if reply.fault == "stall":
                self._stall()

    def _send(self, status: int, content: Json | bytes, headers: Any = (), *, missing: int = 0) -> None:
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text) + missing))
        self.end_headers()
        self.wfile.write(text)
        self.close_connection = self.close_connection or bool(missing)

    def _stream(self, request: Json, reply: Reply, answer: Json) -> None:
        events = list(stream(request["shape"], answer, request["body"]))
        self.send_response(200)
        for name, value in reply.headers:
            self.send_header(name, value)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        half = len(events) // 2
        for event, data in events[:half] if reply.fault else events:
            self._chunk(written(event, data))
        match reply.fault:
            case "hold":
                self._hold()
                for event, data in events[half:]:
                    self._chunk(written(event, data))
            case "stall":
                self._stall()
            case "junk":
                self._chunk(written(events[half][0], '{"type": "'))
            case "error":
                self._chunk(written(*broken(request["shape"])))
            case _:
                pass
        if reply.fault in (None, "hold"):
            self._chunk(b"")
        else:
            self.close_connection = True

    def _hold(self) -> None:
        self.endpoint.halfway.release()
        self.endpoint.resume.acquire(timeout=600)

    def _stall(self) -> None:
        self.close_connection = True
        self.endpoint.halfway.release()
        self.endpoint._over.wait(600)

    def _chunk(self, content: bytes) -> None:
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")

    def log_message(self, *_args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is part of many tests."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def environment(url: str) -> dict[str, str]:
    """What makes the providers' libraries come to this address."""
    return {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": "sk-stand-in-0000",
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "sk-ant-stand-in-0000",
        "NO_PROXY": "127.0.0.1",
    }


# -- reading a request, whichever shape it has


@dataclass(kw_only=True)
class Turn:
    """One message: `role` is system, user, assistant or tool."""

    role: str
    text: str = ""
    calls: list[tuple[str, str, Any]] = field(default_factory=list[tuple[str, str, Any]])
    """Ids, names and arguments."""
    call_id: str | None = None
    """The call that a tool message answers."""


def transcript(request: Json) -> list[Turn]:
    """The conversation of a request, the same for the same conversation in each shape."""
    body = request["body"]
    turns = {"openai-chat": _chat, "openai-responses": _responses, "anthropic": _messages}[request["shape"]](body)
    joined: list[Turn] = []
    for turn in turns:
        last = joined[-1] if joined else None
        if last is not None and turn.role == last.role == "assistant":
            last.text += turn.text
            last.calls += turn.calls
        else:
            joined.append(turn)
    return joined


def _chat(body: Json) -> Iterator[Turn]:
    for message in body["messages"]:
        made = [
            (call["id"], call["function"]["name"], _parsed(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        ]
        role = "system" if message["role"] == "developer" else message["role"]
        yield Turn(role=role, text=_words(message["content"]), calls=made, call_id=message.get("tool_call_id"))


def _responses(body: Json) -> Iterator[Turn]:
    if body.get("instructions"):
        yield Turn(role="system", text=body["instructions"])
    given = body["input"]
    for item in given if isinstance(given, list) else [{"role": "user", "content": given}]:
        match item.get("type", "message"):
            case "message":
                role = "system" if item["role"] == "developer" else item["role"]
                yield Turn(role=role, text=_words(item["content"]))
            case "function_call":
                yield Turn(role="assistant", calls=[(item["call_id"], item["name"], _parsed(item["arguments"]))])
            case "function_call_output":
                yield Turn(role="tool", text=_words(item["output"]), call_id=item["call_id"])
            case _:
                pass


def _messages(body: Json) -> Iterator[Turn]:
    if body.get("system"):
        yield Turn(role="system", text=_words(body["system"]))
    for message in body["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if message["role"] == "assistant":
            made = [(block["id"], block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
            yield Turn(role="assistant", text=_words(blocks), calls=made)
            continue
        for block in blocks:
            if block["type"] == "tool_result":
                yield Turn(role="tool", text=_words(block.get("content")), call_id=block["tool_use_id"])
        if said := _words([block for block in blocks if block["type"] != "tool_result"]):
            yield Turn(role=message["role"], text=said)


def _words(content: Any) -> str:
    return content or "" if isinstance(content, str | None) else "".join(part.get("text") or "" for part in content)


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


# -- as a process of its own


@dataclass(frozen=True, kw_only=True)
class EndpointProcess:
    """An endpoint in another process; `record` has one line for each answered request."""

    url: str
    record: Path

    @property
    def environment(self) -> dict[str, str]:
        return environment(self.url)

    def seen(self) -> list[Json]:
        return [json.loads(line) for line in self.record.read_text().splitlines()]

    @classmethod
    @contextmanager
    def serving(cls, script: Path, function: str, record: Path, *, strict: bool = True) -> Iterator[Self]:
        """Runs `function` of the file `script` as the model; raises at the end if a request was refused."""
        record.touch()
        command = [sys.executable, __file__, str(script), function, str(record), "strict" if strict else "lax"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                yield cls(url=process.stdout.readline().strip(), record=record)
            finally:
                process.stdin.close()
            if process.wait():
                raise AssertionError(f"the provider refuses a request, see above; exit code {process.returncode}")


def main(script: str, function: str, record: str, mode: str) -> None:
    answer: Answer = runpy.run_path(script)[function]
    with ModelEndpoint(answer, strict=mode == "strict", record=Path(record)) as endpoint:
        print(endpoint.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
