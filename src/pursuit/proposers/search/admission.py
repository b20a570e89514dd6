"""The bounds of a search, from the mission and from the tool's JSON Schema, checked when a mission starts."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from pursuit.config.commands import COMMANDS_SERVER
from pursuit.core.base_model import Broken, nearest
from pursuit.errors import Fault, advice
from pursuit.proposers.contract import MissionAdmission
from pursuit.proposers.search.objective import aim_of
from pursuit.proposers.search.settings import (
    MAX_CHOICES,
    MAX_PARAMETERS,
    Parameter,
    SearchProposer,
    as_number,
    broken_range,
)

Schema = Mapping[str, Any]
AT = "proposer.parameters"
WIDE_RANGE = 1_000
"""From low to high by this factor, an even search spends a thousandth of its trials on the lowest decade."""
MOST_STEPS = 32
LARGEST_INT = 2**53 - 1
LARGEST = sys.float_info.max


def searched(search: SearchProposer, schema: Schema) -> tuple[dict[str, Parameter], list[Fault]]:
    """The searched arguments with their bounds, from the mission or the tool's JSON Schema, and the faults.

    Without any parameters these are all arguments that are not fixed and can be searched.
    """
    faults: list[Fault] = []
    properties = cast("Mapping[str, Any]", schema.get("properties") or {})
    found: dict[str, Parameter] = {}
    for name in search.parameters or [name for name in properties if name not in search.args]:
        given = search.parameters.get(name)
        if given is not None and properties and name not in properties and schema.get("additionalProperties") is False:
            reason = f"the tool has no such argument{nearest(name, list(properties))}"
            faults.append(Fault(field=f"{AT}.{name}", reason=reason))
            continue
        declared = _resolved(properties.get(name), schema)
        if given is None and _numeric(declared) is None and _choices(declared) is None:
            continue  # neither named by the mission nor searchable
        whole = _completed(name, given or Parameter(), declared, faults)
        if whole is not None:
            found[name] = whole
    faults += _missing(search, schema, found, faults)
    if not found and not faults:
        faults.append(Fault(field=AT, reason="there is nothing to search: every argument of the tool is fixed"))
    if len(found) > MAX_PARAMETERS:
        faults.append(Fault(field=AT, reason=f"{len(found)} arguments are too many; name at most {MAX_PARAMETERS}"))
    return found, faults


def corners(found: Mapping[str, Parameter], fixed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Two calls at the ends of every range, and one for each further choice."""
    low = {name: one.choices[0] if one.choices else _typed(one, one.low) for name, one in found.items()}
    high = {name: one.choices[-1] if one.choices else _typed(one, _highest(one)) for name, one in found.items()}
    others = [{**low, name: choice} for name, one in found.items() for choice in (one.choices or ())[1:-1]]
    return [{**fixed, **point} for point in (low, high, *others)]


def _highest(parameter: Parameter) -> float | None:
    """The last number of the range that lies on its grid."""
    low, high, step = parameter.low, parameter.high, parameter.step
    if low is None or high is None or step is None:
        return high
    if parameter.kind == "int":
        return int(low) + (int(high) - int(low)) // int(step) * int(step)
    return low + math.floor((high - low) / step + 1e-9) * step


def _typed(parameter: Parameter, bound: float | None) -> float | int | None:
    return int(bound) if parameter.kind == "int" and bound is not None else bound


def _missing(
    search: SearchProposer, schema: Schema, found: Mapping[str, Parameter], faults: Sequence[Fault]
) -> list[Fault]:
    """The required arguments that are neither fixed nor searched."""
    named = {fault.field.removeprefix(f"{AT}.").partition(".")[0] for fault in faults}
    return [
        Fault(
            field="proposer.args",
            reason=f"the tool needs {name!r}: fix it here, or search it: parameters.{name} = {{}}",
        )
        for name in cast("Sequence[str]", schema.get("required") or ())
        if name not in found and name not in search.args and name not in named
    ]


def _completed(name: str, given: Parameter, declared: Schema, faults: list[Fault]) -> Parameter | None:
    """The parameter with what the schema says where it is silent; None, and faults, if bounds are lacking."""
    bounded = given.low is not None or given.high is not None
    choices = given.choices if given.choices is not None or bounded else _choices(declared)
    if choices is not None:
        return given if given.choices is not None else Parameter(choices=list(choices))
    low, high = _bounds(declared)
    fields: dict[str, Any] = {
        "low": given.low if given.low is not None else low,
        "high": given.high if given.high is not None else high,
        "step": given.step if given.step is not None or given.log else _step(declared),
        "log": given.log,
        "kind": given.kind or _numeric(declared) or "float",
    }
    if fields["kind"] == "int":
        fields = _whole(fields)
    if given.step is None and fields["step"] is not None and fields["low"] is not None:
        fields["low"] = _multiple(fields["low"], fields["step"])
    lacking = [bound for bound in ("low", "high") if fields[bound] is None]
    if lacking:
        words = " and ".join(lacking)
        reason = f"needs {words}: the tool's schema has no such bound; give it here, or fix the argument in args"
        faults.append(Fault(field=f"{AT}.{name}", reason=reason))
        return None
    broken = [*broken_range(fields), *_too_large(fields)]
    faults.extend(Fault(field=f"{AT}.{name}.{one.field}", reason=one.reason) for one in broken)
    return None if broken else Parameter(**fields)


def _multiple(low: float, step: float) -> float:
    """The first multiple of the step from here on: multiples count from 0."""
    try:
        if low.is_integer() and step.is_integer():
            return float(-(-int(low) // int(step)) * int(step))
        return math.ceil(low / step - 1e-9) * step
    except OverflowError:
        return low  # such a step does not fit its range, which is said of the range


def _too_large(fields: Mapping[str, Any]) -> Iterator[Broken]:
    """Bounds are floating point numbers, which tell only ints up to here from their neighbours."""
    for name in ("low", "high"):
        if fields["kind"] == "int" and abs(fields[name]) > LARGEST_INT:
            yield Broken(f"must be within {LARGEST_INT} of 0 for an int; give a narrower range in parameters", name)


def _whole(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of an int whose bounds in the schema were none: the range becomes the whole numbers within."""
    low, high = cast("float | None", fields["low"]), cast("float | None", fields["high"])
    return {
        **fields,
        "low": None if low is None else float(math.ceil(low)),
        "high": None if high is None else float(math.floor(high)),
    }


def _resolved(declared: object, schema: Schema) -> Schema:
    """The declaration behind local references and beside `null`."""
    for _ in range(MOST_STEPS):
        if not isinstance(declared, Mapping):
            return {}
        here = cast("Schema", declared)
        target = here.get("$ref")
        if isinstance(target, str) and target.startswith("#/"):
            declared = _followed(schema, target[2:].split("/"))
            continue
        forms = [form for form in cast("Sequence[Any]", here.get("anyOf") or ()) if form != {"type": "null"}]
        if len(forms) == 1:
            declared = forms[0]
            continue
        return here
    return {}


def _followed(schema: Schema, path: Sequence[str]) -> object:
    found: Any = schema
    for word in path:
        found = cast("Schema", found).get(word) if isinstance(found, Mapping) else None
    return found


def _numeric(declared: Schema) -> Literal["int", "float"] | None:
    return "int" if declared.get("type") == "integer" else "float" if declared.get("type") == "number" else None


def _choices(declared: Schema) -> Sequence[Any] | None:
    """The listed values, each once; 1 and true are the same to a search."""
    listed = declared.get("enum")
    if isinstance(listed, list):
        values = [one for one in cast("list[Any]", listed) if one is None or isinstance(one, bool | int | float | str)]
        once = [one for place, one in enumerate(values) if one not in values[:place]]
        return once[:MAX_CHOICES] or None
    return [False, True] if declared.get("type") == "boolean" else None


def _bounds(declared: Schema) -> tuple[float | None, float | None]:
    """The least and the greatest number; an excluded bound is the next number inside."""
    whole = _numeric(declared) == "int"
    low, high = as_number(declared.get("minimum")), as_number(declared.get("maximum"))
    above, below = as_number(declared.get("exclusiveMinimum")), as_number(declared.get("exclusiveMaximum"))
    if above is not None:
        inside = math.floor(above) + 1.0 if whole else _inside(above, 1)
        low = inside if low is None else max(low, inside)
    if below is not None:
        inside = math.ceil(below) - 1.0 if whole else _inside(below, -1)
        high = inside if high is None else min(high, inside)
    return low, high


def _inside(bound: float, sign: int) -> float:
    """A number next to an excluded bound that twelve digits can tell from it."""
    return max(-LARGEST, min(LARGEST, bound + sign * (abs(bound) * 1e-9 or 1e-9)))


def _step(declared: Schema) -> float | None:
    step = as_number(declared.get("multipleOf"))
    return None if step is None or step <= 0 else step


def admit_search(search: SearchProposer, admission: MissionAdmission) -> None:
    """The search with its bounds; a few calls at its corners must fit the tool's schema."""
    row, catalogue = admission.row, admission.catalogue
    name = row["tool_name"] = admission.tool("proposer.tool_name", search.tool_name)
    if search.then is not None:
        row["then"] = admission.tool("proposer.then", search.then)
        if row["then"] == name:
            admission.fault("proposer.then", f"{name} is the tool that is searched; name another, or leave it out")
    if name not in catalogue.tools:
        return
    found, faults = searched(search, catalogue.tools[name].input_schema)
    aim, broken = aim_of(admission.mission, search, name)
    faults += broken
    if search.then is not None and not broken and not aim.wanted and search.trials is None:
        reason = f"needs a number: no required threshold of {name} says when {search.then} is due"
        faults.append(Fault(field="proposer.trials", reason=reason))
    admission.faults += faults
    if not faults:
        reasons = [reason for args in corners(found, search.args) for reason in catalogue.check(name, args)]
        for reason in dict.fromkeys(reasons):
            admission.fault(AT, reason)
    row["parameters"] = {key: one.model_dump(mode="json") for key, one in found.items()}
    admission.warnings += [*_one_by_one(search, name, admission), *_wide_ranges(search, found)]


def _wide_ranges(given: SearchProposer, found: Mapping[str, Parameter]) -> list[str]:
    """A warning for each range of several decades whose scale the mission does not say."""
    said = {name for name, one in given.parameters.items() if one.model_fields_set & {"log", "step"}}
    return [
        f"{name} is searched evenly from {one.low:g} to {one.high:g}, so small values are hardly tried; "
        f"[proposer.parameters] {name} = {{ log = true }} tries each magnitude as often (log = false keeps it)"
        for name, one in found.items()
        if name not in said and one.low is not None and one.high is not None
        if one.step is None and one.low > 0 and one.high / one.low >= WIDE_RANGE
    ]


def _one_by_one(search: SearchProposer, name: str, admission: MissionAdmission) -> list[str]:
    """A warning if the calls of a batch do not run side by side."""
    one = admission.catalogue.tools[name]
    if search.batch == 1 or one.traits.parallel_safe:
        return []
    if one.local:
        say = "@tool(parallel_safe=True) above the function"
    elif one.server == COMMANDS_SERVER:
        say = advice('`parallel_safe = true` in `[commands."{}"]`', one.name)
    else:
        say = advice('`parallel_safe = true` in `[servers."{}".tools."{}"]`', one.server, one.name)
    return [
        f"proposer.batch is {search.batch}, but {name} is not known to be safe beside itself, so its calls run "
        f"one after the other; if it is, say {say}"
    ]
