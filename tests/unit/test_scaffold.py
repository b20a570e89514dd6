"""Missions drafted from a template: what is written, and what is refused."""

from __future__ import annotations

import tomllib
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pursuit
from pursuit.config.mission_file import load_mission_file
from pursuit.core.mission import parse_mission
from pursuit.demo.mission_templates import TEMPLATES, MissionDraft


def drafted(directive: str, *, template: str | None = None) -> MissionDraft:
    async def ask() -> MissionDraft:
        return await pursuit.scaffold(directive, template=template)

    return anyio.run(ask)


@pytest.mark.guarantee("drafts-are-missions")
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_a_mission_file_that_lists_at_its_top_what_to_fill_in(name: str, tmp_path: Path) -> None:
    draft = drafted("Make the shop fast", template=name)
    (tmp_path / "mission.toml").write_text(draft.toml, encoding="utf-8")
    loaded = load_mission_file(tmp_path / "mission.toml").mission
    assert (loaded.directive, draft.by) == ("Make the shop fast", f"template {name}")
    top, _, body = draft.toml.partition("\ndirective = ")
    marked = [line for line in body.splitlines() if "# FILL IN: " in line]
    assert [line.split(" = ")[0] for line in marked] == list(draft.fill_in) != []
    assert all(f"#   {key}: {what}" in top for key, what in draft.fill_in.items())
    # No placeholder hides in a line that is not marked.
    values = [line for line in body.splitlines() if not line.startswith("#") and line not in marked]
    assert not [line for line in values if "SERVER" in line or "METRIC" in line or "EVENT" in line]


@pytest.mark.guarantee("drafts-are-missions")
@settings(deadline=None, max_examples=60)
@given(st.text(max_size=200).map(lambda text: f"{text} # FILL IN: {text}"))
def test_whatever_stands_in_a_directive_its_draft_is_read_back_as_the_same_mission(directive: str) -> None:
    draft = drafted(directive)
    assert parse_mission(tomllib.loads(draft.toml)) == draft.mission
    assert draft.mission.directive in directive and draft.mission.directive.strip() == directive.strip()
