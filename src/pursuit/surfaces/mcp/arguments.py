"""What a client may say to each tool.

Owns: the shapes of arguments, and what is stricter over MCP than in a mission file: `required` must be said, and no
client runs an argv of its own. Invariant: wrong arguments are refused with every fault at once, before any effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import AfterValidator, Field, StringConstraints, ValidationError

from pursuit.core.base_model import Broken, Flag, InputModel, Whole, faults_of, plain_text
from pursuit.core.mission import AnyProposer, Mission, Preferences, Proposal, SamplingProposer
from pursuit.core.state import Status
from pursuit.errors import Fault, ValidationFailed
from pursuit.service.queries import MISSION_ID

MOST_ITERATIONS = 1_000_000


def _a_mission_id(value: str) -> str:
    if MISSION_ID.fullmatch(value) is None:
        raise ValueError("is no mission id; one is `mission-` and 16 hex digits, as mission_start and mission_list say")
    return value


SessionId = Annotated[
    str, AfterValidator(_a_mission_id), Field(json_schema_extra={"pattern": f"^{MISSION_ID.pattern}$"})
]
Reason = Annotated[str, StringConstraints(max_length=8_192), AfterValidator(plain_text)]
Cursor = Annotated[str, StringConstraints(max_length=1_024)]

Arguments = TypeVar("Arguments", bound=InputModel)


class Session(InputModel):
    """A mission by its id."""

    session_id: SessionId


class Start(Mission):
    """A mission, and who is to propose."""

    use_sampling: Flag | None = None
    sampling_model_preferences: Preferences | None = None

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        """The rules of a mission, and those for a client."""
        yield from super().between(given)
        criteria = given.get("criteria")
        for place, criterion in enumerate(cast("list[Any]", criteria) if isinstance(criteria, list) else ()):
            if not isinstance(criterion, Mapping):
                continue
            if "required" not in criterion:
                yield Broken("must be said: true, or false for one that never blocks", ("criteria", place, "required"))
            for field in ("command", "cwd"):
                if field in criterion:
                    why = "a client cannot run a command; use tool_name, or a named check of the configuration"
                    yield Broken(why, ("criteria", place, field))
            # Only a named check is the operator's own: a null one leaves the call that the client says beside it.
            said = cast("Mapping[str, Any]", criterion)
            if not isinstance(said.get("check"), str):
                yield from _not_a_clients(said, place)

    def mission(self, model: str | None = None, *, sampling: bool = False) -> Mission:
        """The mission alone. Where nobody is named, the client's model proposes if it has one (`sampling`).

        Else it is the configured `model`, else the client itself.
        """
        kept: dict[str, Any] = {
            name: getattr(self, name) for name in self.model_fields_set if name in Mission.model_fields
        }
        faults = list(self._sampling_faults(kept.get("proposer"), able=sampling))
        if faults:
            raise ValidationFailed(faults)
        if "proposer" not in kept and (sampling if self.use_sampling is None else self.use_sampling):
            kept["proposer"] = SamplingProposer()
        elif model is not None:
            kept.setdefault("proposer", model)
        proposer = kept.get("proposer")
        if isinstance(proposer, SamplingProposer) and self.sampling_model_preferences is not None:
            kept["proposer"] = proposer.model_copy(update={"model_preferences": self.sampling_model_preferences})
        return Mission(**kept)

    def _sampling_faults(self, proposer: AnyProposer | None, *, able: bool) -> Iterable[Fault]:
        if self.use_sampling and not able:
            why = "this client declares no sampling, so its model cannot be asked; leave it out"
            yield Fault(field="use_sampling", reason=why)
        if proposer is None or self.use_sampling is None:
            return
        if self.use_sampling != isinstance(proposer, SamplingProposer):
            why = f"does not go with the proposer {proposer.kind}; leave one of the two out"
            yield Fault(field="use_sampling", reason=why)


def _not_a_clients(criterion: Mapping[str, Any], place: int) -> Iterable[Broken]:
    """What only the operator may say of a check: that it can be repeated, and which files are there."""
    if criterion.get("idempotent"):
        why = "a client cannot say that a call may be repeated; that is for the operator's configuration"
        yield Broken(why, ("criteria", place, "idempotent"))
    expect = criterion.get("expect")
    if isinstance(expect, Mapping) and cast("Mapping[str, Any]", expect).get("file") is not None:
        why = "a client cannot look for files of this machine; let a tool look, or use a named check"
        yield Broken(why, ("criteria", place, "expect", "file"))


class Iterate(Session):
    """How far to go, and what a client proposes."""

    max_iterations_this_call: Annotated[Whole, Field(ge=1, le=MOST_ITERATIONS)] = 1
    proposal: Proposal | None = None
    background: Flag = False
    after: Annotated[Whole, Field(ge=0)] | None = None


class Complete(Session):
    """Why it is called done."""

    reason: Reason = "forced_complete"


class Abort(Session):
    """Whether to stop for good, and why."""

    pause: Flag = False
    reason: Reason | None = None


class History(Session):
    """Which iterations, and how much of each."""

    format: Literal["summary", "full"] = "summary"
    cursor: Cursor | None = None


class Listing(InputModel):
    """Which missions."""

    status: Status | None = None
    cursor: Cursor | None = None


def parse(shape: type[Arguments], given: Mapping[str, Any]) -> Arguments:
    """The arguments in their shape, or every fault."""
    try:
        return shape.model_validate(given)
    except ValidationError as error:
        raise ValidationFailed(faults_of(error, shape)) from None
    except RecursionError:
        raise ValidationFailed([Fault(field="(input)", reason="nests too deep")]) from None
