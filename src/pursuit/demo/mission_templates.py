"""The templates of `pursuit scaffold`: a mission file for a goal in words, which a person completes.

The goal becomes the directive unchanged; nothing interprets it. A draft is valid for the parser of mission files.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from pursuit.config.files import as_toml
from pursuit.core.base_model import nearest
from pursuit.core.criteria import describe
from pursuit.core.mission import Mission, parse_mission
from pursuit.errors import Fault, ValidationFailed, advice

TEMPLATES = ("metric", "log", "tests", "event", "tool", "search")
"""The files in `drafts`; the first one is the default."""
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


_FILL_IN = re.compile(r"^(?P<key>\w+) = .*  # FILL IN: (?P<what>.*)$", re.MULTILINE)


def template_text(name: str) -> tuple[str, str]:
    """The summary of a template, and the mission without its directive.

    Each line that ends in `# FILL IN: …` has a placeholder or an example value.
    """
    text = (files("pursuit.demo") / "drafts" / f"{name}.toml").read_text(encoding="utf-8")
    commands = {"<tools>": advice("pursuit tools"), "<iterate>": advice("pursuit iterate {}", "ID")}
    for mark, command in commands.items():
        text = text.replace(mark, command)
    summary, _, body = text.removeprefix("# ").partition("\n")
    return summary, body


async def scaffold(directive: str, *, template: str | None = None) -> MissionDraft:
    """Drafts a mission for a directive from a template, by default `metric`; nothing is started.

    Raises `ValidationFailed` if there is no such template, or if the directive is wrong.
    """
    return draft(directive, template)


def draft(directive: str, name: str | None = None) -> MissionDraft:
    """The template of this name, or the default one, with the goal as its directive; raises as `scaffold` does."""
    rest = {"budget": {"max_iterations": 1}, "allow_all_tools": True, "criteria": [_EVENT]}
    directive = parse_mission({"directive": directive, **rest}).directive
    name = TEMPLATES[0] if name is None else name
    if name not in TEMPLATES:
        reason = f"unknown template {name!r}; known: {', '.join(TEMPLATES)}{nearest(name, TEMPLATES)}"
        raise ValidationFailed([Fault(field="template", reason=reason)], "nothing was drafted")
    summary, body = template_text(name)
    fill_in: dict[str, str] = {found["key"]: found["what"] for found in _FILL_IN.finditer(body)}
    head = [
        f"# Template {name}: {summary}.",
        f"# Fill in the lines that are marked FILL IN, then: {advice('pursuit run {}', 'THIS-FILE')}",
        *(f"#   {key}: {what}" for key, what in fill_in.items()),
    ]
    text = "\n".join(head) + f"\n{as_toml({'directive': directive})}\n{body}"
    return MissionDraft(mission=parse_mission(tomllib.loads(text)), toml=text, by=f"template {name}", fill_in=fill_in)
