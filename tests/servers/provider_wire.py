"""Answers in each provider's own form: whole, as a stream of events, and as errors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from provider_rules import Json, Shape, redacted, signature
from provider_usage import Counted, tokens_of

PIECE = 24
"""Characters in one delta of a stream."""
CREATED = 1_800_000_000


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer: calls and words, or a fault."""

    calls: Sequence[tuple[str, Any]] = ()
    """Names with arguments; a text instead of arguments is sent as it is (OpenAI's forms only)."""
    text: str | None = None
    thinking: str | None = None
    """Comes before the words, signed; not if the request disables thinking."""
    redacted: str | None = None
    """The name of a redacted thinking block (Anthropic's form only)."""
    tokens: tuple[int, int] | None = None
    """Input and output tokens; counted if not given."""
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    stop: str | None = None
    """`length` or `refusal`."""
    fault: str | None = None
    """What goes wrong after the request is accepted:

    `hang` never answers; `junk` is no JSON; `cut` ends the connection in the middle of the body or stream; `stall`
    stops in the middle of the stream and says no more; `hold` waits there until the test releases `resume`; `error` is
    an error event in the middle of the stream.
    """


def calls(*wanted: tuple[str, Any], **more: Any) -> Reply:
    """An answer that calls tools."""
    return Reply(calls=wanted, **more)


def failing(status: int, **headers: str) -> Reply:
    """An answer with an error status."""
    return Reply(status=status, headers=tuple((name.replace("_", "-"), value) for name, value in headers.items()))


def refused(shape: Shape, status: int, message: str) -> Json:
    """The body of an error."""
    if shape == "anthropic":
        kinds = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
        kinds |= {429: "rate_limit_error", 529: "overloaded_error"}
        return {"type": "error", "error": {"type": kinds.get(status, "api_error"), "message": message}}
    kinds = {400: "invalid_request_error", 401: "invalid_request_error", 429: "rate_limit_exceeded"}
    codes = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
    kind, code = kinds.get(status, "server_error"), codes.get(status)
    code = "context_length_exceeded" if "is too long" in message else code
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def broken(shape: Shape) -> tuple[str | None, Json]:
    """An error in the middle of a stream."""
    if shape == "openai-responses":
        failed = {"code": "server_error", "message": "Overloaded", "param": None, "sequence_number": 99}
        return "error", {"type": "error", **failed}
    return ("error", refused(shape, 529, "Overloaded")) if shape == "anthropic" else (None, refused(shape, 500, "no"))


def whole(shape: Shape, reply: Reply, asked: Json, token: str, counted: Counted) -> Json:
    """The answer as one document; `token` makes its ids unlike all others."""
    if reply.tokens is not None:
        counted = Counted(fresh=reply.tokens[0])
    return _WHOLE[shape](reply, asked, token, counted)


def stream(shape: Shape, answer: Json, asked: Json) -> Iterator[tuple[str | None, Json | str]]:
    """The same answer as named events."""
    return _STREAM[shape](answer, asked)


def written(event: str | None, data: Json | str) -> bytes:
    """An event on the wire."""
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {event}\n" if event else "").encode() + f"data: {text}\n\n".encode()


def _pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), PIECE):
        yield text[start : start + PIECE]


def _arguments(args: Any) -> str:
    return args if isinstance(args, str) else json.dumps(args)


def _output(reply: Reply, content: Any) -> int:
    return reply.tokens[1] if reply.tokens is not None else tokens_of(content) + tokens_of(reply.thinking or "")


# -- OpenAI chat completions


def _chat(reply: Reply, asked: Json, token: str, counted: Counted) -> Json:
    message: Json = {"role": "assistant", "content": reply.text, "refusal": None}
    stop = "tool_calls" if reply.calls else "stop"
    if reply.stop == "refusal":
        message |= {"content": None, "refusal": reply.text or "I cannot help with that."}
    elif reply.stop is not None:
        stop = reply.stop
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{token}_{place}",
                "type": "function",
                "function": {"name": name, "arguments": _arguments(args)},
            }
            for place, (name, args) in enumerate(reply.calls)
        ]
    wrote = _output(reply, message)
    return {
        "id": f"chatcmpl-{token}",
        "object": "chat.completion",
        "created": CREATED,
        "model": asked["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": stop, "logprobs": None}],
        "usage": {
            "prompt_tokens": counted.total,
            "completion_tokens": wrote,
            "total_tokens": counted.total + wrote,
            "prompt_tokens_details": {"cached_tokens": counted.cached},
            "completion_tokens_details": {"reasoning_tokens": tokens_of(reply.thinking or "")},
        },
    }


def _chat_stream(answer: Json, asked: Json) -> Iterator[tuple[None, Json | str]]:
    (choice,) = answer["choices"]
    message = choice["message"]

    def chunk(delta: Json, finish: str | None = None) -> tuple[None, Json]:
        parts = [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]
        return None, {**head, "choices": parts}

    head = {name: answer[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    yield chunk({"role": "assistant", "content": ""})
    for field in ("content", "refusal"):
        for piece in _pieces(message[field] or ""):
            yield chunk({field: piece})
    for place, call in enumerate(message.get("tool_calls") or ()):
        yield chunk({"tool_calls": [{"index": place, **call, "function": {**call["function"], "arguments": ""}}]})
        for piece in _pieces(call["function"]["arguments"]):
            yield chunk({"tool_calls": [{"index": place, "function": {"arguments": piece}}]})
    yield chunk({}, choice["finish_reason"])
    if (asked.get("stream_options") or {}).get("include_usage"):
        yield None, {**head, "choices": [], "usage": answer["usage"]}
    yield None, "[DONE]"


# -- OpenAI responses


def _response(reply: Reply, asked: Json, token: str, counted: Counted) -> Json:
    output: list[Json] = []
    mark = ""
    if reply.thinking is not None:
        sealed = signature("encrypted", f"rs_{token}{reply.thinking}")
        summary = [{"type": "summary_text", "text": reply.thinking}]
        output.append({"id": f"rs_{token}", "type": "reasoning", "summary": summary, "encrypted_content": sealed})
        mark = "r"
    if reply.text is not None or reply.stop == "refusal":
        part: Json = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        if reply.stop == "refusal":
            part = {"type": "refusal", "refusal": reply.text or "I cannot help with that."}
        message = {"id": f"msg_{token}_{mark}0", "type": "message", "role": "assistant", "status": "completed"}
        output.append({**message, "content": [part]})
    for place, (name, args) in enumerate(reply.calls):
        one = {"id": f"fc_{token}_{mark}{place}", "type": "function_call", "call_id": f"call_{token}_{place}"}
        output.append({**one, "name": name, "arguments": _arguments(args), "status": "completed"})
    cut = reply.stop == "length"
    wrote = _output(reply, output)
    return {
        "id": f"resp_{token}",
        "object": "response",
        "created_at": CREATED,
        "status": "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": asked.get("instructions"),
        "model": asked["model"],
        "output": output,
        "parallel_tool_calls": asked.get("parallel_tool_calls", True),
        "tool_choice": asked.get("tool_choice", "auto"),
        "tools": asked.get("tools", []),
        "usage": {
            "input_tokens": counted.total,
            "input_tokens_details": {"cached_tokens": counted.cached, "cache_write_tokens": 0},
            "output_tokens": wrote,
            "output_tokens_details": {"reasoning_tokens": tokens_of(reply.thinking or "")},
            "total_tokens": counted.total + wrote,
        },
    }


def _response_stream(answer: Json, asked: Json) -> Iterator[tuple[str, Json]]:
    for number, (event, data) in enumerate(_response_events(answer)):
        yield event, {"type": event, "sequence_number": number, **data}


def _response_events(answer: Json) -> Iterator[tuple[str, Json]]:
    begun = {**answer, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for place, item in enumerate(answer["output"]):
        at: Json = {"output_index": place, "item_id": item["id"]}
        match item["type"]:
            case "reasoning":
                empty = {**item, "summary": []}
                parts = _reasoning_events(item, {**at, "summary_index": 0})
            case "message":
                empty = {**item, "status": "in_progress", "content": []}
                parts = _message_events(item["content"][0], {**at, "content_index": 0})
            case _:
                empty = {**item, "status": "in_progress", "arguments": ""}
                parts = _call_events(item, at)
        yield "response.output_item.added", {"output_index": place, "item": empty}
        yield from parts
        yield "response.output_item.done", {"output_index": place, "item": item}
    yield f"response.{answer['status']}", {"response": answer}


def _reasoning_events(item: Json, at: Json) -> Iterator[tuple[str, Json]]:
    (part,) = item["summary"]
    yield "response.reasoning_summary_part.added", {**at, "part": {**part, "text": ""}}
    for piece in _pieces(part["text"]):
        yield "response.reasoning_summary_text.delta", {**at, "delta": piece}
    yield "response.reasoning_summary_text.done", {**at, "text": part["text"]}
    yield "response.reasoning_summary_part.done", {**at, "part": part}


def _message_events(part: Json, at: Json) -> Iterator[tuple[str, Json]]:
    field, event = ("text", "output_text") if part["type"] == "output_text" else ("refusal", "refusal")
    extra: Json = {"logprobs": []} if field == "text" else {}
    yield "response.content_part.added", {**at, "part": {**part, field: ""}}
    for piece in _pieces(part[field]):
        yield f"response.{event}.delta", {**at, "delta": piece, **extra}
    yield f"response.{event}.done", {**at, field: part[field], **extra}
    yield "response.content_part.done", {**at, "part": part}


def _call_events(item: Json, at: Json) -> Iterator[tuple[str, Json]]:
    for piece in _pieces(item["arguments"]):
        yield "response.function_call_arguments.delta", {**at, "delta": piece}
    done = {**at, "name": item["name"], "arguments": item["arguments"]}
    yield "response.function_call_arguments.done", done


# -- Anthropic messages


def _message(reply: Reply, asked: Json, token: str, counted: Counted) -> Json:
    content: list[Json] = []
    if (asked.get("thinking") or {}).get("type") != "disabled":
        if reply.thinking is not None:
            proof = signature("thinking", reply.thinking)
            content.append({"type": "thinking", "thinking": reply.thinking, "signature": proof})
        if reply.redacted is not None:
            content.append({"type": "redacted_thinking", "data": redacted(reply.redacted)})
    if reply.text is not None:
        content.append({"type": "text", "text": reply.text})
    content += [
        {"type": "tool_use", "id": f"toolu_{token}_{place}", "name": name, "input": args}
        for place, (name, args) in enumerate(reply.calls)
    ]
    stops = {"length": "max_tokens", "refusal": "refusal", None: "tool_use" if reply.calls else "end_turn"}
    return {
        "id": f"msg_{token}",
        "type": "message",
        "role": "assistant",
        "model": asked["model"],
        "content": content,
        "stop_reason": stops[reply.stop],
        "stop_sequence": None,
        "usage": {
            "input_tokens": counted.fresh,
            "cache_creation_input_tokens": counted.written,
            "cache_read_input_tokens": counted.cached,
            "output_tokens": _output(reply, content),
        },
    }


def _message_stream(answer: Json, asked: Json) -> Iterator[tuple[str, Json]]:
    for event, data in _message_parts(answer):
        yield event, {"type": event, **data}


def _message_parts(answer: Json) -> Iterator[tuple[str, Json]]:
    usage = {**answer["usage"], "output_tokens": 1}
    yield "message_start", {"message": {**answer, "content": [], "stop_reason": None, "usage": usage}}
    yield "ping", {}
    for place, block in enumerate(answer["content"]):
        match block["type"]:
            case "thinking":
                empty = {**block, "thinking": "", "signature": ""}
                deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(block["thinking"])]
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
            case "text":
                empty = {**block, "text": ""}
                deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"])]
            case "tool_use":
                empty = {**block, "input": {}}
                pieces = _pieces(json.dumps(block["input"]))
                deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
            case _:
                empty, deltas = block, []
        yield "content_block_start", {"index": place, "content_block": empty}
        for delta in deltas:
            yield "content_block_delta", {"index": place, "delta": delta}
        yield "content_block_stop", {"index": place}
    ended = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
    yield "message_delta", {"delta": ended, "usage": answer["usage"]}
    yield "message_stop", {}


_WHOLE = {"openai-chat": _chat, "openai-responses": _response, "anthropic": _message}
_STREAM = {"openai-chat": _chat_stream, "openai-responses": _response_stream, "anthropic": _message_stream}
