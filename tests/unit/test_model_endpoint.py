"""The stand-ins answer as the providers do: their own clients read every answer, whole and as a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from anthropic.types import Message
from model_endpoint import ModelEndpoint, Reply, calls, failing, transcript
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from provider_rules import SHAPES, Json, Shape

EVERY = pytest.mark.parametrize("shape", SHAPES)
PATHS = {"anthropic": "messages", "openai-chat": "chat/completions", "openai-responses": "responses"}
ENDS = ("message_stop", "[DONE]", "response.completed")
READ = {"type": "object", "properties": {"path": {"type": "string"}}}
FULL = Reply(
    thinking="First I look at both files, then I decide.",
    text="I read the two files and tell you what is wrong.",
    calls=[("files__read", {"path": "a.py"}), ("files__invented", {"deep": [1, {"x": "é" * 30}]})],
)


@contextmanager
def client(url: str, shape: Shape) -> Iterator[Any]:
    own = anthropic.Anthropic if shape == "anthropic" else openai.OpenAI
    base = url if shape == "anthropic" else f"{url}/v1"
    with own(api_key="-", base_url=base, max_retries=0, timeout=10) as made:
        yield made


def asking(shape: Shape, *turns: Json) -> Json:
    if shape == "anthropic":
        tools: Any = [{"name": "files__read", "input_schema": READ}]
        return {"model": "claude-haiku-4-5", "max_tokens": 500, "tools": tools, "messages": list(turns)}
    if shape == "openai-chat":
        tools = [{"type": "function", "function": {"name": "files__read", "parameters": READ}}]
        return {"model": "gpt-5-mini", "tools": tools, "messages": list(turns)}
    tools = [{"type": "function", "name": "files__read", "parameters": READ, "strict": False}]
    return {"model": "gpt-5-mini", "store": False, "tools": tools, "input": list(turns)}


HELLO = {"role": "user", "content": "Repair it."}


def ask(made: Any, shape: Shape, *turns: Json, stream: bool = False) -> Json:
    """The answer, as the provider's own client reads it."""
    body = asking(shape, *(turns or (HELLO,)))
    if shape == "anthropic":
        if not stream:
            return Message.model_validate(made.messages.create(**body).model_dump(), strict=True).model_dump()
        with made.messages.stream(**body) as events:
            return events.get_final_message().model_dump()
    if shape == "openai-chat":
        if not stream:
            return ChatCompletion.model_validate(made.chat.completions.create(**body).model_dump()).model_dump()
        with made.chat.completions.stream(**body, stream_options={"include_usage": True}) as events:
            return events.get_final_completion().model_dump()
    if not stream:
        return Response.model_validate(made.responses.create(**body).model_dump()).model_dump()
    *_events, last = made.responses.create(**body, stream=True)
    return last.response.model_dump()


def gist(shape: Shape, answer: Json) -> tuple[str | None, list[tuple[str, Any]], list[str], str | None]:
    """Words, calls, thinking, and why the model stopped."""
    if shape == "anthropic":
        kinds = {
            kind: [one for one in answer["content"] if one["type"] == kind] for kind in ("text", "tool_use", "thinking")
        }
        said = "".join(one["text"] for one in kinds["text"]) or None
        made = [(one["name"], one["input"]) for one in kinds["tool_use"]]
        return said, made, [one["type"] for one in kinds["thinking"]], answer["stop_reason"]
    if shape == "openai-chat":
        (choice,) = answer["choices"]
        message = choice["message"]
        made = [
            (one["function"]["name"], json.loads(one["function"]["arguments"])) for one in message["tool_calls"] or ()
        ]
        return message["content"] or message["refusal"] or None, made, [], choice["finish_reason"]
    said = [part for one in answer["output"] if one["type"] == "message" for part in one["content"]]
    made = [(one["name"], json.loads(one["arguments"])) for one in answer["output"] if one["type"] == "function_call"]
    thought = [one for one in answer["output"] if one["type"] == "reasoning"]
    words = "".join(part.get("text") or part.get("refusal") or "" for part in said) or None
    return words, made, [one["type"] for one in thought], (answer.get("incomplete_details") or {}).get("reason")


@EVERY
def test_a_streamed_answer_is_the_whole_one(shape: Shape) -> None:
    with ModelEndpoint(FULL) as endpoint, client(endpoint.url, shape) as made:
        whole, streamed = (gist(shape, ask(made, shape, stream=stream)) for stream in (False, True))
    assert whole == streamed
    assert whole[:2] == (FULL.text, list(FULL.calls))
    assert len(whole[2]) == (shape != "openai-chat")
    assert endpoint.connections == 1


@EVERY
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_and_a_length_stop_are_said_as_the_provider_says_them(shape: Shape, stream: bool) -> None:
    replies = Reply(text="No.", stop="refusal"), Reply(text="And th", stop="length")
    with ModelEndpoint(*replies) as endpoint, client(endpoint.url, shape) as made:
        assert gist(shape, ask(made, shape, stream=stream))[0] == "No."
        if shape == "openai-chat" and stream:
            with pytest.raises(openai.LengthFinishReasonError):
                ask(made, shape, stream=stream)
        else:
            said = gist(shape, ask(made, shape, stream=stream))
            assert said[3] == {"anthropic": "max_tokens", "openai-chat": "length"}.get(shape, "max_output_tokens")


@EVERY
def test_usage_has_what_the_cache_holds(shape: Shape) -> None:
    long = {"role": "user", "content": "x" * 8_000}
    if shape == "anthropic":
        long["content"] = [{"type": "text", "text": "x" * 8_000, "cache_control": {"type": "ephemeral"}}]
    with ModelEndpoint(Reply(text="Yes.")) as endpoint, client(endpoint.url, shape) as made:
        usages = [ask(made, shape, long, stream=stream)["usage"] for stream in (False, True)]
    if shape == "anthropic":
        held = [(usage["cache_creation_input_tokens"], usage["cache_read_input_tokens"]) for usage in usages]
        assert held[0][0] == held[1][1] > 2_000
        assert (held[0][1], held[1][0]) == (0, 0)
    else:
        field = "prompt_tokens_details" if shape == "openai-chat" else "input_tokens_details"
        assert (usages[0][field]["cached_tokens"], usages[1][field]["cached_tokens"]) == (0, 15 * 128)
    assert endpoint.seen[1]["usage"]["cached"] > endpoint.seen[0]["usage"]["cached"] == 0


@EVERY
@pytest.mark.parametrize("status", [401, 429, 500, 529])
def test_a_status_has_the_providers_error(shape: Shape, status: int) -> None:
    library: Any = anthropic if shape == "anthropic" else openai
    with (
        ModelEndpoint(failing(status, Retry_After="7")) as endpoint,
        client(endpoint.url, shape) as made,
        pytest.raises(library.APIStatusError) as caught,
    ):
        ask(made, shape)
    assert (caught.value.status_code, caught.value.response.headers["retry-after"]) == (status, "7")
    assert f"scripted status {status}" in str(caught.value)


@EVERY
@pytest.mark.parametrize(
    ("fault", "stream"), [("cut", False), ("junk", False), ("cut", True), ("junk", True), ("error", True)]
)
def test_a_broken_answer_is_an_error_of_the_client(shape: Shape, fault: str, stream: bool) -> None:
    reply = Reply(text="Yes, I think so. " * 20, fault=fault)
    with ModelEndpoint(reply) as endpoint, client(endpoint.url, shape) as made:
        try:
            gist(shape, ask(made, shape, stream=stream))
        except Exception as error:
            assert not isinstance(error, AssertionError)
        else:
            pytest.fail("the client reads it")


@EVERY
def test_a_stalled_stream_says_half_and_no_more(shape: Shape) -> None:
    body = asking(shape, HELLO) | {"stream": True}
    with ExitStack() as stack:
        endpoint = stack.enter_context(ModelEndpoint(Reply(text="word " * 50, fault="stall")))
        url = f"{endpoint.url}/v1/{PATHS[shape]}"
        with httpx2.stream("POST", url, json=body, timeout=10) as answer:
            assert endpoint.halfway.acquire(timeout=10)
            stack.close()
            with pytest.raises(httpx2.RemoteProtocolError):
                for line in answer.iter_lines():
                    assert not any(end in line for end in ENDS)


@EVERY
def test_a_held_stream_goes_on_when_the_test_says_so(shape: Shape) -> None:
    body = asking(shape, HELLO) | {"stream": True}
    with ModelEndpoint(Reply(text="word " * 50, fault="hold")) as endpoint:
        url = f"{endpoint.url}/v1/{PATHS[shape]}"
        with httpx2.stream("POST", url, json=body, timeout=10) as answer:
            assert endpoint.halfway.acquire(timeout=10)
            endpoint.resume.release()
            assert any(end in line for line in answer.iter_lines() for end in ENDS)


def test_a_request_beyond_the_window_is_refused() -> None:
    with (
        pytest.raises(AssertionError, match="prompt is too long"),
        ModelEndpoint(Reply(text="Yes."), window=1_000) as endpoint,
        client(endpoint.url, "openai-chat") as made,
    ):
        ask(made, "openai-chat")
        with pytest.raises(openai.BadRequestError, match="prompt is too long"):
            ask(made, "openai-chat", {"role": "user", "content": "x" * 4_000})


@EVERY
def test_a_request_that_the_provider_refuses_fails_the_test(shape: Shape) -> None:
    library: Any = anthropic if shape == "anthropic" else openai
    with (
        pytest.raises(AssertionError, match=r"request 0: .*calls without a result"),
        ModelEndpoint(Reply(text="Yes.")) as endpoint,
        client(endpoint.url, shape) as made,
        pytest.raises(library.BadRequestError, match="calls without a result"),
    ):
        ask(made, shape, HELLO, *_unanswered(shape))


def _unanswered(shape: Shape) -> list[Json]:
    go = {"role": "user", "content": "Go on."}
    if shape == "anthropic":
        block = {"type": "tool_use", "id": "toolu_1", "name": "files__read", "input": {}}
        return [{"role": "assistant", "content": [block]}, go]
    if shape == "openai-chat":
        call = {"id": "call_1", "type": "function", "function": {"name": "files__read", "arguments": "{}"}}
        return [{"role": "assistant", "tool_calls": [call]}, go]
    return [{"type": "function_call", "call_id": "call_1", "name": "files__read", "arguments": "{}"}, go]


def test_thinking_of_the_last_answer_must_come_back() -> None:
    endpoint = ModelEndpoint(FULL, Reply(text="Yes."))
    with (
        pytest.raises(AssertionError, match="must be sent back as they were"),
        endpoint,
        client(endpoint.url, "anthropic") as made,
    ):
        answer, results = _answered("anthropic", ask(made, "anthropic"))
        assert answer["content"][0]["type"] == "thinking"
        ask(made, "anthropic", HELLO, answer, results)
        assert not endpoint.violations
        with pytest.raises(anthropic.BadRequestError):
            ask(made, "anthropic", HELLO, {**answer, "content": answer["content"][1:]}, results)


def _sent(block: Json) -> tuple[str, ...]:
    """The fields of a block that are sent back."""
    own = {"thinking": ("thinking", "signature"), "text": ("text",), "tool_use": ("id", "name", "input")}
    return ("type", *own[block["type"]])


def scripted(request: Json) -> Reply:
    """Calls twice, then says how often; the same in each shape."""
    turns = transcript(request)
    done = sum(len(turn.calls) for turn in turns)
    assert [turn.role for turn in turns[:1]] == ["user"]
    assert sum(turn.role == "tool" for turn in turns) == done
    return calls(("files__read", {"path": str(done)})) if done < 2 else Reply(text=f"I read {done} files.")


def play(made: Any, shape: Shape) -> str | None:
    """A conversation that ends when the model calls no tool."""
    turns: list[Json] = [HELLO]
    while True:
        answer = ask(made, shape, *turns)
        said, wanted, _thought, _stop = gist(shape, answer)
        if not wanted:
            return said
        turns += _answered(shape, answer)


def _answered(shape: Shape, answer: Json) -> list[Json]:
    if shape == "anthropic":
        made = [{name: one[name] for name in _sent(one)} for one in answer["content"]]
        results = [{"type": "tool_result", "tool_use_id": one["id"], "content": "a"} for one in made if "id" in one]
        return [{"role": "assistant", "content": made}, {"role": "user", "content": results}]
    if shape == "openai-chat":
        message = answer["choices"][0]["message"]
        sent = {name: message[name] for name in ("role", "content", "tool_calls")}
        return [sent, *({"role": "tool", "tool_call_id": one["id"], "content": "a"} for one in sent["tool_calls"])]
    names = ("id", "type", "call_id", "name", "arguments")
    made = [{name: one[name] for name in names} for one in answer["output"]]
    return [*made, *({"type": "function_call_output", "call_id": one["call_id"], "output": "a"} for one in made)]


@EVERY
def test_one_script_plays_in_each_shape(shape: Shape) -> None:
    with ModelEndpoint(scripted) as endpoint, client(endpoint.url, shape) as made:
        assert play(made, shape) == "I read 2 files."


def test_a_script_that_fails_fails_the_test() -> None:
    def broken(_request: Json) -> Reply:
        raise ValueError("no such step")

    with (
        pytest.raises(AssertionError, match="ValueError: no such step"),
        ModelEndpoint(broken) as endpoint,
        client(endpoint.url, "openai-chat") as made,
        pytest.raises(openai.BadRequestError),
    ):
        ask(made, "openai-chat")
