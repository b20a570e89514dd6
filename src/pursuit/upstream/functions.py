"""Plain Python functions as tools.

A function that raises yields a result with `is_error`, never a broken upstream. A sync function runs in the event loop
and must be short; with `threaded=True` it runs in a worker thread, which continues after a cancellation: its effect may
still happen.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast, get_type_hints

import anyio.to_thread
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from pursuit.core.tools import CallFailed, ProgressFn, Tool, ToolOverride, ToolResult
from pursuit.errors import Fault, ValidationFailed
from pursuit.policy.traits import traits

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__pursuit_tool__"
_PLAIN = (str, int, float, bool)
"""The types whose exact values pydantic accepts unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marked:
    name: str | None = None
    override: ToolOverride | None = None
    threaded: bool | None = None


def tool(
    *,
    name: str | None = None,
    read_only: bool | None = None,
    idempotent: bool | None = None,
    parallel_safe: bool | None = None,
    destructive: bool | None = None,
    timeout: float | None = None,
    threaded: bool | None = None,
    long: bool | None = None,
) -> Callable[[F], F]:
    """Sets the traits of a function as a tool; the default of each trait is the worst case."""
    override = ToolOverride(
        read_only=read_only,
        idempotent=idempotent,
        parallel_safe=parallel_safe,
        destructive=destructive,
        timeout=timeout,
        long=long,
    )

    def mark(function: F) -> F:
        setattr(function, _MARK, _Marked(name=name, override=override, threaded=threaded))
        return function

    return mark


@dataclass(frozen=True, slots=True)
class _Function:
    run: Callable[..., Any]
    model: type[BaseModel]
    parameters: Mapping[str, str]
    kinds: Mapping[str, type]
    """The types of plain parameters."""
    required: frozenset[str]
    awaits: bool
    threaded: bool
    tool: Tool


class FunctionUpstream:
    """Functions of this process as an `Upstream`, without a connection."""

    def __init__(
        self,
        name: str,
        functions: Mapping[str, Callable[..., Any]] | Sequence[Callable[..., Any]],
        *,
        threaded: bool = False,
    ) -> None:
        self.name = name
        self._functions: dict[str, _Function] = {}
        pairs = functions.items() if isinstance(functions, Mapping) else ((None, one) for one in functions)
        for given, function in pairs:
            entry = _prepare(name, given, function, threaded)
            if entry.tool.name in self._functions:
                raise _unusable(f"{name}.{entry.tool.name}", "two functions have this name; use @tool(name=...)")
            self._functions[entry.tool.name] = entry

    async def tools(self) -> Sequence[Tool]:
        return [entry.tool for entry in self._functions.values()]

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        call_id: str,
        on_progress: ProgressFn | None = None,
    ) -> ToolResult:
        """Runs the function; exceptions become error results, except `CallFailed`, which is raised."""
        started = self.start(tool, arguments)
        return started if isinstance(started, ToolResult) else await started

    def start(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult | Awaitable[ToolResult]:
        """Returns the result of a plain function, or an awaitable for an async or threaded one."""
        entry = self._functions.get(tool)
        if entry is None:
            raise CallFailed(f"{self.name} does not have a tool {tool!r}", sent=False)
        try:
            values = _values(entry, arguments)
        except ValidationError as error:
            return _failed(f"the arguments do not fit: {_reasons(error)}")
        if entry.threaded and not entry.awaits:
            return _awaited(anyio.to_thread.run_sync(partial(entry.run, **values), abandon_on_cancel=True))
        try:
            value = entry.run(**values)
            if not isinstance(value, dict) and inspect.isawaitable(value):
                return _awaited(value)
            return _result(cast("Any", value))
        except CallFailed:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary to the user's code: what it raises is an outcome
            return _raised(error)

    async def aclose(self) -> None:
        """Nothing to close."""


def _prepare(server: str, given: str | None, function: Callable[..., Any], threaded: bool) -> _Function:
    marked = cast("_Marked", getattr(function, _MARK, _Marked()))
    name = given or marked.name or getattr(function, "__name__", type(function).__name__)
    try:
        model, parameters = _model(f"{server}.{name}", function)
        schema = model.model_json_schema(by_alias=True)
    except (NameError, TypeError, PydanticUserError) as error:
        raise _unusable(f"{server}.{name}", f"its signature cannot be expressed as JSON Schema: {error}") from error
    for key in ("title", "description"):
        schema.pop(key, None)
    description = inspect.getdoc(function) or ""
    what = traits(marked.override, None, speaker="the program's own setting")
    definition = {"name": name, "description": description, "inputSchema": schema}
    return _Function(
        run=function,
        model=model,
        parameters=parameters,
        kinds={
            name: kind
            for key, name in parameters.items()
            for kind in _PLAIN
            if model.model_fields[key].annotation is kind and not model.model_fields[key].metadata
        },
        required=frozenset(name for key, name in parameters.items() if model.model_fields[key].is_required()),
        awaits=inspect.iscoroutinefunction(function),
        threaded=threaded if marked.threaded is None else marked.threaded,
        tool=Tool(
            server=server,
            name=name,
            description=description,
            input_schema=schema,
            traits=what,
            definition=definition,
            local=True,
            long=marked.override is not None and marked.override.long is True,
        ),
    )


def _model(qualified: str, function: Callable[..., Any]) -> tuple[type[BaseModel], dict[str, str]]:
    """The signature as a pydantic model with numbered fields, because pydantic refuses some parameter names."""
    whole: Any = function
    inner: Any = whole.func if isinstance(whole, partial) else whole
    # The annotations of a callable object are those of its class's `__call__`.
    target = inner if inspect.isroutine(inner) else type(inner).__call__
    hints = get_type_hints(target, include_extras=True)
    fields: dict[str, Any] = {}
    parameters: dict[str, str] = {}
    takes_more = False
    for position, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_more = True
            continue
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise _unusable(qualified, f"its parameter {parameter.name!r} cannot be given by name")
        parameters[f"f{position}"] = parameter.name
        fields[f"f{position}"] = (hints.get(parameter.name, Any), _field(parameter))
    config = ConfigDict(extra="allow" if takes_more else "forbid")
    return create_model(qualified, __config__=config, **fields), parameters


def _unusable(qualified: str, reason: str) -> ValidationFailed:
    return ValidationFailed([Fault(field=qualified, reason=reason)], f"{qualified}: {reason}")


def _field(parameter: inspect.Parameter) -> Any:
    title = parameter.name.replace("_", " ").strip().capitalize() or None
    if parameter.default is parameter.empty:
        return Field(alias=parameter.name, title=title)
    default = parameter.default
    try:
        to_json(default)
    except PydanticSerializationError:
        # The function keeps its own default; the schema cannot show one that is not JSON.
        return Field(alias=parameter.name, title=title, default_factory=lambda: default)
    return Field(default, alias=parameter.name, title=title)


def _values(entry: _Function, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the arguments to the types of the signature; omitted arguments use the function's defaults."""
    for name, value in arguments.items():
        if name not in entry.kinds or type(value) is not entry.kinds[name]:
            break
    else:
        if entry.required <= arguments.keys():
            return dict(arguments)
    checked = entry.model.model_validate(arguments)
    given = {name: getattr(checked, key) for key, name in entry.parameters.items() if key in checked.model_fields_set}
    return {**given, **(checked.model_extra or {})}


async def _awaited(value: Awaitable[Any]) -> ToolResult:
    try:
        return _result(await value)
    except CallFailed:
        raise
    except Exception as error:  # noqa: BLE001 - the boundary to the user's code, as above
        return _raised(error)


def _raised(error: Exception) -> ToolResult:
    return _failed(f"{type(error).__name__}: {error}")


def _result(value: Any) -> ToolResult:
    match value:
        case ToolResult():
            return value
        case None:
            return ToolResult()
        case str():
            return ToolResult(content=({"type": "text", "text": value},))
        case _:
            plain = to_jsonable_python(value)
            return ToolResult(structured=plain if isinstance(plain, dict) else {"result": plain})


def _failed(text: str) -> ToolResult:
    return ToolResult(content=({"type": "text", "text": text},), is_error=True)


def _reasons(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
        for fault in error.errors(include_url=False, include_context=False, include_input=False)
    )
