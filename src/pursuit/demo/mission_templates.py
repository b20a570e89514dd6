"""The templates of `pursuit scaffold`: a mission file for a goal in words, which a person completes.

The goal becomes the directive unchanged; nothing interprets it. A draft is valid for the parser of mission files.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pursuit.config.files import as_toml
from pursuit.core.base_model import nearest
from pursuit.core.criteria import describe
from pursuit.core.mission import Mission, parse_mission
from pursuit.errors import Fault, ValidationFailed, advice

DEFAULT_TEMPLATE = "metric"
_BUDGET = {"max_iterations": 50, "max_wall_clock_seconds": 3600}
_EVENT = {"criterion_id": "x", "kind": "event", "event_name": "x"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MissionDraft:
    """A mission that has not started: `toml` is its file."""

    mission: Mission
    toml: str
    by: str
    fill_in: Mapping[str, str]
    """The keys that still have a placeholder, each with a description."""

    def as_json(self) -> dict[str, Any]:
        return {
            "by": self.by,
            "mission": tomllib.loads(self.toml),
            "criteria": [
                {"criterion_id": one.criterion_id, "kind": one.kind, "description": describe(one)}
                for one in self.mission.criteria
            ],
            "fill_in": dict(self.fill_in),
            "toml": self.toml,
        }


@dataclass(frozen=True, slots=True)
class MissionTemplate:
    """A mission without its directive. Each line that ends in `# FILL IN: …` has a placeholder or an example value."""

    summary: str
    body: str


_FILL_IN = re.compile(r"^(?P<key>\w+) = .*  # FILL IN: (?P<what>.*)$", re.MULTILINE)
_ONE_TOOL = f'tool_allowlist = ["SERVER.TOOL"]  # FILL IN: the tools it may call ({advice("pursuit tools")} lists them)'
_ANY_TOOL = "# It is better to name the tools that the mission may call: tool_allowlist = [...]\nallow_all_tools = true"
_PROPOSER = f"""\
# A client proposes the calls ({advice("pursuit serve")}, {advice("pursuit iterate {}", "ID")}), or a language model:
# proposer = "anthropic:claude-haiku-4-5\""""
_CAPS = f"[budget]\n{as_toml(_BUDGET)}"
_HEAD_ONE_TOOL = f"{_ONE_TOOL}\n\n{_PROPOSER}\n\n{_CAPS}"
_HEAD_ANY_TOOL = f"{_ANY_TOOL}\n\n{_PROPOSER}\n\n{_CAPS}"
_THRESHOLD = """\
[[criteria]]
criterion_id = "goal"
kind = "metric_threshold"
metric = "METRIC"  # FILL IN: the name under which the tool reports the number
op = "<="  # FILL IN: one of < <= > >= ==
target = 0  # FILL IN: the number to reach
source = "SERVER.TOOL"  # FILL IN: the tool that reports it; only this tool counts
"""

TEMPLATES: Mapping[str, MissionTemplate] = {
    "metric": MissionTemplate(
        "a number that a tool reports passes a threshold",
        f"""\
{_HEAD_ONE_TOOL}
{_THRESHOLD}
# If the tool answers with text, this reads the number out of it:
# [[observe]]
# tool = "SERVER.TOOL"
# metric = "METRIC"
# regex = 'accuracy: ([0-9.eE+-]+|(?i:nan|inf))'
""",
    ),
    "log": MissionTemplate(
        "a number that a command prints, such as the end of a training log, passes a threshold",
        f"""\
{_HEAD_ANY_TOOL}
[[criteria]]
criterion_id = "goal"
kind = "check"
command = ["tail", "-n", "1", "train.log"]  # FILL IN: a command that prints the number; paths start at this file

[criteria.expect]
predicate = 'float(result["stdout"].split()[-1]) <= 0.1'  # FILL IN: the comparison; here the last word is the number
""",
    ),
    "tests": MissionTemplate(
        "a command succeeds, such as the tests of a project",
        f"""\
{_HEAD_ANY_TOOL}
[[criteria]]
criterion_id = "tests-pass"
kind = "check"
command = ["pytest", "-q"]  # FILL IN: the command that must exit with code 0; it starts in the folder of this file
""",
    ),
    "event": MissionTemplate(
        "wait until a tool reports an event, with the same call every 30 seconds",
        f"""\
{_ONE_TOOL}
pace = 30

{_CAPS}
[proposer]
kind = "repeat"
tool_name = "SERVER.TOOL"  # FILL IN: the tool to call again and again
args = {{}}  # FILL IN: its arguments

[[criteria]]
criterion_id = "goal"
kind = "event"
event_name = "EVENT"  # FILL IN: the name under which the tool reports the event
""",
    ),
    "tool": MissionTemplate(
        "a tool succeeds a number of times",
        f"""\
{_HEAD_ONE_TOOL}
[[criteria]]
criterion_id = "goal"
kind = "tool_call_succeeded"
tool_name = "SERVER.TOOL"  # FILL IN: the tool that must succeed
min_count = 1
""",
    ),
    "search": MissionTemplate(
        "optimise the arguments of a tool until a number passes a threshold, without a model",
        f"""\
{_ONE_TOOL}

{_CAPS}
[proposer]
kind = "search"
tool_name = "SERVER.TOOL"  # FILL IN: the tool whose arguments are searched
seed = 1

[proposer.parameters]
ARGUMENT = {{ low = 0, high = 1 }}  # FILL IN: one line for each argument, with its range

{_THRESHOLD}""",
    ),
}


async def scaffold(directive: str, *, template: str | None = None) -> MissionDraft:
    """Drafts a mission for a directive from a template, by default `metric`; nothing is started.

    Raises `ValidationFailed` if there is no such template, or if the directive is wrong.
    """
    return draft(directive, template)


def draft(directive: str, name: str | None = None) -> MissionDraft:
    """The template of this name, or the default one, with the goal as its directive; raises as `scaffold` does."""
    budget = {"budget": _BUDGET, "allow_all_tools": True, "criteria": [_EVENT]}
    directive = parse_mission({"directive": directive, **budget}).directive
    name = DEFAULT_TEMPLATE if name is None else name
    template = TEMPLATES.get(name)
    if template is None:
        reason = f"unknown template {name!r}; known: {', '.join(TEMPLATES)}{nearest(name, TEMPLATES)}"
        raise ValidationFailed([Fault(field="template", reason=reason)], "nothing was drafted")
    fill_in: dict[str, str] = {found["key"]: found["what"] for found in _FILL_IN.finditer(template.body)}
    head = [
        f"# Template {name}: {template.summary}.",
        f"# Fill in the lines that are marked FILL IN, then: {advice('pursuit run {}', 'THIS-FILE')}",
        *(f"#   {key}: {what}" for key, what in fill_in.items()),
    ]
    text = "\n".join(head) + f"\n{as_toml({'directive': directive})}\n{template.body}"
    return MissionDraft(mission=parse_mission(tomllib.loads(text)), toml=text, by=f"template {name}", fill_in=fill_in)
