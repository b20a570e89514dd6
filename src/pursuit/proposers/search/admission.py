"""The bounds of a search, from the mission and from the tool's JSON Schema, checked when a mission starts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from pursuit.config.commands import COMMANDS_SERVER
from pursuit.core.base_model import nearest
from pursuit.core.tools import as_object
from pursuit.errors import Fault, ValidationFailed, advice
from pursuit.proposers.contract import MissionAdmission
from pursuit.proposers.search.objective import aim_of
from pursuit.proposers.search.settings import (
    MAX_CHOICES,
    MAX_PARAMETERS,
    MAX_STEPS,
    Parameter,
    SearchProposer,
    as_number,
)

Schema = Mapping[str, Any]
AT = "proposer.parameters"
WIDE_RANGE = 1_000
"""The ratio of high to low at which an even search spends a thousandth of its trials on the lowest decade."""
MAX_HOPS = 32


def searched(search: SearchProposer, schema: Schema) -> tuple[dict[str, Parameter], list[Fault]]:
    """The searched arguments with their bounds, from the mission or the tool's JSON Schema, and the faults.

    Without `parameters`, these are all arguments that are not fixed and can be searched.
    """
    faults: list[Fault] = []
    properties = cast("Mapping[str, Any]", schema.get("properties") or {})
    found: dict[str, Parameter] = {}
    for name in search.parameters or [name for name in properties if name not in search.args]:
        given = search.parameters.get(name)
        if given is not None and properties and name not in properties and schema.get("additionalProperties") is False:
            reason = f"is not an argument of the tool{nearest(name, list(properties))}"
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
        faults.append(Fault(field=AT, reason="every argument of the tool is fixed; leave one to search"))
    if len(found) > MAX_PARAMETERS:
        faults.append(Fault(field=AT, reason=f"{len(found)} arguments are too many; name at most {MAX_PARAMETERS}"))
    return found, faults


def corners(found: Mapping[str, Parameter], fixed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Two calls at the ends of all ranges, and a call for each further choice."""
    ends: list[dict[str, Any]] = [dict(fixed), dict(fixed)]
    for name, one in found.items():
        high = one.high if one.step is None else one.low  # the last number on the grid may lie below
        pair = (one.choices[0], one.choices[-1]) if one.choices else (one.low, high)
        for end, value in zip(ends, pair, strict=True):
            end[name] = int(value) if one.kind == "int" and value is not None else value
    others = [{**ends[0], name: choice} for name, one in found.items() for choice in (one.choices or ())[1:-1]]
    return [*ends, *others]


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
    """The parameter, completed from the schema; None, and faults, if bounds are missing."""
    bounded = given.low is not None or given.high is not None
    choices = given.choices if given.choices is not None or bounded else _choices(declared)
    if choices is not None:
        return given if given.choices is not None else Parameter(choices=list(choices))
    least, most = _bounds(declared)
    low, high = (given.low if given.low is not None else least), (given.high if given.high is not None else most)
    step = given.step if given.step is not None or given.log else _step(declared)
    numeric = given.kind or _numeric(declared) or "float"
    if numeric == "int":  # the whole numbers between the bounds
        low, high = None if low is None else float(math.ceil(low)), None if high is None else float(math.floor(high))
    if given.step is None and step is not None and low is not None and abs(low) <= step * MAX_STEPS:
        low = math.ceil(low / step - 1e-9) * step  # multiples count from 0
    if lacking := [bound for bound, value in (("low", low), ("high", high)) if value is None]:
        words = " and ".join(lacking)
        reason = f"needs {words}, which the tool's schema does not give; give it here, or fix the argument in args"
        faults.append(Fault(field=f"{AT}.{name}", reason=reason))
        return None
    try:
        return Parameter(low=low, high=high, step=step, log=given.log, kind=numeric)
    except ValidationFailed as error:
        faults.extend(Fault(field=f"{AT}.{name}.{one.field}", reason=one.reason) for one in error.faults)
        return None


def _resolved(declared: object, schema: Schema) -> Schema:
    """The declaration behind local references and beside `null`."""
    here = as_object(declared)
    for _ in range(MAX_HOPS):
        target = here.get("$ref")
        forms = [form for form in cast("Sequence[Any]", here.get("anyOf") or ()) if form != {"type": "null"}]
        if isinstance(target, str) and target.startswith("#/"):
            found: object = schema
            for word in target[2:].split("/"):
                found = as_object(found).get(word)
            here = as_object(found)
        elif len(forms) == 1:
            here = as_object(forms[0])
        else:
            return here
    return {}


def _numeric(declared: Schema) -> Literal["int", "float"] | None:
    return "int" if declared.get("type") == "integer" else "float" if declared.get("type") == "number" else None


def _choices(declared: Schema) -> Sequence[Any] | None:
    """The listed values without repetitions; 1 and true are the same to a search."""
    listed = declared.get("enum")
    if isinstance(listed, list):
        values = [one for one in cast("list[Any]", listed) if one is None or isinstance(one, bool | int | float | str)]
        once = [one for place, one in enumerate(values) if one not in values[:place]]
        return once[:MAX_CHOICES] or None
    return [False, True] if declared.get("type") == "boolean" else None


def _bounds(declared: Schema) -> tuple[float | None, float | None]:
    """The least and the greatest number; an excluded bound is the next number inside."""
    whole = _numeric(declared) == "int"
    above, below = as_number(declared.get("exclusiveMinimum")), as_number(declared.get("exclusiveMaximum"))
    lows, highs = [as_number(declared.get("minimum"))], [as_number(declared.get("maximum"))]
    if above is not None:
        lows.append(math.floor(above) + 1.0 if whole else _inside(above, 1))
    if below is not None:
        highs.append(math.ceil(below) - 1.0 if whole else _inside(below, -1))
    known = [one for one in lows if one is not None], [one for one in highs if one is not None]
    return max(known[0], default=None), min(known[1], default=None)


def _inside(bound: float, sign: int) -> float:
    """The number next to an excluded bound that differs from it in twelve digits."""
    return bound + sign * (abs(bound) * 1e-9 or 1e-9)


def _step(declared: Schema) -> float | None:
    step = as_number(declared.get("multipleOf"))
    return None if step is None or step <= 0 else step


def admit_search(search: SearchProposer, admission: MissionAdmission) -> None:
    """Completes the bounds of the search; a few calls at its corners must fit the tool's schema."""
    row, catalogue = admission.row, admission.catalogue
    name = row["tool_name"] = admission.tool("proposer.tool_name", search.tool_name)
    if search.then is not None:
        row["then"] = admission.tool("proposer.then", search.then)
        if row["then"] == name:
            admission.fault("proposer.then", f"{name} is the searched tool; name another, or omit it")
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
    """A warning for each range of several decades without a `log` setting."""
    said = {name for name, one in given.parameters.items() if one.model_fields_set & {"log", "step"}}
    return [
        f"{name} is searched evenly from {one.low:g} to {one.high:g}, so small values are rarely tried; "
        f"[proposer.parameters] {name} = {{ log = true }} tries each magnitude as often (log = false keeps it)"
        for name, one in found.items()
        if name not in said and one.low is not None and one.high is not None
        if one.step is None and one.low > 0 and one.high / one.low >= WIDE_RANGE
    ]


def _one_by_one(search: SearchProposer, name: str, admission: MissionAdmission) -> list[str]:
    """A warning if the calls of a batch do not run concurrently."""
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
        f"proposer.batch is {search.batch}, but {name} is not known to be safe in parallel, so its calls run "
        f"one after the other; if it is safe, write {say}"
    ]
