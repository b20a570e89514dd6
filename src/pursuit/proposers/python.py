"""The proposer `python`: an operator's function, or object with `propose`, in this process.

It is code with the operator's rights, without a sandbox. Invariant: it comes only from an object that the program
passes, from a mission file that is trusted on this machine, or from the operator's configuration, never from the
ledger.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from copy import deepcopy
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from threading import Thread
from typing import Annotated, Any, ClassVar, Literal, Self, cast

import anyio
from pydantic import Field, PrivateAttr

from pursuit.core.base_model import Broken, Flag, Name, Number
from pursuit.core.mission import Mission, Proposal, ToolCall
from pursuit.core.proposing import ProposerFacts, ProposerSettings, StartedProcess
from pursuit.core.state import MissionState
from pursuit.errors import ProposerNotHere, advice
from pursuit.proposers.contract import (
    Done,
    DrivingPlace,
    Failed,
    MissionAdmission,
    Proposed,
    Proposer,
    ProposerContext,
    SimpleKind,
    Waiting,
)
from pursuit.proposers.language import hide_keys
from pursuit.proposers.view import View

MAX_TRACE, MAX_REASON = 4_096, 500
_log = logging.getLogger(__name__)
Answered = Proposal | ToolCall | Sequence[ToolCall] | Waiting | Done
ProposeFunction = Callable[[View], Answered | Awaitable[Answered]]


class PythonProposer(ProposerSettings):
    """A Python function that proposes: `file.py:function` beside the mission file, or `package.module:function`."""

    CLIENTS: ClassVar[str | None] = "a client cannot name Python code; only mission files of the operator can"
    CHILDREN: ClassVar[str | None] = "a child cannot name Python code"
    FROM_FILE: ClassVar[bool] = True

    kind: Literal["python"] = "python"
    callable: Name
    digest: Name | None = None
    """The SHA-256 of its source, when the mission was started."""
    importable: Flag = True
    proposer_seconds: Annotated[Number, Field(gt=0, le=86_400)] = 60
    """The timeout of the function in seconds."""
    _given: Any = PrivateAttr(default=None)

    @classmethod
    def of(cls, given: Any) -> Self:
        """The settings for a function, or an object with `propose`, of this process."""
        function = getattr(given, "propose", given)
        named: Any = given if hasattr(given, "__qualname__") else type(cast("object", given))
        module, name = str(named.__module__), str(named.__qualname__)
        importable = module != "__main__" and name.isidentifier() and given is getattr(sys.modules.get(module), name, 0)
        made = cls(callable=f"{module}:{name}", digest=_source_digest(function), importable=importable)
        made._given = given
        return made

    @property
    def given(self) -> Any:
        """The object that the program passed; None if the settings name it."""
        return self._given

    def facts(self) -> ProposerFacts:
        return ProposerFacts(authored=True)

    @property
    def label(self) -> str:
        return self.callable.rpartition(":")[2]

    def starts(self) -> Iterable[StartedProcess]:
        yield StartedProcess("python", [self.callable], {"digest": self.digest})

    @classmethod
    def in_file(cls, table: dict[str, Any], folder: Path) -> Iterable[Broken]:
        """Resolves a file relative to the folder of the mission file."""
        named = table.get("callable")
        if "digest" in table or "importable" in table:
            yield Broken("digest and importable are not allowed in mission files; remove them", "callable")
        file, colon, name = str(named).rpartition(":")
        if not isinstance(named, str) or not colon or not name:
            yield Broken('must be "file.py:function" or "package.module:function"', "callable")
            return
        if not file.endswith(".py"):
            return
        path = (folder / file).resolve()
        try:
            table["digest"] = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            yield Broken(f"{file!r} cannot be read: {error.strerror}", "callable")
        table["callable"] = f"{path}:{name}"


def _source_digest(function: Any, name: str = "") -> str | None:
    """The digest of the file in a name, or else of the function's source; None if it cannot be read."""
    file = Path(name.rpartition(":")[0])
    try:
        source = file.read_bytes() if file.suffix == ".py" else inspect.getsource(function).encode()
    except (OSError, TypeError):
        return None
    return hashlib.sha256(source).hexdigest()


def load(name: str) -> Any:
    """The object that `file.py:function` or `package.module:function` names. Raises `ProposerNotHere`."""
    place, _, attribute = name.rpartition(":")
    try:
        if not place.endswith(".py"):
            return getattr(import_module(place), attribute)
        private = f"_pursuit_proposer_{hashlib.sha256(place.encode()).hexdigest()[:16]}"
        spec = spec_from_file_location(private, place)
        if spec is None or spec.loader is None:
            raise ImportError(f"{place} is not a Python file")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, attribute)
    except Exception as error:  # noqa: BLE001 - the operator's own module may raise anything
        raise ProposerNotHere(f"the proposer {name} cannot be loaded: {type(error).__name__}: {error}") from None


class FunctionProposer(Proposer):
    def __init__(self, function: ProposeFunction, settings: PythonProposer) -> None:
        self._function = function
        self._settings = settings

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposed:
        """Calls the function; an exception, a timeout and an answer of another type are failures."""
        self.memory = memory = deepcopy(state.remembered)
        view = View(state, reasons, memory)
        limit = self._settings.proposer_seconds
        answer: object = None
        with anyio.move_on_after(limit) as late:
            try:
                answer = await self._ask(view)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the operator's own function may raise anything
                trace = hide_keys("".join(traceback.format_exception(error)))
                _log.error("the proposer %s failed:\n%s", self._settings.callable, trace[-MAX_TRACE:])
                said = " ".join(traceback.format_exception_only(error)[-1].split())
                return Failed(hide_keys(said)[:MAX_REASON], final=True)
        if late.cancelled_caught:
            return Failed(f"the proposer did not answer within {limit:g} s (proposer_seconds)", final=True)
        return _proposed(answer)

    async def _ask(self, view: View) -> object:
        if inspect.iscoroutinefunction(self._function):
            return await self._function(view)
        ask = cast("Callable[[View], object]", self._function)
        answer = await _in_thread(lambda: ask(view))
        return await cast("Awaitable[object]", answer) if inspect.isawaitable(answer) else answer


async def _in_thread(work: Callable[[], object]) -> object:
    """The result of a function in a daemon thread: once it is abandoned, the process does not wait for it."""
    found: Future[object] = Future()
    found.set_running_or_notify_cancel()
    context = copy_context()

    def run() -> None:
        try:
            found.set_result(context.run(work))
        except StopIteration:  # no future can have it
            found.set_exception(RuntimeError("StopIteration was raised"))
        except BaseException as error:  # noqa: BLE001 - it is raised where it is awaited
            found.set_exception(error)

    Thread(target=run, name="proposer", daemon=True).start()
    return await asyncio.wrap_future(found)


def _proposed(answer: object) -> Proposed:
    match answer:
        case Proposal() | Waiting() | Done():
            return answer
        case ToolCall():
            return Proposal(tool_calls=[answer])
        case list() | tuple() if all(isinstance(one, ToolCall) for one in cast("Sequence[object]", answer)):
            return Proposal(tool_calls=list(cast("Sequence[ToolCall]", answer)))
        case _:
            kinds = "pursuit.call(…), a list of calls, pursuit.script(…), wait, nothing or done"
            return Failed(f"the proposer returned {type(answer).__name__}; return {kinds}", final=True)


class PythonKind(SimpleKind[PythonProposer]):
    settings = PythonProposer

    async def admit(self, settings: PythonProposer, admission: MissionAdmission) -> None:
        if settings.given is not None and not callable(getattr(settings.given, "propose", settings.given)):
            admission.fault("proposer", "must be a function that takes a view, or an object with propose")

    def started(self, settings: PythonProposer, mission_id: str, place: DrivingPlace) -> None:
        """Keeps the object that the program passed, for runs of this process."""
        if settings.given is not None:
            place.handed[mission_id] = settings.given

    async def ready(
        self, settings: PythonProposer, mission_id: str, mission: Mission, place: DrivingPlace
    ) -> Mapping[str, str]:
        found = self._resolve(settings, mission_id, place)
        now = _source_digest(getattr(found, "propose", found), settings.callable)
        if None in (now, settings.digest) or now == settings.digest:
            return {}
        return {f"the source of {settings.callable} has changed since the mission was started": "proposer_changed"}

    def _resolve(self, settings: PythonProposer, mission_id: str, place: DrivingPlace) -> Any:
        if mission_id in place.handed:
            return place.handed[mission_id]
        if settings.callable in place.callables:
            return load(settings.callable)
        listed = advice('`callables = ["{}"]` in `[proposers]`', settings.callable)
        way = f"give its mission file, or write {listed} of pursuit.toml"
        if not settings.importable:
            way = "start the program that made it, and give proposer= there: runtime.mission(id, proposer=…)"
        raise ProposerNotHere(
            f"the proposer of {mission_id} is Python code ({settings.callable}), and code is never taken from the "
            f"ledger: {way}",
            session_id=mission_id,
        )

    def make(self, settings: PythonProposer, context: ProposerContext) -> Proposer:
        found: Any = settings.given or self._resolve(settings, context.mission_id, context.place)
        if inspect.isclass(found):
            found = found()
        return FunctionProposer(getattr(found, "propose", found), settings)
