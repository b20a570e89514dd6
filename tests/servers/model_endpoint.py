"""Stand-ins of two providers' endpoints on loopback, with scripted answers and faults: real HTTP, no model.

`/v1/chat/completions` speaks like OpenAI's and `/v1/messages` like Anthropic's; both are served by one object, which
keeps every request that it saw.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer: calls and words, or a fault."""

    calls: Sequence[tuple[str, Any]] = ()
    """Names with arguments; a text instead of arguments is sent as it is (OpenAI's form only)."""
    text: str | None = None
    tokens: tuple[int, int] = (100, 20)
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    stop: str | None = None
    fault: str | None = None
    """`cut` ends the connection in the middle of the body, `hang` never answers, `junk` is no JSON."""


def calls(*wanted: tuple[str, Any], tokens: tuple[int, int] = (100, 20), text: str | None = None) -> Reply:
    """An answer that calls tools."""
    return Reply(calls=wanted, tokens=tokens, text=text)


def failing(status: int, **headers: str) -> Reply:
    """An answer with an error status."""
    return Reply(status=status, headers=tuple((name.replace("_", "-"), value) for name, value in headers.items()))


class ModelEndpoint:
    """Serves replies in order, the last one for ever; `seen` are the requests: path, headers and body."""

    def __init__(self, *replies: Reply | Callable[[dict[str, Any]], Reply]) -> None:
        self._replies = list(replies)
        self.seen: list[dict[str, Any]] = []
        self.arrived = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
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

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """What makes the providers' libraries come here."""
        return {
            "OPENAI_BASE_URL": f"{self.url}/v1",
            "OPENAI_API_KEY": "sk-stand-in-0000",
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": "sk-ant-stand-in-0000",
            "NO_PROXY": "127.0.0.1",
        }

    def prompts(self) -> list[str]:
        """What the model was told in each request, without the system text."""
        return [_words(request["body"]["messages"][-1]["content"]) for request in self.seen]

    def _next(self, request: dict[str, Any]) -> Reply:
        with self._lock:
            self.seen.append(request)
            reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        self.arrived.release()
        return reply if isinstance(reply, Reply) else reply(request)

    def _handler(endpoint) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - the handler has a self of its own
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                reply = endpoint._next({"path": self.path, "headers": dict(self.headers), "body": body})
                if reply.fault == "hang":
                    endpoint._over.wait(600)
                    self.close_connection = True
                    return
                speak = _anthropic if self.path.startswith("/v1/messages") else _openai
                answer = (
                    speak(reply, body) if reply.status == 200 else {"error": {"type": "api_error", "message": "no"}}
                )
                text = b"<html>" if reply.fault == "junk" else json.dumps(answer).encode()
                self.send_response(reply.status)
                for name, value in reply.headers:
                    self.send_header(name, value)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text) + (50 if reply.fault == "cut" else 0)))
                self.end_headers()
                self.wfile.write(text)
                self.close_connection = reply.fault == "cut"

            def log_message(self, *_args: object) -> None:
                pass

        return Handler


def _openai(reply: Reply, asked: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{place}",
                "type": "function",
                "function": {"name": name, "arguments": args if isinstance(args, str) else json.dumps(args)},
            }
            for place, (name, args) in enumerate(reply.calls)
        ]
    stop = reply.stop or ("tool_calls" if reply.calls else "stop")
    read, wrote = reply.tokens
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_800_000_000,
        "model": asked["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": stop}],
        "usage": {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote},
    }


def _anthropic(reply: Reply, asked: dict[str, Any]) -> dict[str, Any]:
    content: list[dict[str, Any]] = [] if reply.text is None else [{"type": "text", "text": reply.text}]
    content += [
        {"type": "tool_use", "id": f"toolu_{place}", "name": name, "input": args}
        for place, (name, args) in enumerate(reply.calls)
    ]
    stop = {"length": "max_tokens"}.get(reply.stop or "", "tool_use" if reply.calls else "end_turn")
    read, wrote = reply.tokens
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": asked["model"],
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": read, "output_tokens": wrote},
    }


def _words(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
