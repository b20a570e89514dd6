"""The tools that the suite calls by name, and what each of them does.

Owns: names, schemas and behaviour, as the suite's descriptions ask for them. Does not know: eras, transports, tasks.
Invariant: a body returns a text, a list of content blocks or a whole result, and raises `ToolFailed` for its own error.
"""

from __future__ import annotations

import base64
import io
import json
import struct
import wave
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as default
from typing import Any, Literal

import anyio
from fixture_call import Call, ToolFailed, field, form, missing, roots, sample

Body = Callable[[Call], Awaitable[str | list[dict[str, Any]]]]
STEP = 0.05
"""The suite asks for a pause of about this many seconds between two messages."""

TEXT = {"type": "string"}


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool as it is listed, and its body."""

    name: str
    body: Body
    description: str
    schema: Mapping[str, Any]
    task: Literal["never", "may be", "must be"] = "never"
    first: Mapping[str, Any] = default(default_factory=dict[str, Any])
    """What is asked before the call may become a task."""

    def listed(self) -> dict[str, Any]:
        return {"name": self.name, "description": self.description, "inputSchema": self.schema}


TOOLS: dict[str, Tool] = {}


def tool(schema: Mapping[str, Any] | None = None, **more: Any) -> Callable[[Body], Body]:
    """Puts a function on the list, under its own name and with its first line as the description."""

    def put(body: Body) -> Body:
        about = (body.__doc__ or "").splitlines()[0]
        shape = {"type": "object", "properties": {}} if schema is None else schema
        TOOLS[body.__name__] = Tool(name=body.__name__, body=body, description=about, schema=shape, **more)
        return body

    return put


def takes(**fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields)}


def picture() -> str:
    """A red pixel, as PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header, row = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0), b"\x00\xff\x00\x00"
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(row)), chunk(b"IEND", b""))
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(parts)).decode()


def sound() -> str:
    """A moment of silence, as WAV."""
    with io.BytesIO() as file:
        with wave.open(file, "wb") as written:
            written.setnchannels(1)
            written.setsampwidth(2)
            written.setframerate(8_000)
            written.writeframes(bytes(16))
        return base64.b64encode(file.getvalue()).decode()


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def image() -> dict[str, Any]:
    return {"type": "image", "data": picture(), "mimeType": "image/png"}


def embedded(uri: str, mime: str, words: str) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "text": words}}


@tool()
async def test_simple_text(call: Call) -> str:
    """Answers with one text."""
    return "This is a simple text response for testing."


@tool()
async def test_image_content(call: Call) -> list[dict[str, Any]]:
    """Answers with a picture."""
    return [image()]


@tool()
async def test_audio_content(call: Call) -> list[dict[str, Any]]:
    """Answers with a sound."""
    return [{"type": "audio", "data": sound(), "mimeType": "audio/wav"}]


@tool()
async def test_embedded_resource(call: Call) -> list[dict[str, Any]]:
    """Answers with a resource."""
    return [embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")]


@tool()
async def test_multiple_content_types(call: Call) -> list[dict[str, Any]]:
    """Answers with a text, a picture and a resource."""
    data = json.dumps({"test": "data", "value": 123})
    resource = embedded("test://mixed-content-resource", "application/json", data)
    return [text("Multiple content types test:"), image(), resource]


@tool()
async def test_error_handling(call: Call) -> str:
    """Always fails."""
    raise ToolFailed("This tool intentionally returns an error for testing")


@tool()
async def test_tool_with_logging(call: Call) -> str:
    """Logs three times while it runs."""
    await call.log("Tool execution started")
    await anyio.sleep(STEP)
    await call.log("Tool processing data")
    await anyio.sleep(STEP)
    await call.log("Tool execution completed")
    return "It has logged."


@tool()
async def test_logging_tool(call: Call) -> str:
    """Logs once, if it may."""
    await call.log("This is for those who asked for it")
    return "It has logged, if it might."


@tool()
async def test_tool_with_progress(call: Call) -> str:
    """Tells of its progress, in three steps."""
    for done in (0, 50, 100):
        await call.progress(done, 100)
        await anyio.sleep(STEP if done < 100 else 0)
    return "It is done."


@tool()
async def test_reconnection(call: Call) -> str:
    """Closes its stream in the middle; the answer comes on the next one."""
    await call.log("Before the stream is closed")
    if call.ctx.close_sse_stream is not None:
        await call.ctx.close_sse_stream()
    await anyio.sleep(4 * STEP)
    await call.log("After the stream was closed")
    return "It has answered on another stream."


@tool(takes(prompt=TEXT))
async def test_sampling(call: Call) -> str:
    """Hands a prompt to the client's model."""
    if not call.can("sampling"):
        raise ToolFailed("the client cannot sample")
    answers = await call.answers({"completion": sample(call.arguments["prompt"])})
    return f"LLM response: {answers['completion']['content']['text']}"


async def put_to_person(call: Call, message: str, **fields: Mapping[str, Any]) -> str:
    if not call.can("elicitation"):
        raise ToolFailed("the client cannot ask anybody")
    answer = (await call.answers({"person": form(message, **fields)}))["person"]
    return f"action={answer['action']}, content={json.dumps(answer.get('content', {}))}"


@tool(takes(message=TEXT))
async def test_elicitation(call: Call) -> str:
    """Asks the person behind the client."""
    username, email = {**TEXT, "description": "User's response"}, {**TEXT, "description": "User's email address"}
    return f"User response: {await put_to_person(call, call.arguments['message'], username=username, email=email)}"


@tool()
async def test_elicitation_sep1034_defaults(call: Call) -> str:
    """Asks with a default for every kind of field."""
    said = await put_to_person(
        call,
        "Check these",
        name={**TEXT, "default": "John Doe"},
        age={"type": "integer", "default": 30},
        score={"type": "number", "default": 95.5},
        status={**TEXT, "enum": ["active", "inactive", "pending"], "default": "active"},
        verified={"type": "boolean", "default": True},
    )
    return f"Elicitation completed: {said}"


@tool()
async def test_elicitation_sep1330_enums(call: Call) -> str:
    """Asks for a choice, in the five ways that there are."""
    plain = ["option1", "option2", "option3"]
    titled = [{"const": f"value{n}", "title": title} for n, title in enumerate(("First", "Second", "Third"), 1)]
    said = await put_to_person(
        call,
        "Choose",
        untitledSingle={**TEXT, "enum": plain},
        titledSingle={**TEXT, "oneOf": titled},
        legacyEnum={**TEXT, "enum": ["opt1", "opt2", "opt3"], "enumNames": ["Option 1", "Option 2", "Option 3"]},
        untitledMulti={"type": "array", "items": {**TEXT, "enum": plain}},
        titledMulti={"type": "array", "items": {"anyOf": titled}},
    )
    return f"Elicitation completed: {said}"


@tool()
async def test_streaming_elicitation(call: Call) -> str:
    """Tells of its progress and then asks, on the same stream."""
    await call.progress(0, 1)
    return await put_to_person(call, "Go on?", ok={"type": "boolean"})


@tool()
async def test_missing_capability(call: Call) -> str:
    """Refuses a client that cannot sample."""
    if not call.can("sampling"):
        raise missing(sampling={})
    return "The client can sample."


@tool({"type": "object", "properties": {"region": {**TEXT, "x-mcp-header": "Region"}}})
async def test_header_parameter(call: Call) -> str:
    """Takes a parameter that also stands in a header."""
    return f"region: {call.arguments.get('region')}"


@tool(
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"address": {"$anchor": "addressDef", "type": "object", "properties": {"city": TEXT}}},
        "properties": {"address": {"$ref": "#/$defs/address"}, "phone": TEXT, "email": TEXT, "by": TEXT},
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"by": {"const": "phone"}}, "required": ["by"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    }
)
async def json_schema_2020_12_tool(call: Call) -> str:
    """Has a schema with everything in it that a careless relay drops."""
    return json.dumps(dict(call.arguments))


@tool()
async def test_input_required_result_elicitation(call: Call) -> str:
    """Asks for a name."""
    answers = await call.answers({"user_name": form("What is your name?", name=TEXT)})
    return f"Hello, {field(answers['user_name'], 'name')}!"


@tool()
async def test_input_required_result_sampling(call: Call) -> str:
    """Asks the client's model for a capital."""
    answers = await call.answers({"capital_question": sample("What is the capital of France?")})
    return f"The model says: {answers['capital_question']['content']['text']}"


@tool()
async def test_input_required_result_list_roots(call: Call) -> str:
    """Asks the client for its roots."""
    answers = await call.answers({"client_roots": roots()})
    return f"The roots: {', '.join(root['uri'] for root in answers['client_roots']['roots'])}"


@tool()
async def test_input_required_result_request_state(call: Call) -> str:
    """Asks, and knows its own state again."""
    await call.answers({"confirm": form("Please confirm", ok={"type": "boolean"})}, state="asked once")
    return "state-ok"


@tool()
async def test_input_required_result_tampered_state(call: Call) -> str:
    """Asks, and does not take a state that is not its own."""
    await call.answers({"confirm": form("Please confirm", ok={"type": "boolean"})}, state="asked honestly")
    return "state-ok"


@tool()
async def test_input_required_result_multiple_inputs(call: Call) -> str:
    """Asks the person, the model and the client at once."""
    name = form("What is your name?", name=TEXT)
    requests = {"user_name": name, "greeting": sample("Generate a greeting", most=50), "client_roots": roots()}
    answers = await call.answers(requests, state="asked for three things")
    return f"Got {', '.join(sorted(answers))}"


@tool()
async def test_input_required_result_multi_round(call: Call) -> str:
    """Asks twice, and keeps the first answer in its state."""
    known: dict[str, Any] = json.loads(call.state or "{}")
    if "name" not in known:
        asked = json.dumps({"round": 1})
        first = await call.answers({"step1": form("Step 1: What is your name?", name=TEXT)}, state=asked)
        known = {"round": 2, "name": field(first["step1"], "name")}
    question = form("Step 2: What is your favorite color?", color=TEXT)
    second = await call.answers({"step2": question}, state=json.dumps(known))
    return f"{known['name']} likes {field(second['step2'], 'color')}."


@tool()
async def test_input_required_result_capabilities(call: Call) -> str:
    """Asks only what the client can answer."""
    able = {"sampling": sample("Say hello"), "elicitation": form("What is your name?", name=TEXT), "roots": roots()}
    answers = await call.answers({what: request for what, request in able.items() if call.can(what)})
    return f"Got {', '.join(sorted(answers))}"


@tool(takes(name=TEXT))
async def greet(call: Call) -> str:
    """Greets, at once."""
    return f"Hello, {call.arguments['name']}!"
