"""Whether a search can be made here: every searched argument has bounds, its own or those of the tool's JSON Schema.

Owns: reading ranges and choices off a schema. Knows no method of searching.
Invariant: the parameters that it gives are whole, or there is a fault that says which argument lacks what.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from pursuit.core.base_model import Broken, nearest
from pursuit.core.search import MAX_CHOICES, MAX_PARAMETERS, Parameter, SearchProposer, broken_range
from pursuit.errors import Fault

Schema = Mapping[str, Any]
AT = "proposer.parameters"
MOST_STEPS = 32
LARGEST_INT = 2**53 - 1
LARGEST = sys.float_info.max


def searched(search: SearchProposer, schema: Schema) -> tuple[dict[str, Parameter], list[Fault]]:
    """The parameters with their bounds; without any, every argument that is not fixed and can be searched."""
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
        if given is None and _left_out(declared):
            continue
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
    """The arguments that the tool cannot do without and that nobody gives."""
    named = {fault.field.removeprefix(f"{AT}.").partition(".")[0] for fault in faults}
    return [
        Fault(field="proposer.args", reason=f"the tool needs {name!r}: fix it here, or search it in parameters")
        for name in cast("Sequence[str]", schema.get("required") or ())
        if name not in found and name not in search.args and name not in named
    ]


def _left_out(declared: Schema) -> bool:
    """Whether an argument that nobody named is the tool's own affair: it is no number and has no listed values."""
    return _numeric(declared) is None and _choices(declared) is None


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
    match declared.get("type"):
        case "integer":
            return "int"
        case "number":
            return "float"
        case _:
            return None


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
    low, high = _float(declared.get("minimum")), _float(declared.get("maximum"))
    above, below = _float(declared.get("exclusiveMinimum")), _float(declared.get("exclusiveMaximum"))
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
    step = _float(declared.get("multipleOf"))
    return None if step is None or step <= 0 else step


def _float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
