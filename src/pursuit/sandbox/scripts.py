"""Runs a script call by call: it stops at every tool call and continues with the answer it is given.

The script itself never makes a call. Durability comes from replay: a new run gets the recorded answers of an earlier
one. The same source, state, seed, time and answers lead to the same steps. Failures of a script are not exceptions
here but `Finished(error=…)`.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import keyword
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from pursuit.core.base_model import NotJsonError, as_json, nearest
from pursuit.core.patterns import SyntaxProblem, checked_script
from pursuit.core.truncate import cut_text
from pursuit.sandbox.await_analysis import awaited_calls
from pursuit.sandbox.pool import SandboxLimits, SessionLostError, Workers, monty
from pursuit.sandbox.values import (
    MAX_TEXT,
    Calls,
    Finished,
    ScriptCall,
    ScriptFailure,
    ScriptSpec,
    Step,
    canonical,
)

if TYPE_CHECKING:
    from pydantic_monty import (
        AsyncFunctionSnapshot,
        AsyncMontySession,
        AsyncNameLookupSnapshot,
        AsyncSnapshot,
        ExcType,
        ExternalSettledResult,
        MontyError,
        OSPolicy,
        ResourceLimits,
    )

MAX_NAME = 256
MAX_STATED = 1024 * 1024


class Observations:
    def __init__(self) -> None:
        self.observed: list[tuple[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self._size = 0

    def record(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Records one report, or raises the `TypeError`, `ValueError` or `AttributeError` that the script sees."""
        match method:
            case "observe":
                given = {**dict(zip(("name", "value"), args, strict=False)), **kwargs}
                if len(args) + len(kwargs) != 2 or given.keys() != {"name", "value"}:
                    raise TypeError("write mission.observe(name, value)")
                name, value = given["name"], _numbers(_json("the value", given["value"]))
            case "event":
                if len(args) != 1:
                    raise TypeError("write mission.event(name, key=value, …)")
                name, value = args[0], _json("the data", dict(kwargs))
            case _:
                raise AttributeError(f"mission has no method {method!r}; use observe or event")
        if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME:
            raise ValueError(f"the name must be a string of 1 to {MAX_NAME} characters")
        name = _json("the name", name)
        self._size += len(name) + len(canonical(value)) + 16
        if self._size > MAX_STATED:
            raise ValueError(f"observations and events of one run may have at most {MAX_STATED} characters in total")
        if method == "observe":
            self.observed.append((name, value))
        else:
            self.events.append({"name": name, "data": value})


def _json(what: str, value: object) -> Any:
    try:
        return as_json(value)
    except NotJsonError as error:
        raise ValueError(f"{what} must be JSON: {error}") from None


def _numbers(value: Any) -> Any:
    """The value with every leaf as a number; True and False become 1 and 0."""
    match value:
        case int() | float():
            return value + 0
        case list():
            return [_numbers(item) for item in cast("list[Any]", value)]
        case dict():
            return {key: _numbers(item) for key, item in cast("dict[str, Any]", value).items()}
        case _:
            raise ValueError(f"the value must be a finite number, or lists and dicts of numbers, not {value!r:.80}")


RESERVED = frozenset({"call", "mission", "state"})


Request = tuple[str, dict[str, Any]]
"""The tool and the arguments of a valid call."""


def escaped(name: str) -> str:
    """The nearest Python identifier: other characters become `_`, and a keyword gets a final `_`."""
    text = re.sub(r"\W", "_", name)
    return f"{text}_" if keyword.iskeyword(text) else text


def spellings(names: Iterable[str], reserved: frozenset[str] = frozenset()) -> dict[str, str]:
    """Maps identifiers to names; identifiers that are reserved, or shared by two names, are left out."""
    known = [(escaped(name), name) for name in names]
    count = Counter(spelt for spelt, _ in known)
    return {one: name for one, name in known if one.isidentifier() and count[one] == 1 and one not in reserved}


class ScriptTools:
    """The tools of a mission as a script calls them: `server.tool(…)` and `call("server.tool", {…})`.

    Every tool is reachable through `call`; ambiguous spellings are rejected. An invalid call raises the exception that
    the script sees.
    """

    def __init__(self, tools: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
        self.servers = spellings(tools, RESERVED)
        self._tools = {server: spellings(offered) for server, offered in tools.items()}
        self.parameters = {
            f"{server}.{tool}": tuple(parameters)
            for server, offered in tools.items()
            for tool, parameters in offered.items()
        }

    def tool(self, server: str, attribute: str) -> str | None:
        name = self._tools[server].get(attribute)
        return None if name is None else f"{server}.{name}"

    def method(self, server: str, attribute: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Request:
        tool = self.tool(server, attribute)
        if tool is None:
            raise AttributeError(f"{server} has no tool {attribute!r}{self.missing(server, attribute)}")
        return self.bound(tool, args, kwargs)

    def bound(self, tool: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Request:
        """Binds positional arguments to the names of the schema, in its order."""
        parameters = self.parameters[tool]
        if len(args) > len(parameters):
            raise TypeError(f"{tool} takes {len(parameters)} positional arguments but {len(args)} were given")
        arguments = dict(zip(parameters, args, strict=False))
        spelt = spellings(parameters)
        for key, value in kwargs.items():
            name = key if key in parameters else spelt.get(key, key)
            if name in arguments:
                raise TypeError(f"{tool} got two values for the argument {name!r}")
            arguments[name] = value
        return tool, arguments

    def called(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Request:
        given = {**dict(zip(("name", "args"), args, strict=False)), **kwargs}
        name, arguments = given.get("name"), given.get("args")
        known = len(args) + len(kwargs) == len(given) and given.keys() <= {"name", "args"}
        if not known or not isinstance(name, str) or not isinstance(arguments, dict | None):
            raise TypeError('write call("server.tool", {"argument": value})')
        if name not in self.parameters:
            raise LookupError(f"unknown tool {name!r}{_near(name, self.parameters)}")
        return name, dict(cast("dict[str, Any]", arguments or {}))

    def missing(self, server: str | None, name: str) -> str:
        """The hint for an unknown name or attribute of a server."""
        return _near(name, [*self.servers, *RESERVED] if server is None else self._tools[server])


def _near(name: str, known: Iterable[str]) -> str:
    """`; did you mean …?`, or a short list of all names, or nothing."""
    names = sorted(known)
    return nearest(name, names) or (f"; known: {', '.join(names)}" if 0 < len(names) <= 12 else "")


MAX_ARGUMENTS = 1024 * 1024
MAX_MEMORY = 1024 * 1024
MAX_PRINTED = 64 * 1024
_SCRIPT = "<python-input-1>"
_HOLDS = "; await a tool call directly, or gather it: a name that is awaited anywhere in the script holds futures"
_ADVICE = (
    (
        "cannot suspend in this synchronous context",
        "; call tools in a loop or a comprehension, not from map, sorted or another built-in",
    ),
    ("can't be awaited", _HOLDS),
    ("'coroutine' object", _HOLDS),
)
"""Advice that Monty's own messages lack."""
_MISSION = uuid.UUID(int=1)
_FIRST_SERVER = 16
_PRELUDE = """
class State:
    def __init__(self, given):
        for name, value in given.items():
            setattr(self, name, value)
    def __getitem__(self, name):
        return getattr(self, name)
    def __setitem__(self, name, value):
        setattr(self, name, value)
state = _pursuit_state = State(_pursuit_given)
"""
_READ_MEMORY = f"""
import json as _pursuit_json
_pursuit_text = _pursuit_json.dumps(_pursuit_state.memory, allow_nan=False)
_pursuit_text if len(_pursuit_text) <= {MAX_MEMORY} else len(_pursuit_text)
"""


class Script:
    """A run in progress: call `start` once, then `answer` all calls of each `Calls` until it is `Finished`."""

    def __init__(self, workers: Workers, limits: SandboxLimits, spec: ScriptSpec) -> None:
        self._workers = workers
        self._limits = limits
        self._spec = spec
        self._source = spec.source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        self._toolbox = ScriptTools(spec.tools)
        self._servers = {uuid.UUID(int=_FIRST_SERVER + place): name for place, name in enumerate(sorted(spec.tools))}
        self._observations = Observations()
        self._stack = contextlib.AsyncExitStack()
        self._session: AsyncMontySession | None = None
        self._snapshot: AsyncSnapshot
        self._awaited: frozenset[int] = frozenset()
        self._asked: dict[int, tuple[ScriptCall, int]] = {}
        self._answered: dict[int, ExternalSettledResult] = {}
        self._count = 0
        self._printed = ""
        self._hint = ""

    async def __aenter__(self) -> Script:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def start(self) -> Step:
        """Runs until the first call or the end."""
        try:
            checked_script(self._source)
        except SyntaxProblem as problem:
            return self._ended(f"the script {problem}")
        self._awaited = awaited_calls(self._source)
        try:
            self._session = await self._opened()
            await self._session.feed_run(_PRELUDE, inputs={"_pursuit_given": {"memory": {}, **self._spec.state}})
            snapshot = await self._session.feed_start(self._source, inputs=self._objects(), print_callback=self._print)
            return await self._run(snapshot)
        except SessionLostError as error:
            return self._ended(str(error))
        except monty().MontyError as error:
            return await self._failed(error)

    async def answer(self, answers: Mapping[int, Any]) -> Step:
        """Continues with the value or `ScriptFailure` for each call of the last step."""
        for index, (_, call_id) in self._asked.items():
            answer = answers[index]
            failed = isinstance(answer, ScriptFailure)
            self._answered[call_id] = _raised("RuntimeError", answer.message) if failed else {"return_value": answer}
        self._asked.clear()
        try:
            return await self._run(self._snapshot)
        except monty().MontyError as error:
            return await self._failed(error)

    async def _opened(self) -> AsyncMontySession:
        limits, now = self._limits, self._spec.now
        resources: ResourceLimits = {
            "max_feed_duration_secs": limits.script_seconds,
            "max_memory": limits.script_memory,
            "max_suspensions": limits.script_calls,
        }
        policy: OSPolicy = {
            "datetime": now.replace(tzinfo=now.tzinfo or datetime.UTC).astimezone(datetime.UTC),
            "sleep": "zero",
            "random_start": {"seed": self._spec.seed},
        }
        try:
            return await self._stack.enter_async_context(self._workers.session(resources, policy))
        except SessionLostError:  # once more, with another process
            return await self._stack.enter_async_context(self._workers.session(resources, policy))

    def _objects(self) -> dict[str, Any]:
        """The globals for servers, with fixed identities so that a replay sees the same ones."""
        library = monty()
        identities = {server: identity for identity, server in self._servers.items()}
        named = {name: identities[server] for name, server in self._toolbox.servers.items()} | {"mission": _MISSION}
        objects: dict[str, Any] = {}
        for name, identity in named.items():
            kind = type(name, (), {})
            shown_as = library.ClassType(kind, id=uuid.uuid5(identity, "class"))
            objects[name] = library.ClassInstance(kind(), id=identity, class_type=shown_as)
        return objects

    async def _run(self, snapshot: AsyncSnapshot) -> Step:
        library = monty()
        while not isinstance(snapshot, library.MontyComplete):
            match snapshot:
                case library.AsyncFunctionSnapshot():
                    following = await self._at_call(snapshot)
                case library.AsyncFutureSnapshot():
                    # One future at a time, oldest call first: the order of `pending_call_ids` is random.
                    ready = sorted(self._answered.keys() & set(snapshot.pending_call_ids))[:1]
                    answers = {call_id: self._answered.pop(call_id) for call_id in ready}
                    following = await snapshot.resume(answers) if answers else None
                case _:
                    following = await self._at_name(snapshot)
            if following is None and not self._asked:
                return self._ended("the script awaits something that is not a tool call")
            if following is None:
                self._snapshot = snapshot
                return Calls(calls=tuple(call for call, _ in self._asked.values()))
            snapshot = following
        for call, _ in self._asked.values():
            self._print("stderr", f"{call.tool} was never awaited, so it was not called\n")
        return await self._close(None)

    async def _at_call(self, snapshot: AsyncFunctionSnapshot) -> AsyncSnapshot | None:
        """Answers everything that does not need a tool; `None` if the host must answer first."""
        if snapshot.is_os_function:
            return await snapshot.resume_not_handled()
        result = self._answered.pop(snapshot.call_id, None) or self._requested(snapshot)
        if result is not None and "return_value" not in result:
            return await snapshot.resume(result)
        place = snapshot.position
        if snapshot.allow_eager_await or (place.filename == _SCRIPT and place.end in self._awaited):
            if result is not None:
                self._answered[snapshot.call_id] = result
            return await snapshot.resume({"future": ...})
        return None if result is None else await snapshot.resume(result)

    async def _at_name(self, snapshot: AsyncNameLookupSnapshot) -> AsyncSnapshot:
        """Resolves a tool or `call` used as a value; any other name stays undefined."""
        name, receiver = snapshot.variable_name, snapshot.object_id
        server = None if receiver is None else self._servers.get(receiver)
        if receiver is None and name == "call":
            return await snapshot.resume(value=_function("call"))
        tool = None if server is None else self._toolbox.tool(server, name)
        if tool is not None:
            return await snapshot.resume(value=_function(tool))
        if receiver != _MISSION:
            self._hint = self._toolbox.missing(server, name)
        return await snapshot.resume()

    def _requested(self, snapshot: AsyncFunctionSnapshot) -> ExternalSettledResult | None:
        """Records the call for the host, or settles it here if it is a report about the mission, or an error."""
        args, kwargs = snapshot.args, snapshot.kwargs
        receiver, name = snapshot.object_id, str(snapshot.function_name)
        server = None if receiver is None else self._servers.get(receiver)
        try:
            if receiver == _MISSION:
                self._observations.record(name, args, kwargs)
                return {"return_value": None}
            if server is not None:
                request = self._toolbox.method(server, name, args, kwargs)
            elif name == "call":
                request = self._toolbox.called(args, kwargs)
            elif name in self._toolbox.parameters:
                request = self._toolbox.bound(name, args, kwargs)
            else:
                raise NameError(f"name {name!r} is not defined{self._toolbox.missing(None, name)}")
            self._ask(request, snapshot.call_id)
        except (TypeError, ValueError, AttributeError, LookupError, NameError) as error:
            return _raised(type(error).__name__, str(error))
        return None

    def _ask(self, request: Request, call_id: int) -> None:
        tool, given = request
        try:
            arguments = as_json(given)
        except NotJsonError as error:
            raise TypeError(f"the arguments of {tool} must be JSON: {error}") from None
        if len(canonical(arguments)) > MAX_ARGUMENTS:
            raise ValueError(f"the arguments of {tool} have more than {MAX_ARGUMENTS} characters")
        call = ScriptCall(index=self._count, tool=tool, arguments=arguments)
        self._count += 1
        self._asked[call.index] = (call, call_id)

    def _print(self, _stream: str, text: str) -> None:
        if len(self._printed) < MAX_PRINTED:
            self._printed = cut_text(self._printed + text, MAX_PRINTED)

    async def _failed(self, error: MontyError) -> Finished:
        library = monty()
        if isinstance(error, library.MontyCrashedError):
            return self._ended(f"the sandbox process died: {cut_text(str(error), MAX_TEXT)}")
        text = cut_text(str(error), MAX_TEXT) + next((more for said, more in _ADVICE if said in str(error)), "")
        inner = error.exception()
        if self._hint and isinstance(inner, AttributeError | NameError) and self._hint not in text:
            text += self._hint
        if isinstance(error, library.MontyRuntimeError | library.MontySyntaxError):
            lines = [frame.line for frame in error.traceback() if frame.filename == _SCRIPT]
            text = f"line {lines[-1]}: {text}" if lines else text
        # A limit can stop the script at any point, so its heap cannot be trusted.
        if isinstance(inner, TimeoutError | MemoryError):
            return self._ended(text)
        return await self._close(text)

    async def _close(self, error: str | None) -> Finished:
        """Ends a script whose session is intact, so its memory can be read."""
        if self._session is None:
            return self._ended(error)
        try:
            text = await self._session.feed_run(_READ_MEMORY, print_callback=self._print)
            if not isinstance(text, str):
                raise NotJsonError(f"it has {text} characters; at most {MAX_MEMORY} are allowed")
            found, fault = as_json(json.loads(text)), None
            if not isinstance(found, dict):
                raise NotJsonError("it must be a dict")
            memory = cast("dict[str, Any]", found)
        except (monty().MontyError, NotJsonError, RecursionError) as problem:
            memory, fault = None, f"state.memory cannot be kept: {cut_text(str(problem), MAX_TEXT)}"
        await self._stack.aclose()
        return self._ended("; also, ".join(filter(None, [error, fault])) or None, memory)

    def _ended(self, error: str | None, memory: dict[str, Any] | None = None) -> Finished:
        return Finished(
            memory=dict(self._spec.state.get("memory") or {}) if memory is None else memory,
            observed=tuple(self._observations.observed),
            events=tuple(self._observations.events),
            error=error,
            printed=self._printed,
        )


def _function(name: str) -> Any:
    """A value that Monty treats as a host function of this name; it is never called here."""

    def function() -> None: ...

    function.__name__ = name
    return function


def _raised(exception: str, message: str) -> ExternalSettledResult:
    return {"exc_type": cast("ExcType", exception), "message": message}
