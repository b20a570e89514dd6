"""Every control call is in the audit before its effect, without what should not be there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_stage import mission, repeat, stage

from pursuit import Budget
from pursuit.core.audit import MAX_ITEMS, MAX_TEXT, redacted
from pursuit.errors import PursuitError
from pursuit.service.audit import Caller

ALICE = Caller(who="alice", transport="http", client="editor 1.2")


def step() -> dict[str, Any]:
    return {}


@pytest.mark.guarantee("control-calls-are-audited")
async def test_each_verb_leaves_a_line_with_who_asked_and_a_refusal_says_why(tmp_path: Path) -> None:
    async with stage(tmp_path, step) as runtime:
        service = runtime.runner
        made = mission(proposer=repeat("step"), budget=Budget(max_iterations=9), directive="A secret plan")
        name = (await service.start(made, caller=ALICE)).session_id
        await service.iterate(name, caller=ALICE)
        await service.pause(name, reason="lunch", caller=ALICE)
        await service.resume(name, caller=ALICE)
        with pytest.raises(PursuitError):
            await service.resume(name, caller=ALICE)
        await service.extend(name, {"max_iterations": 20}, caller=ALICE)
        await service.complete(name, reason="enough", caller=ALICE)
        with pytest.raises(PursuitError):
            await service.abort(name)
        await service.forget(name, caller=ALICE)
        lines = await service.audited()
        said = [(line["verb"], line["who"], line.get("refused", {}).get("code")) for line in lines]
        assert said == [
            ("start", "alice", None),
            ("iterate", "alice", None),
            ("pause", "alice", None),
            ("resume", "alice", None),
            ("resume", "alice", "not_paused"),
            ("extend", "alice", None),
            ("complete", "alice", None),
            ("abort", "operator", "session_terminal"),
            ("forget", "alice", None),
        ]
        assert {line["session_id"] for line in lines} == {name}
        assert (lines[0]["transport"], lines[0]["client"]) == ("http", "editor 1.2")
        assert lines[2]["arguments"] == {"reason": "lunch"}
        assert await service.audited(name) == lines, "the audit outlives its mission"
        assert await service.audited(limit=2) == lines[-2:]
        assert (await service.verify()).ok
    assert b"A secret plan" not in (tmp_path / "ledger.db").read_bytes()


def test_secrets_and_large_values_are_cut_out() -> None:
    given = {
        "api_key": "k",
        "nested": {"Authorization": "Bearer x", "fine": [1, 2.5, None, True]},
        "password": None,
        "text": "x" * 2_000,
        "many": list(range(1_000)),
        "deep": [[[[[[[["bottom"]]]]]]]],
        "odd": {1: object()},
        "lone": "\ud800",
    }
    kept = redacted(given)
    assert kept["api_key"] == kept["nested"]["Authorization"] == "[redacted]"
    assert kept["nested"]["fine"] == [1, 2.5, None, True]
    assert kept["password"] is None
    assert len(kept["text"]) < MAX_TEXT + 40 and "2000 characters" in kept["text"]
    assert len(kept["many"]) == MAX_ITEMS + 1 and kept["many"][-1] == f"{1_000 - MAX_ITEMS} more"
    assert "bottom" not in str(kept["deep"])
    assert kept["lone"] == "?"


def test_a_count_of_tokens_is_not_a_secret() -> None:
    given = {"max_tokens": 500, "input_tokens": 1.5, "token": 7, "access_tokens": "abc"}
    hidden = "[redacted]"
    assert redacted(given) == {"max_tokens": 500, "input_tokens": 1.5, "token": hidden, "access_tokens": hidden}
