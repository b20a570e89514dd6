"""The input model of the proposer `search`: the arguments of a tool to search, their bounds, and the aim.

Invariant: a range is never empty; omitted bounds are those of the tool's schema.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field

from pursuit.core.base_model import Args, Broken, Flag, InputModel, Name, Number, Whole
from pursuit.core.proposing import ProposerFacts, ProposerSettings, StoredObjective

MAX_PARAMETERS = 64
MAX_CHOICES = 1_000
MAX_BATCH = 256
MAX_STEPS = 2**54
LARGEST = 1e300
MAX_INT = 2**53 - 1
"""Up to here floating point numbers represent each int exactly."""

Sampler = Literal["auto", "surrogate", "cmaes", "tpe", "random"]


def _scalar(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"must be JSON; {value} is not a JSON number")
    if value is not None and not isinstance(value, bool | int | float | str):
        raise ValueError("must be a string, a number, true, false or null")
    return value


Scalar = Annotated[Any, AfterValidator(_scalar)]


Bound = Annotated[Number, Field(ge=-LARGEST, le=LARGEST)]


class Parameter(InputModel):
    """One searched argument: a range of numbers, or choices. Omitted values come from the tool's schema."""

    low: Bound | None = None
    high: Bound | None = None
    step: Annotated[Number, Field(gt=0)] | None = None
    log: Flag = False
    kind: Literal["int", "float"] | None = None
    choices: Annotated[list[Scalar], Field(min_length=1, max_length=MAX_CHOICES)] | None = None

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        yield from _broken_range(given) if given.get("choices") is None else _broken_choices(given)


def _broken_choices(given: Mapping[str, Any]) -> Iterable[Broken]:
    others = [name for name in ("low", "high", "step", "log", "kind") if given.get(name) not in (None, False)]
    if others:
        yield Broken(f"choices cannot be combined with {', '.join(others)}", "choices")
    choices = given["choices"]
    listed = cast("list[Any]", choices)[:MAX_CHOICES] if isinstance(choices, list) else []
    if any(choice in listed[:place] for place, choice in enumerate(listed)):
        yield Broken("each choice must be given once; 1, 1.0 and true are the same", "choices")


def _broken_range(given: Mapping[str, Any]) -> Iterable[Broken]:
    """Faults between the bounds of a range; values of a wrong type are reported by their fields."""
    low, high, step = (as_number(given.get(name)) for name in ("low", "high", "step"))
    if low is not None and high is not None:
        if low >= high:
            yield Broken(f"low ({low:g}) must be below high ({high:g}); put a fixed value in args", "low")
        elif step is not None and not step <= high - low <= step * MAX_STEPS:
            yield Broken(f"step ({step:g}) must fit between low and high, at most {MAX_STEPS} times", "step")
    if given.get("log") is True:
        if low is not None and low <= 0:
            yield Broken(f"log needs a low above 0, not {low:g}", "low")
        if step is not None:
            yield Broken("step and log cannot be combined", "step")
    if given.get("kind") == "int":
        for name, value in (("low", low), ("high", high), ("step", step)):
            if value is not None and (value != math.floor(value) or abs(value) > MAX_INT):
                yield Broken(f"must be whole and within {MAX_INT} of 0 for an int, not {value:g}", name)


def as_number(value: object) -> float | None:
    """The value if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _noise(value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    number = as_number(value)
    if number is None or number < 0:
        raise ValueError("must be true, false or a standard deviation of at least 0")
    return number


def _one_limit(value: object) -> object:
    if isinstance(value, list):
        raise ValueError("must be the id of one limit, not a list")
    return value


def first_design(parameters: Mapping[str, Parameter]) -> int:
    """The number of trials that cover the whole space once, before models of the results choose the next ones."""
    columns = sum(1 if one.choices is None else len(one.choices) for one in parameters.values())
    return len(parameters) + columns + 2


class SearchProposer(ProposerSettings):
    """Arguments of one tool, searched towards the mission's metric criteria without a model."""

    kind: Literal["search"] = "search"
    tool_name: Annotated[Name, Field(validation_alias=AliasChoices("tool_name", "tool"))]
    parameters: Annotated[Mapping[Name, Parameter], Field(max_length=MAX_PARAMETERS)] = Field(
        default_factory=dict[str, Parameter]
    )
    args: Args = Field(default_factory=dict)
    objective: Name | None = None
    direction: Literal["minimize", "maximize"] | None = None
    constraints: Annotated[list[Name], Field(max_length=64)] | None = None
    gives_way: Annotated[Name | None, BeforeValidator(_one_limit)] = None
    """The first limit to give up if no trial keeps all limits."""
    batch: Annotated[Whole, Field(ge=1, le=MAX_BATCH)] = 1
    seed: Annotated[Whole, Field(ge=0)] = 0
    sampler: Sampler = "auto"
    noise: Annotated[bool | float | None, BeforeValidator(_noise)] = None
    """True if the same arguments give different results, or their standard deviation; None: the search detects it."""
    trials: Annotated[Whole, Field(ge=1)] | None = None
    seconds: Annotated[Number, Field(gt=0)] | None = None
    """Seconds of wall clock from the first trial within which `then` is called."""
    then: Name | None = None
    """The tool that is called once with the successful arguments or, after all trials, with the best."""

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        args, parameters = given.get("args"), given.get("parameters")
        if isinstance(args, Mapping) and isinstance(parameters, Mapping):
            both = [str(name) for name in cast("Mapping[Any, Any]", parameters) if name in args]
            if both:
                yield Broken(f"both fixed in args and searched: {', '.join(sorted(both))}", "parameters")
        if given.get("direction") is not None and given.get("objective") is None:
            yield Broken("needs objective, the metric that it applies to", "direction")
        if given.get("tool") is not None and given.get("tool_name") is not None:
            yield Broken("is an alias of tool_name; give only one", "tool")

    def facts(self) -> ProposerFacts:
        """A search explores towards an objective; equal failures end it after its first design."""
        return ProposerFacts(
            authored=True,
            stagnates=False,
            later_tools=() if self.then is None else (self.then,),
            failures="calls",
            patience=first_design(self.parameters),
            objective=StoredObjective(
                tool=self.tool_name,
                metric=self.objective,
                direction=self.direction,
                constraints=self.constraints,
                noise=None if self.noise is None else bool(self.noise),
            ),
        )

    @classmethod
    def describe_file(cls, definitions: dict[str, Any]) -> None:
        own = definitions[cls.__name__]
        own["properties"]["tool"] = own["properties"]["tool_name"]
        own["required"] = ["kind"]

    @classmethod
    def upcast(cls, stored: Mapping[str, Any]) -> Mapping[str, Any]:
        """A search no longer has `then_again`, nor a list in `gives_way`."""
        if "then_again" not in stored:
            return stored
        kept = {name: value for name, value in stored.items() if name != "then_again"}
        if isinstance(several := kept.get("gives_way"), list):
            kept["gives_way"] = next(iter(cast("list[str]", several)), None)
        return kept
