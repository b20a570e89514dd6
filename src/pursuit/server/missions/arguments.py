"""What a client may say to each tool.

Owns: the shapes of arguments, and what is stricter over MCP than in a mission file: `required` must be said, and no
client runs an argv of its own. Invariant: wrong arguments are refused with every fault at once, before any effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import AfterValidator, Field, StringConstraints, ValidationError

from pursuit.core.base_model import LARGEST, Broken, Flag, InputModel, Whole, faults_of, plain_text
from pursuit.core.events import Verdict, WaitingFor
from pursuit.core.mission import CAPS, MAX_STAGNATION, AnyProposer, Mission, Preferences, Proposal, SamplingProposer
from pursuit.core.patterns import MAX_EXPRESSION, MAX_PATH, MAX_PATTERN, MAX_SCRIPT
from pursuit.errors import Fault, ValidationFailed
from pursuit.service.queries import MISSION_ID, SHOWN_STATUSES, ShownStatus

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

    status: ShownStatus | None = None
    cursor: Cursor | None = None


def parse(shape: type[Arguments], given: Mapping[str, Any]) -> Arguments:
    """The arguments in their shape, or every fault."""
    try:
        return shape.model_validate(given)
    except ValidationError as error:
        raise ValidationFailed(faults_of(error, shape)) from None
    except RecursionError:
        raise ValidationFailed([Fault(field="(input)", reason="nests too deep")]) from None


# The JSON Schemas of what the tools take and give.
# Invariant: what `arguments` refuses, the input schema does not promise, and every answer that is no error fits its
# output schema.

Schema = dict[str, Any]

NO_CAP = -1
LENGTHS = (
    ("Predicate", "expression", 1, MAX_EXPRESSION),
    ("Expectation", "predicate", 1, MAX_EXPRESSION),
    ("ScriptProposer", "script", 1, MAX_SCRIPT),
    ("Proposal", "script", 1, MAX_SCRIPT),
    ("ObserveRule", "regex", 0, MAX_PATTERN),
    ("ObserveRule", "jmespath", 1, MAX_PATH),
)

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "description": "ISO 8601, UTC"}
ANYTHING: Schema = {}
SESSION_ID_SCHEMA: Schema = {"type": "string", "pattern": "^mission-[0-9a-f]{16}$"}
STATUS: Schema = {"type": "string", "enum": list(SHOWN_STATUSES)}
RESUME: Schema = {"type": "string", "description": "The command that resumes an interrupted mission."}
VERDICT: Schema = {"type": "string", "enum": list(cast("Any", Verdict).__args__)}
WAITING_FOR: Schema = {"type": "string", "enum": list(cast("Any", WaitingFor).__args__)}


def listed(items: Schema) -> Schema:
    """An array of these."""
    return {"type": "array", "items": items}


def record(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """An object with these keys; more may come in later releases."""
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}


NULLABLE_TEXT: Schema = {"type": ["string", "null"]}
BUDGET = record(
    {
        "max_iterations": NUMBER,
        "max_wall_clock_seconds": NUMBER,
        "max_tool_calls": NUMBER,
        "max_tokens": NUMBER,
        "max_cost_usd": NUMBER,
        "used": record(
            {
                "iterations": COUNT,
                "wall_clock_seconds": NUMBER,
                "tool_calls": COUNT,
                "tokens": COUNT,
                "cost_usd": {"type": ["number", "null"], "description": "null: nobody knows"},
            }
        ),
    },
    {"on_exhausted": TEXT},
)
CRITERION = record(
    {"criterion_id": TEXT, "kind": TEXT, "required": FLAG, "status": TEXT},
    {"evidence": ANYTHING, "source": ANYTHING, "text": TEXT},
)
VERDICT_ROW = record({"iteration_index": COUNT, "verdict": VERDICT, "verdict_reason": TEXT})

STARTED = record(
    {
        "session_id": SESSION_ID_SCHEMA,
        "status": STATUS,
        "use_sampling": FLAG,
        "sampling_backend_resolved": NULLABLE_TEXT,
        "proposer": TEXT,
        "warnings": listed(TEXT),
    }
)
STATE = record(
    {
        "session_id": SESSION_ID_SCHEMA,
        "status": STATUS,
        "directive": TEXT,
        "criteria": listed(CRITERION),
        "budget": BUDGET,
        "tool_allowlist": listed(TEXT),
        "iteration_count": COUNT,
        "no_progress_counter": COUNT,
        "created_at": TIME,
        "pending_approvals": listed(ANYTHING),
    },
    {
        "waiting_for": WAITING_FOR,
        "waiting_detail": TEXT,
        "waiting_until": TIME,
        "proposer": TEXT,
        "metrics": {"type": "object"},
        "best": {"type": "object"},
        "warnings": listed(TEXT),
        "resume": RESUME,
        "verdict": VERDICT,
        "verdict_reason": TEXT,
        "rationale": TEXT,
        "started_at": TIME,
        "ended_at": TIME,
        "failure": TEXT,
        "report": {"type": "string", "description": "The resource with the final report."},
        "parent": SESSION_ID_SCHEMA,
        "children": listed(
            record({"session_id": SESSION_ID_SCHEMA, "status": TEXT, "reserved": ANYTHING, "used": ANYTHING})
        ),
    },
)
ITERATED = record(
    {"session_id": SESSION_ID_SCHEMA, "status": STATUS, "iterations": listed(VERDICT_ROW)},
    {"pending_approvals": listed(ANYTHING)},
)
CHECKPOINT = record(
    {"session_id": SESSION_ID_SCHEMA, "iteration_index": COUNT, "verdict": VERDICT, "verdict_reason": TEXT}
)
WHERE = record({"session_id": SESSION_ID_SCHEMA, "status": STATUS})
HISTORY = record(
    {
        "session_id": SESSION_ID_SCHEMA,
        "iterations": listed(
            record(
                {"iteration_index": COUNT, "verdict": VERDICT, "verdict_reason": TEXT},
                {
                    "started_at": TIME,
                    "ended_at": TIME,
                    "strategy": {"type": "object"},
                    "calls": listed({"type": "object"}),
                    "observation": {"type": "object"},
                    "criteria": listed({"type": "object"}),
                },
            )
        ),
    },
    {"next_cursor": TEXT},
)
LISTING = record(
    {
        "sessions": listed(
            record(
                {
                    "session_id": SESSION_ID_SCHEMA,
                    "status": STATUS,
                    "created_at": TIME,
                    "iteration_count": COUNT,
                    "directive": TEXT,
                },
                {"waiting_for": WAITING_FOR, "parent": SESSION_ID_SCHEMA, "resume": RESUME},
            )
        )
    },
    {"next_cursor": TEXT},
)


def input_schema(shape: type[InputModel], words: dict[str, str]) -> Schema:
    """The arguments as JSON Schema, with a word on each for whoever fills them in."""
    schema = cast("Schema", _plain(shape.model_json_schema()))
    schema.pop("description", None)
    for definition in cast("dict[str, Schema]", schema.get("$defs", {})).values():
        if "const" in definition["properties"].get("kind", {}):
            definition["required"] = ["kind", *definition.get("required", ())]
            definition["properties"]["kind"].pop("default", None)
    _bounded(schema)
    if shape is Start:
        _stricter(schema)
    for name, text in words.items():
        schema["properties"][name]["description"] = text
    return schema


def _plain(value: Any) -> Any:
    """What pydantic says in the words of JSON Schema alone, without titles and other things that help nobody."""
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    plain: Schema = {}
    for key, item in cast("dict[str, Any]", value).items():
        if key == "properties":
            plain[key] = {name: _plain(inner) for name, inner in item.items()}
        elif not _is_noise(key, item):
            plain[_WORDS.get(key, key)] = _plain(item)
    return plain


# Bounds beside a validator of ours keep pydantic's own names.
_WORDS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}


def _is_noise(key: str, item: Any) -> bool:
    return (
        key in ("title", "discriminator")
        or (key == "default" and (item is None or isinstance(item, dict)))
        or (key in _WORDS and abs(item) >= LARGEST)
    )


def _bounded(schema: Schema) -> None:
    """The lengths of code and patterns, which validators of ours look at."""
    definitions = cast("dict[str, Schema]", schema.get("$defs", {}))
    for name, field, least, most in LENGTHS:
        if name in definitions:
            declared = definitions[name]["properties"][field]
            text = next((form for form in declared.get("anyOf", ()) if form["type"] == "string"), declared)
            text.update(minLength=least, maxLength=most)


def _stricter(schema: Schema) -> None:
    """What is asked of a client and not of a mission file, and what validators of ours add."""
    definitions = cast("dict[str, Schema]", schema["$defs"])
    for definition in definitions.values():
        if "criterion_id" in definition["properties"]:
            definition["required"].append("required")
            definition["properties"]["required"].pop("default", None)
    for field in ("command", "cwd"):
        definitions["Check"]["properties"].pop(field)
    for cap in CAPS:
        declared = definitions["Budget"]["properties"][cap]
        real = {"type": declared.pop("type"), "exclusiveMinimum": 0}
        declared["anyOf"] = [real, {"const": NO_CAP}]
    properties = schema["properties"]
    properties["pace"]["anyOf"].insert(1, definitions["Pace"]["properties"]["seconds"])
    properties["proposer"]["oneOf"].append({"const": "client"})
    schema["properties"]["stagnation_threshold"] = {
        "anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_STAGNATION}, {"enum": ["off", None]}]
    }
