"""A scripted strategy, run call by call: it stops at every tool call and goes on with the answer that it is given.

Owns: one run of one script, its names (`server.tool`, `call`, `mission`, `state`) and its limits. Makes no call itself.
Does not know the ledger: durability is replay, by giving a new run the recorded answers of an earlier one.
Invariants: the same source, state, seed, time and answers lead to the same steps; nothing that a script does is an
exception here, it is `Finished(error=…)`.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import uuid
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from pursuit.sandbox.awaits import awaited_calls
from pursuit.sandbox.claims import Claims
from pursuit.sandbox.names import Misspelt, Request, Toolbox
from pursuit.sandbox.pool import SandboxLimits, SessionLostError, Workers, monty
from pursuit.sandbox.steps import (
    Calls,
    Finished,
    ScriptCall,
    ScriptFailure,
    ScriptSpec,
    Step,
    check_script,
    fingerprint,
)
from pursuit.sandbox.values import NotJsonError, as_json, bounded, canonical

if TYPE_CHECKING:
    from pydantic_monty import (
        AsyncFunctionSnapshot,
        AsyncFutureSnapshot,
        AsyncMontySession,
        AsyncNameLookupSnapshot,
        AsyncSnapshot,
        ExcType,
        ExternalSettledResult,
        MontyError,
    )

MAX_ARGUMENTS = 1024 * 1024
MAX_MEMORY = 1024 * 1024
MAX_PRINTED = 64 * 1024
_SCRIPT = "<python-input-1>"
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
    """A run in progress: `start` once, then `answer` every call of each `Calls` until it is `Finished`."""

    def __init__(self, workers: Workers, limits: SandboxLimits, spec: ScriptSpec) -> None:
        self._workers = workers
        self._limits = limits
        self._spec = spec
        self._source = spec.source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        self._toolbox = Toolbox(spec.tools)
        self._servers = {uuid.UUID(int=_FIRST_SERVER + place): name for place, name in enumerate(sorted(spec.tools))}
        self._claims = Claims()
        self._stack = contextlib.AsyncExitStack()
        self._session: AsyncMontySession | None = None
        self._snapshot: AsyncSnapshot | None = None
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
        """Run to the first call, or to the end."""
        problem = check_script(self._source)
        if problem is not None:
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
        """Go on with the value, or the `ScriptFailure`, of every call of the last step."""
        if self._snapshot is None or answers.keys() != self._asked.keys():
            raise ValueError(f"the script waits for answers to {sorted(self._asked)}, not to {sorted(answers)}")
        for index, (_, call_id) in self._asked.items():
            self._answered[call_id] = _settled(answers[index])
        self._asked.clear()
        snapshot, self._snapshot = self._snapshot, None
        try:
            return await self._run(snapshot)
        except monty().MontyError as error:
            return await self._failed(error)

    async def _opened(self) -> AsyncMontySession:
        limits = self._limits
        now = self._spec.now
        for last in (False, True):
            session = self._workers.session(
                {
                    "max_feed_duration_secs": limits.script_seconds,
                    "max_memory": limits.script_memory,
                    "max_suspensions": limits.script_calls,
                },
                {
                    "datetime": now.replace(tzinfo=now.tzinfo or datetime.UTC).astimezone(datetime.UTC),
                    "sleep": "zero",
                    "random_start": {"seed": self._spec.seed},
                },
            )
            try:
                return await self._stack.enter_async_context(session)
            except SessionLostError:
                if last:
                    raise
        raise AssertionError("unreachable")

    def _objects(self) -> dict[str, Any]:
        """The globals that stand for servers, with fixed identities so that a replay sees the same ones."""
        library = monty()
        identities = {server: identity for identity, server in self._servers.items()}
        named = {name: identities[server] for name, server in self._toolbox.servers.items()} | {"mission": _MISSION}
        objects: dict[str, Any] = {}
        for name, identity in named.items():
            hidden = self._toolbox.hidden(self._servers[identity]) if identity in self._servers else {}
            kind = type(name, (), {spelling: staticmethod(_function(tool)) for spelling, tool in hidden.items()})
            shown_as = library.ClassType(kind, id=uuid.uuid5(identity, "class"))
            objects[name] = library.ClassInstance(kind(), id=identity, class_type=shown_as, eager_attrs=list(hidden))
        return objects

    async def _run(self, snapshot: AsyncSnapshot) -> Step:
        library = monty()
        while not isinstance(snapshot, library.MontyComplete):
            match snapshot:
                case library.AsyncFunctionSnapshot():
                    following = await self._at_call(snapshot)
                case library.AsyncFutureSnapshot():
                    following = await self._at_future(snapshot)
                case _:
                    following = await self._at_name(snapshot)
            if following is None and not self._asked:
                return self._ended("the script waits for something that is no tool call")
            if following is None:
                self._snapshot = snapshot
                return Calls(calls=tuple(call for call, _ in self._asked.values()))
            snapshot = following
        for call, _ in self._asked.values():
            self._print("stderr", f"{call.tool} was never awaited, so it was not called\n")
        return await self._close(None)

    async def _at_call(self, snapshot: AsyncFunctionSnapshot) -> AsyncSnapshot | None:
        """Answer what needs no tool, and `None` where the host must answer first."""
        if snapshot.is_os_function:
            return await snapshot.resume_not_handled()
        result = self._answered.pop(snapshot.call_id, None) or self._requested(snapshot)
        if result is not None and "return_value" not in result:
            return await snapshot.resume(result)
        if self._is_awaited(snapshot):
            if result is not None:
                self._answered[snapshot.call_id] = result
            return await snapshot.resume({"future": ...})
        return None if result is None else await snapshot.resume(result)

    async def _at_future(self, snapshot: AsyncFutureSnapshot) -> AsyncSnapshot | None:
        """One future at a time, oldest call first: the order of `pending_call_ids` is random."""
        ready = sorted(self._answered.keys() & set(snapshot.pending_call_ids))
        if not ready:
            return None
        return await snapshot.resume({ready[0]: self._answered.pop(ready[0])})

    async def _at_name(self, snapshot: AsyncNameLookupSnapshot) -> AsyncSnapshot:
        """A tool, or `call`, used as a value; any other name stays unknown."""
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

    def _is_awaited(self, snapshot: AsyncFunctionSnapshot) -> bool:
        place = snapshot.position
        return snapshot.allow_eager_await or (place.filename == _SCRIPT and place.end in self._awaited)

    def _requested(self, snapshot: AsyncFunctionSnapshot) -> ExternalSettledResult | None:
        """Take the call down for the host, or settle it here: a statement about the mission, or a mistake."""
        receiver, name = snapshot.object_id, str(snapshot.function_name)
        if receiver == _MISSION:
            return self._stated(name, snapshot)
        server = None if receiver is None else self._servers.get(receiver)
        if server is not None:
            request = self._toolbox.method(server, name, snapshot.args, snapshot.kwargs)
        elif name == "call":
            request = self._toolbox.called(snapshot.args, snapshot.kwargs)
        elif self._toolbox.knows(name):
            request = self._toolbox.bound(name, snapshot.args, snapshot.kwargs)
        else:
            request = self._toolbox.unknown_name(name)
        if isinstance(request, Misspelt):
            return _raised(request.exception, request.message)
        return self._asked_for(request, snapshot.call_id)

    def _asked_for(self, request: Request, call_id: int) -> ExternalSettledResult | None:
        try:
            arguments = as_json(request.arguments)
        except NotJsonError as error:
            return _raised("TypeError", f"the arguments of {request.tool} must be JSON: {error}")
        if len(canonical(arguments)) > MAX_ARGUMENTS:
            return _raised("ValueError", f"the arguments of {request.tool} have more than {MAX_ARGUMENTS} characters")
        identity = fingerprint(request.tool, arguments)
        call = ScriptCall(index=self._count, tool=request.tool, arguments=arguments, fingerprint=identity)
        self._count += 1
        self._asked[call.index] = (call, call_id)
        return None

    def _stated(self, method: str, snapshot: AsyncFunctionSnapshot) -> ExternalSettledResult:
        try:
            self._claims.state(method, snapshot.args, snapshot.kwargs)
        except (TypeError, ValueError, AttributeError) as error:
            return _raised(type(error).__name__, str(error))
        return {"return_value": None}

    def _print(self, _stream: str, text: str) -> None:
        if len(self._printed) < MAX_PRINTED:
            self._printed = bounded(self._printed + text, MAX_PRINTED)

    async def _failed(self, error: MontyError) -> Finished:
        library = monty()
        if isinstance(error, library.MontyCrashedError):
            return self._ended(f"the sandbox worker died: {bounded(str(error))}")
        text = bounded(str(error)) + _advice(str(error))
        inner = error.exception()
        if self._hint and isinstance(inner, AttributeError | NameError) and self._hint not in text:
            text += self._hint
        if isinstance(error, library.MontyRuntimeError | library.MontySyntaxError):
            lines = [frame.line for frame in error.traceback() if frame.filename == _SCRIPT]
            text = f"line {lines[-1]}: {text}" if lines else text
        # A limit stops the script in the middle of anything, so its heap is not to be trusted.
        if isinstance(inner, TimeoutError | MemoryError):
            return self._ended(text)
        return await self._close(text)

    async def _close(self, error: str | None) -> Finished:
        """The end of a script that left its session in order, so that its memory can be read."""
        if self._session is None:
            return self._ended(error)
        try:
            text = await self._session.feed_run(_READ_MEMORY, print_callback=self._print)
            memory, fault = _memory(text)
        except (monty().MontyError, NotJsonError, RecursionError) as problem:
            memory, fault = None, f"state.memory cannot be kept: {bounded(str(problem))}"
        await self._stack.aclose()
        return self._ended("; also, ".join(filter(None, [error, fault])) or None, memory)

    def _ended(self, error: str | None, memory: dict[str, Any] | None = None) -> Finished:
        return Finished(
            memory=dict(self._spec.state.get("memory") or {}) if memory is None else memory,
            observed=tuple(self._claims.observed),
            events=tuple(self._claims.events),
            error=error,
            printed=self._printed,
        )


def _function(name: str) -> Any:
    """A value that Monty takes for a host function of this name. It is never called here."""

    def function() -> None: ...

    function.__name__ = name
    return function


def _memory(text: object) -> tuple[dict[str, Any] | None, str | None]:
    """The script's memory from its JSON, or its length where that was too much to hand over."""
    if not isinstance(text, str):
        return None, f"state.memory has {text} characters; at most {MAX_MEMORY} are kept"
    memory = as_json(json.loads(text))
    if not isinstance(memory, dict):
        return None, "state.memory must stay a dict"
    return cast("dict[str, Any]", memory), None


def _settled(answer: object) -> ExternalSettledResult:
    if isinstance(answer, ScriptFailure):
        return _raised("RuntimeError", answer.message)
    return {"return_value": answer}


def _raised(exception: str, message: str) -> ExternalSettledResult:
    return {"exc_type": cast("ExcType", exception), "message": message}


def _advice(text: str) -> str:
    """What to write instead, where Monty's own words do not say."""
    if "cannot suspend in this synchronous context" in text:
        return "; call tools in a loop or a comprehension, not from map, sorted or another built-in"
    if "can't be awaited" in text or "'coroutine' object" in text:
        return "; await a tool call where it stands, or gather it: a name that is awaited anywhere holds futures"
    return ""
