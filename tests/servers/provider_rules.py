"""What a provider refuses: the published types of its requests, and the order that it demands of a conversation.

`validate` takes the body of a request and says everything that is wrong with it, without HTTP. The types are the
request types of the installed `openai` and `anthropic` packages. The order rules are those that the providers answer
with 400; no package states them as types.

Signatures verify themselves (`signature`), so a request that changes a thinking block is found without a memory of what
was answered. Only a block that is left out needs that memory: `issued`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter
from pydantic_core import SchemaValidator, ValidationError

Shape = Literal["openai-chat", "openai-responses", "anthropic"]
Json = dict[str, Any]
Issued = Mapping[str, Sequence[Json]]
"""The thinking blocks that were sent with a call, by the call's id."""

SHAPES: tuple[Shape, ...] = ("openai-chat", "openai-responses", "anthropic")
MAX_BREAKPOINTS = 4
LEAST_THINKING = 1_024
LEAST_ANSWER = 16
_TYPES = {
    "openai-chat": ("openai.types.chat.completion_create_params", "CompletionCreateParams"),
    "openai-responses": ("openai.types.responses.response_create_params", "ResponseCreateParams"),
    "anthropic": ("anthropic.types.message_create_params", "MessageCreateParams"),
    "anthropic-beta": ("anthropic.types.beta.message_create_params", "MessageCreateParams"),
}
_NAMES = {
    "openai-chat": re.compile(r"[a-zA-Z0-9_-]{1,64}"),
    "openai-responses": re.compile(r"[a-zA-Z0-9_-]{1,64}"),
    "anthropic": re.compile(r"[a-zA-Z0-9_-]{1,128}"),
}
_MAX_ID = {"openai-chat": 40, "openai-responses": 64, "anthropic": 64}
_UNTYPED = ("temperature", "top_p", "top_k")
"""Anthropic's API takes them; its package left them out of its types with version 1."""
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")
_AFTER_REASONING = re.compile(r"(?:fc|msg)_([0-9a-z]+)_r\d+")


def signature(kind: str, text: str) -> str:
    """What proves that a thinking block or a reasoning item came from here and was not changed."""
    return f"{kind}-{hashlib.sha256(f'{kind}:{text}'.encode()).hexdigest()}"


def redacted(name: str) -> str:
    """The data of a redacted thinking block."""
    return f"{name}.{signature('redacted', name)}"


def validate(body: Json, shape: Shape, *, beta: bool = False, issued: Issued | None = None) -> list[str]:
    """Everything that the provider refuses in this request; an empty list if it accepts the request.

    `beta` are Anthropic's beta types. If the types are wrong, the order is not examined.
    """
    return list(_type_faults(body, "anthropic-beta" if beta else shape)) or list(_ORDER[shape](body, issued or {}))


@cache
def _types(kind: str) -> SchemaValidator:
    module, name = _TYPES[kind]
    adapter = TypeAdapter(getattr(import_module(module), name), config=ConfigDict(arbitrary_types_allowed=True))
    return SchemaValidator(_strict(adapter.core_schema))


def _strict(schema: Any) -> Any:
    """The schema with closed objects, with lists where the packages accept any iterable, and without answers.

    Pydantic examines the elements of an iterable only when they are read, so a fault in a message would pass. The
    packages also accept their own objects of answers, which take any field; a body from the wire has none.
    """
    if isinstance(schema, list | tuple):
        return type(schema)(_strict(part) for part in schema)
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "model":
        return {
            "type": "is-instance",
            "cls": schema["cls"],
            **{name: schema[name] for name in ("ref",) if name in schema},
        }
    copied = {name: part if name in ("metadata", "ref") else _strict(part) for name, part in schema.items()}
    if copied.get("type") == "generator":
        copied["type"] = "list"
    if copied.get("type") == "typed-dict" and copied.get("extra_behavior") != "allow":
        copied["extra_behavior"] = "forbid"
    return copied


def _type_faults(body: Json, kind: str) -> Iterator[str]:
    if kind.startswith("anthropic"):
        body = {name: value for name, value in body.items() if name not in _UNTYPED}
    try:
        _types(kind).validate_python(body, strict=True)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        # A union reports every branch; those whose `role` or `type` does not fit were not meant.
        others = [fault["loc"][:-1] for fault in faults if fault["type"] == "literal_error"]
        meant = [fault for fault in faults if not any(fault["loc"][: len(other)] == other for other in others)]
        for fault in (meant or faults)[:8]:
            place = [str(step) for step in fault["loc"] if "[" not in str(step)]  # without the names of whole unions
            yield f"{'.'.join(place)}: {fault['msg']}"


# -- tools


def _tool_faults(tools: Sequence[tuple[str, str, Any]], shape: Shape) -> Iterator[str]:
    """`tools` are places, names and schemas."""
    names = [name for _place, name, _schema in tools]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"tools: Tool names must be unique: {name}"
    for place, name, schema in tools:
        if not _NAMES[shape].fullmatch(name):
            yield f"{place}.name: {name!r} does not match {_NAMES[shape].pattern}"
        if not isinstance(schema, dict) or schema.get("type") != "object":
            yield f"{place}: the schema of {name!r} must be of type object"
            continue
        for word in sorted({"oneOf", "anyOf", "allOf"} & schema.keys()):
            yield f"{place}: the schema of {name!r} has {word} at the top level"
        for key in schema.get("properties") or {}:
            if shape == "anthropic" and not _PROPERTY.fullmatch(key):
                yield f"{place}: property key {key!r} of {name!r} does not match {_PROPERTY.pattern}"


class _Calls:
    """The calls of a conversation: each is answered exactly once and directly after."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._waiting: list[str] = []
        self._known: set[str] = set()
        self.any = False

    def made(self, where: str, call_id: str, name: str) -> Iterator[str]:
        """A call of the model as the request repeats it; its tool need not exist."""
        self.any = True
        if len(call_id) > _MAX_ID[self._shape] or not _CALL_ID.fullmatch(call_id):
            yield f"{where}: the id {call_id!r} is too long or has other characters than {_CALL_ID.pattern}"
        if not _NAMES[self._shape].fullmatch(name):
            yield f"{where}: the name {name!r} does not match {_NAMES[self._shape].pattern}"
        if call_id in self._known:
            yield f"{where}: ids of calls must be unique: {call_id!r}"
        self._known.add(call_id)
        self._waiting.append(call_id)

    def answered(self, where: str, call_id: str) -> Iterator[str]:
        self.any = True
        if call_id in self._waiting:
            self._waiting.remove(call_id)
        else:
            yield f"{where}: no unanswered call {call_id!r} directly before this result"

    def over(self, where: str) -> Iterator[str]:
        """No more results may follow for the calls so far."""
        if self._waiting:
            yield f"{where}: calls without a result directly after them: {', '.join(self._waiting)}"
        self._waiting = []


def _choice_faults(body: Json, *, called: bool) -> Iterator[str]:
    if body.get("tool_choice") is not None and not body.get("tools"):
        yield "tool_choice: is only allowed when tools are specified"
    if called and not body.get("tools"):
        yield "tools: must be defined, since the messages have tool calls or tool results"


# -- OpenAI chat completions


def _chat_order(body: Json, _issued: Issued) -> Iterator[str]:
    calls = _Calls("openai-chat")
    if not body["messages"]:
        yield "messages: at least one message is required"
    for place, message in enumerate(body["messages"]):
        where = f"messages.{place}"
        if message["role"] == "tool":
            yield from calls.answered(where, message["tool_call_id"])
            continue
        yield from calls.over(where)
        if message["role"] == "assistant":
            if not any(message.get(field) for field in ("content", "tool_calls", "refusal")):
                yield f"{where}: an assistant message must have content or tool_calls"
            if message.get("tool_calls") == []:
                yield f"{where}.tool_calls: must not be an empty array"
            for number, call in enumerate(message.get("tool_calls") or []):
                name = (call.get("function") or call.get("custom"))["name"]
                yield from calls.made(f"{where}.tool_calls.{number}", call["id"], name)
    yield from calls.over("messages")
    functions = [
        (f"tools.{n}", t["function"]) for n, t in enumerate(body.get("tools") or ()) if t["type"] == "function"
    ]
    tools = [(place, one["name"], one.get("parameters", {"type": "object"})) for place, one in functions]
    yield from _tool_faults(tools, "openai-chat")
    yield from _choice_faults(body, called=calls.any)


# -- OpenAI responses


def _responses_order(body: Json, _issued: Issued) -> Iterator[str]:
    given = body.get("input")
    items: list[Json] = given if isinstance(given, list) else [{"role": "user", "content": given or ""}]
    if not items:
        yield "input: at least one item is required"
    yield from _item_faults(items)
    calls = _Calls("openai-responses")
    for place, item in enumerate(items):
        where, kind = f"input.{place}", item.get("type", "message")
        if kind == "function_call":
            yield from calls.made(where, item["call_id"], item["name"])
        elif kind == "function_call_output":
            yield from calls.answered(where, item["call_id"])
        elif kind == "reasoning":
            yield from _reasoning_faults(
                where, item, items[place + 1 : place + 2], stored=body.get("store") is not False
            )
        elif kind == "message" and item["role"] != "assistant":
            yield from calls.over(where)
    yield from calls.over("input")
    functions = [(f"tools.{n}", t) for n, t in enumerate(body.get("tools") or ()) if t["type"] == "function"]
    tools = [(place, one["name"], one.get("parameters") or {"type": "object"}) for place, one in functions]
    yield from _tool_faults(tools, "openai-responses")
    yield from _choice_faults(body, called=calls.any)
    if (body.get("max_output_tokens") or LEAST_ANSWER) < LEAST_ANSWER:
        yield f"max_output_tokens: must be at least {LEAST_ANSWER}"


def _item_faults(items: Sequence[Json]) -> Iterator[str]:
    """An item has its own id, and one that came after reasoning is sent with it."""
    ids: set[str] = set()
    for place, item in enumerate(items):
        if not item.get("id"):
            continue
        if item["id"] in ids:
            yield f"input.{place}: duplicate item with id {item['id']!r}"
        ids.add(item["id"])
        thought = _AFTER_REASONING.fullmatch(item["id"])
        if thought and f"rs_{thought[1]}" not in ids:
            yield f"input.{place}: {item['id']!r} was provided without its required reasoning item 'rs_{thought[1]}'"


def _reasoning_faults(where: str, item: Json, following: Sequence[Json], *, stored: bool) -> Iterator[str]:
    sealed = item.get("encrypted_content")
    if sealed is None and not stored:
        yield f"{where}: item {item['id']!r} not found: nothing is kept if store is false; send encrypted_content"
    said = "".join(part["text"] for part in item["summary"])
    if sealed is not None and sealed != signature("encrypted", item["id"] + said):
        yield f"{where}: the encrypted content of {item['id']!r} could not be verified"
    own = following and (
        following[0].get("type") in ("function_call", "reasoning") or following[0].get("role") == "assistant"
    )
    if not own:
        yield f"{where}: reasoning {item['id']!r} was provided without its required following item"


# -- Anthropic messages


def _messages_order(body: Json, issued: Issued) -> Iterator[str]:
    messages = [{**message, "content": _blocks(message["content"])} for message in body["messages"]]
    spoken = [(place, message) for place, message in enumerate(messages) if message["role"] != "system"]
    if not spoken or spoken[0][1]["role"] != "user":
        yield "messages: the first message must use the user role"
    for (_, one), (place, other) in pairwise(spoken):
        if one["role"] == other["role"]:
            yield f"messages.{place}: roles must alternate between user and assistant"
    if spoken and spoken[-1][1]["role"] == "assistant":
        yield "messages: the conversation must end with a user message; prefill is not supported"
    calls = _Calls("anthropic")
    for place, message in enumerate(messages):
        where = f"messages.{place}"
        if not message["content"]:
            yield f"{where}: must have non-empty content"
        yield from _block_faults(where, message)
        for number, block in enumerate(message["content"]):
            if block["type"] == "tool_result":
                yield from calls.answered(f"{where}.content.{number}", block["tool_use_id"])
        yield from calls.over(where)
        for number, block in enumerate(message["content"]):
            if block["type"] == "tool_use":
                yield from calls.made(f"{where}.content.{number}", block["id"], block["name"])
    yield from calls.over("messages")
    yield from _thinking_faults(body, spoken, issued)
    given = [(f"tools.{n}", t) for n, t in enumerate(body.get("tools") or ()) if t.get("type") in (None, "custom")]
    yield from _tool_faults([(place, one["name"], one["input_schema"]) for place, one in given], "anthropic")
    yield from _choice_faults(body, called=calls.any)
    yield from _breakpoint_faults(body)


def _blocks(content: str | list[Json]) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _block_faults(where: str, message: Json) -> Iterator[str]:
    texts = False
    for number, block in enumerate(message["content"]):
        at, kind = f"{where}.content.{number}", block["type"]
        if kind == "text" and not block["text"].strip():
            yield f"{at}: text content blocks must contain non-whitespace text"
        if kind in ("tool_use", "thinking", "redacted_thinking") and message["role"] != "assistant":
            yield f"{at}: {kind} blocks are only allowed in assistant messages"
        if kind == "tool_result" and message["role"] != "user":
            yield f"{at}: tool_result blocks are only allowed in user messages"
        if kind == "tool_result" and texts:
            yield f"{at}: tool_result blocks must come before other content"
        if kind == "tool_result":
            for inner in _blocks(block.get("content") or []):
                if inner["type"] == "text" and not inner["text"]:
                    yield f"{at}: text content blocks must be non-empty"
        if kind == "thinking" and block["signature"] != signature("thinking", block["thinking"]):
            yield f"{at}: invalid signature in thinking block"
        if kind == "redacted_thinking" and block["data"] != redacted(block["data"].partition(".")[0]):
            yield f"{at}: invalid data in redacted_thinking block"
        texts = texts or kind != "tool_result"


def _thinking_faults(body: Json, spoken: Sequence[tuple[int, Json]], issued: Issued) -> Iterator[str]:
    thinking = body.get("thinking") or {}
    answers = [(place, message["content"]) for place, message in spoken if message["role"] == "assistant"]
    if answers:
        place, content = answers[-1]
        thoughts = [block for block in content if block["type"] in ("thinking", "redacted_thinking")]
        for block in content:
            if block["type"] == "tool_use":
                yield from _left_out(f"messages.{place}", block["id"], thoughts, issued)
        calls = any(block["type"] == "tool_use" for block in content)
        if thinking.get("type") == "enabled" and calls and content[0] not in thoughts:
            yield f"messages.{place}: must start with a thinking block, since thinking is enabled"
    if thinking.get("type") == "enabled":
        if not LEAST_THINKING <= thinking["budget_tokens"] < body["max_tokens"]:
            yield f"thinking.budget_tokens: must be at least {LEAST_THINKING} and less than max_tokens"
        if body.get("temperature") not in (None, 1):
            yield "temperature: may only be set to 1 when thinking is enabled"


def _left_out(where: str, call_id: str, thoughts: Sequence[Json], issued: Issued) -> Iterator[str]:
    """Thinking that came with a call and does not come back as it was, in its order."""
    proofs = [_proof(block) for block in thoughts]
    wanted = [_proof(block) for block in issued.get(call_id, ())]
    if [proof for proof in proofs if proof in wanted] != wanted:
        yield f"{where}: thinking blocks that came with {call_id!r} must be sent back as they were"


def _proof(block: Json) -> str | None:
    return block.get("signature") or block.get("data")


def _breakpoint_faults(body: Json) -> Iterator[str]:
    system = body.get("system") or []
    places: list[tuple[str, Json]] = [(f"tools.{n}", tool) for n, tool in enumerate(body.get("tools") or ())]
    places += [(f"system.{n}", block) for n, block in enumerate(_blocks(system))]
    for number, message in enumerate(body["messages"]):
        for place, block in enumerate(_blocks(message["content"])):
            places.append((f"messages.{number}.content.{place}", block))
            if block["type"] == "tool_result":
                places += [
                    (f"messages.{number}.content.{place}", inner) for inner in _blocks(block.get("content") or [])
                ]
    marked = [(place, block) for place, block in places if block.get("cache_control")]
    found = len(marked) + bool(body.get("cache_control"))
    if found > MAX_BREAKPOINTS:
        yield f"cache_control: a maximum of {MAX_BREAKPOINTS} blocks may have cache_control, found {found}"
    for place, block in marked:
        if block.get("type") in ("thinking", "redacted_thinking") or block.get("text") == "":
            yield f"{place}: cache_control cannot be set on thinking blocks or empty text blocks"
    for number, block in enumerate(_blocks(system)):
        if not block["text"].strip():
            yield f"system.{number}: text content blocks must contain non-whitespace text"


_ORDER = {"openai-chat": _chat_order, "openai-responses": _responses_order, "anthropic": _messages_order}
