"""The stand-ins' validators: each rule has a request that breaks it; the request that it is made from is accepted."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from provider_rules import SHAPES, Json, Shape, redacted, signature, validate

Change = Callable[[Json], object]
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
ARGS = '{"path": "a.py"}'


def chat() -> Json:
    def call(name: str) -> Json:
        return {"id": name, "type": "function", "function": {"name": "files__read", "arguments": ARGS}}

    return {
        "model": "gpt-5-mini",
        "stream": False,
        "max_completion_tokens": 1_000,
        "tool_choice": "auto",
        "tools": [{"type": "function", "function": {"name": "files__read", "parameters": deepcopy(SCHEMA)}}],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Repair it."},
            {"role": "assistant", "content": "I look.", "tool_calls": [call("call_1"), call("call_2")]},
            {"role": "tool", "tool_call_id": "call_1", "content": "one"},
            {"role": "tool", "tool_call_id": "call_2", "content": "two"},
            {"role": "user", "content": "Two steps are left."},
        ],
    }


def responses() -> Json:
    def call(name: str) -> Json:
        one = {"type": "function_call", "id": f"fc_0a_r{name[-1]}", "call_id": name, "name": "files__read"}
        return {**one, "arguments": ARGS, "status": "completed"}

    sealed = signature("encrypted", "rs_0aHm.")
    summary = [{"type": "summary_text", "text": "Hm."}]
    return {
        "model": "gpt-5-mini",
        "instructions": "Be brief.",
        "store": False,
        "max_output_tokens": 1_000,
        "tools": [{"type": "function", "name": "files__read", "parameters": deepcopy(SCHEMA), "strict": False}],
        "input": [
            {"role": "user", "content": "Repair it."},
            {"type": "reasoning", "id": "rs_0a", "summary": summary, "encrypted_content": sealed},
            call("call_1"),
            call("call_2"),
            {"type": "function_call_output", "call_id": "call_1", "output": "one"},
            {"type": "function_call_output", "call_id": "call_2", "output": "two"},
            {"role": "user", "content": "Two steps are left."},
        ],
    }


def anthropic() -> Json:
    def call(name: str) -> Json:
        return {"type": "tool_use", "id": name, "name": "files__read", "input": {"path": "a.py"}}

    def result(name: str) -> Json:
        return {"type": "tool_result", "tool_use_id": name, "content": [{"type": "text", "text": "one"}]}

    thought = {"type": "thinking", "thinking": "Hm.", "signature": signature("thinking", "Hm.")}
    return {
        "model": "claude-haiku-4-5",
        "max_tokens": 4_000,
        "thinking": {"type": "enabled", "budget_tokens": 2_000},
        "tool_choice": {"type": "auto"},
        "tools": [{"name": "files__read", "input_schema": deepcopy(SCHEMA)}],
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "Repair it."},
            {
                "role": "assistant",
                "content": [
                    thought,
                    {"type": "redacted_thinking", "data": redacted("x")},
                    {"type": "text", "text": "I look."},
                    call("toolu_1"),
                    call("toolu_2"),
                ],
            },
            {
                "role": "user",
                "content": [
                    result("toolu_1"),
                    result("toolu_2"),
                    {"type": "text", "text": "Two steps are left.", "cache_control": {"type": "ephemeral"}},
                ],
            },
        ],
    }


BODIES: dict[Shape, Callable[[], Json]] = {
    "openai-chat": chat,
    "openai-responses": responses,
    "anthropic": anthropic,
}


def at(change: Callable[[Any, Any], object], *path: str | int) -> Change:
    """Changes a place deep in the request; `change` gets what holds it, and the last step to it."""

    def changed(body: Json) -> None:
        place: Any = body
        for step in path[:-1]:
            place = place[step]
        change(place, path[-1])

    return changed


def put(value: Any, *path: str | int) -> Change:
    return at(lambda place, last: place.__setitem__(last, value), *path)


def cut(*path: str | int) -> Change:
    return at(lambda place, last: place.__delitem__(last), *path)


def add(value: Any, *path: str | int) -> Change:
    """Inserts a value into a list."""
    return at(lambda place, last: place.insert(last, value), *path)


def again(*path: str | int) -> Change:
    """Repeats an element of a list."""
    return at(lambda place, last: place.insert(last, deepcopy(place[last])), *path)


def both(*changes: Change) -> Change:
    return lambda body: [change(body) for change in changes]


MARK = {"type": "ephemeral"}
DOCTORED: list[tuple[Shape, Change, str]] = [
    # the published types
    ("openai-chat", cut("model"), "Field required"),
    ("openai-chat", put(1, "no_such_field"), "Extra inputs are not permitted"),
    ("openai-chat", put("robot", "messages", 1, "role"), "Input should be"),
    ("openai-chat", cut("messages", 3, "tool_call_id"), "Field required"),
    ("openai-chat", put({"path": "a.py"}, "messages", 2, "tool_calls", 0, "function", "arguments"), "valid string"),
    ("openai-responses", cut("input", 2, "call_id"), "Field required"),
    ("anthropic", cut("max_tokens"), "Field required"),
    ("anthropic", put(ARGS, "messages", 1, "content", 3, "input"), "valid dictionary"),
    ("anthropic", cut("messages", 1, "content", 0, "signature"), "Field required"),
    # each call is answered exactly once, directly after
    ("openai-chat", cut("messages", 4), "calls without a result directly after them: call_2"),
    ("openai-chat", add({"role": "user", "content": "And?"}, "messages", 3), "calls without a result"),
    ("openai-chat", cut("messages", 2), "no unanswered call 'call_1'"),
    ("openai-chat", put("call_1", "messages", 2, "tool_calls", 1, "id"), "must be unique"),
    ("openai-responses", cut("input", 5), "calls without a result directly after them: call_2"),
    ("anthropic", cut("messages", 2, "content", 1), "calls without a result directly after them: toolu_2"),
    # order of messages and blocks
    ("openai-chat", put([], "messages"), "at least one message"),
    ("openai-responses", put([], "input"), "at least one item"),
    ("anthropic", put([], "messages"), "first message must use the user role"),
    ("anthropic", cut("messages", 0), "first message must use the user role"),
    ("anthropic", add({"role": "user", "content": "And?"}, "messages", 3), "roles must alternate"),
    ("anthropic", add({"role": "assistant", "content": "So"}, "messages", 3), "must end with a user message"),
    ("anthropic", add({"type": "text", "text": "And?"}, "messages", 2, "content", 0), "must come before other content"),
    ("anthropic", put([{"type": "tool_use", "id": "a", "name": "b", "input": {}}], "messages", 0, "content"), "only"),
    # nothing is empty
    ("openai-chat", put({"role": "assistant", "content": ""}, "messages", 5), "must have content or tool_calls"),
    ("openai-chat", put({"role": "assistant", "content": "a", "tool_calls": []}, "messages", 5), "empty array"),
    ("anthropic", put([], "messages", 0, "content"), "non-empty content"),
    ("anthropic", put(" \n", "messages", 0, "content"), "non-whitespace"),
    ("anthropic", put("", "messages", 2, "content", 0, "content", 0, "text"), "non-empty"),
    ("anthropic", put("", "system", 0, "text"), "non-whitespace"),
    # thinking comes back as it was
    ("anthropic", put("Hm!", "messages", 1, "content", 0, "thinking"), "invalid signature"),
    ("anthropic", put("thinking-0", "messages", 1, "content", 0, "signature"), "invalid signature"),
    ("anthropic", put("x.0", "messages", 1, "content", 1, "data"), "invalid data"),
    (
        "anthropic",
        both(cut("messages", 1, "content", 0), cut("messages", 1, "content", 0)),
        "must start with a thinking",
    ),
    ("anthropic", put(100, "thinking", "budget_tokens"), "at least 1024"),
    ("anthropic", put(4_000, "thinking", "budget_tokens"), "less than max_tokens"),
    ("anthropic", put(0.5, "temperature"), "may only be set to 1"),
    ("openai-responses", put("encrypted-0", "input", 1, "encrypted_content"), "could not be verified"),
    ("openai-responses", put("Ha.", "input", 1, "summary", 0, "text"), "could not be verified"),
    ("openai-responses", cut("input", 1, "encrypted_content"), "nothing is kept"),
    ("openai-responses", cut("input", 1), "without its required reasoning item 'rs_0a'"),
    ("openai-responses", both(cut("input", 2), cut("input", 2)), "without its required following item"),
    ("openai-responses", put("fc_0a_r1", "input", 3, "id"), "duplicate item"),
    # tools, their names and schemas
    ("openai-chat", put("files.read", "tools", 0, "function", "name"), "does not match"),
    ("openai-chat", put("a" * 65, "messages", 2, "tool_calls", 0, "function", "name"), "does not match"),
    ("openai-chat", again("tools", 0), "must be unique"),
    ("openai-chat", put({}, "tools", 0, "function", "parameters"), "must be of type object"),
    ("openai-chat", put([SCHEMA], "tools", 0, "function", "parameters", "anyOf"), "at the top level"),
    ("openai-chat", cut("tools"), "must be defined"),
    ("openai-chat", both(cut("tools"), put([{"role": "user", "content": "a"}], "messages")), "tool_choice: is only"),
    ("openai-chat", put("c" * 41, "messages", 2, "tool_calls", 0, "id"), "too long"),
    ("anthropic", put("files.read", "tools", 0, "name"), "does not match"),
    ("anthropic", put("toolu:1", "messages", 1, "content", 3, "id"), "other characters"),
    ("anthropic", again("tools", 0), "must be unique"),
    ("anthropic", put({"a b": {}}, "tools", 0, "input_schema", "properties"), "property key"),
    ("anthropic", put([SCHEMA], "tools", 0, "input_schema", "oneOf"), "at the top level"),
    # breakpoints
    (
        "anthropic",
        both(*(put(MARK, "messages", 2, "content", n, "cache_control") for n in (0, 1)), put(MARK, "cache_control")),
        "maximum of 4",
    ),
    # limits
    ("openai-responses", put(15, "max_output_tokens"), "at least 16"),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_requests_that_are_doctored_are_accepted(shape: Shape) -> None:
    assert validate(BODIES[shape](), shape) == []


@pytest.mark.parametrize(("shape", "change", "fault"), DOCTORED)
def test_each_rule_finds_the_request_that_breaks_it(shape: Shape, change: Change, fault: str) -> None:
    body = BODIES[shape]()
    change(body)
    found = validate(body, shape)
    assert any(fault in one for one in found), found


def test_thinking_that_is_left_out_is_found_by_what_was_issued() -> None:
    body = anthropic()
    content = body["messages"][1]["content"]
    issued = {"toolu_1": content[:2], "toolu_2": content[:2]}
    assert validate(body, "anthropic", issued=issued) == []
    content[0], content[1] = content[1], content[0]
    assert "must be sent back as they were" in validate(body, "anthropic", issued=issued)[0]
    del content[1]
    assert "must be sent back as they were" in validate(body, "anthropic", issued=issued)[0]
