"""What a language model is told: the same bytes for the same state, never too long, and nothing leaves its fence."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pursuit.core import events as ev
from pursuit.core.fold import advance
from pursuit.core.mission import ModelProposer
from pursuit.core.state import MissionState
from pursuit.proposers.choice import NoSampler
from pursuit.proposers.language import OfferedTool
from pursuit.proposers.model import LONGEST, AskModel, ToolNames, lack_of_room
from pursuit.proposers.prompt import LEAST, LIMIT, Prompt, PromptParts, build_prompt

LINES = (Path(__file__).parents[1] / "data" / "injections.txt").read_text(encoding="utf-8").splitlines()


def unescaped(line: str) -> str:
    """A line of the corpus with its \\n and \\uXXXX meant."""
    return re.sub(
        r"\\(n|r|\\|u[0-9a-fA-F]{4})",
        lambda found: {"n": "\n", "r": "\r", "\\": "\\"}.get(found[1]) or chr(int(found[1][1:], 16)),
        line,
    )


INJECTIONS = [unescaped(line) for line in LINES]
nasty = (
    st.sampled_from(INJECTIONS)
    | st.text(max_size=80)
    | st.text(st.sampled_from("|<>\n\r\u2028\x85 0aé\U0001d4d8\ud800")).map(str)
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | nasty,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(nasty, inner, max_size=4),
    max_leaves=12,
)
OURS = re.compile(
    r"""(?x)
    (The\ goal:|What\ the\ operator\ says\ about\ how\ to\ pursue\ it:|The\ criteria,\ as\ they\ stand:
    |The\ budget,\ and\ what\ is\ used\ of\ it:|The\ last\ values,\ and\ the\ best\ so\ far:
    |Lessons\ of\ earlier\ missions,\ which\ may\ help:|What\ the\ last\ verdict\ says:
    |Tools\ that\ are\ not\ described\ here,\ because\ there\ is\ no\ room:
    |Your\ last\ answer\ for\ this\ iteration\ was:|It\ was\ refused\ for\ these\ reasons;\ fix\ them:
    |The\ last\ iterations,\ oldest\ first:
    |The\ last\ \d+\ iterations,\ oldest\ first\ \(\d+\ earlier\ ones\ are\ left\ out\):
    |This\ is\ iteration\ \d+\.\ What\ should\ it\ do\?)?"""
)
KINDS = [
    "goal",
    "instructions",
    "criteria",
    "budget",
    "metrics",
    "lessons",
    "verdict",
    "tools",
    "refused",
    "reasons",
    "history",
]
FENCE = re.compile(rf"(<<<|>>>) ([0-9a-f]{{16}}) ({'|'.join(KINDS)})")


def words(**given: Any) -> PromptParts:
    names = ToolNames(["world.step"])
    return PromptParts(**{"name_of": names.shown, "nothing": "do_nothing", **given})


def begun(directive: str = "Reach it", **more: Any) -> MissionState:
    mission: dict[str, Any] = {
        "directive": directive.strip().encode(errors="replace").decode() or "x",
        "criteria": [{"criterion_id": "c", "kind": "metric_threshold", "metric": "m", "op": ">", "target": 1}],
        "budget": {"max_iterations": 100_000},
        "allow_all_tools": True,
        "proposer": {"kind": "model", "model": "openai:x"},
        **more,
    }
    return advance(None, ev.MissionCreated(mission=mission, tools=["world.step"]))


def stored(value: Any) -> Any:
    """The value as the ledger would give it back."""
    return msgspec.json.decode(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


def iterated(
    state: MissionState,
    result: Any,
    *,
    calls: int = 1,
    args: dict[str, Any] | None = None,
    error: str | None = None,
    rationale: str | None = None,
    preview: str | None = None,
    metrics: dict[str, Any] | None = None,
) -> None:
    """One more iteration whose calls all answered this."""
    result, args, error, rationale, preview = stored([result, args or {}, error, rationale, preview])
    index = state.iteration_count
    advance(state, ev.IterationProposed(iteration=index, proposer="model", rationale=rationale))
    for order in range(calls):
        call_id = f"{index}:{order}"
        advance(state, ev.CallIntended(call_id=call_id, iteration=index, tool="world.step", args=args, order=order))
        content = {"content": [{"type": "text", "text": result}]} if isinstance(result, str) else result
        body = {"content": [], "structuredContent": content} if not isinstance(result, str) else content
        outcome = "ok" if error is None else "failed"
        kept = {"preview": preview, "blob": "0"} if preview is not None else {"result": body}
        advance(
            state,
            ev.CallSettled(
                call_id=call_id, iteration=index, outcome=outcome, error=error, metrics=metrics or {}, **kept
            ),
        )
    ended = ev.IterationEnded(
        iteration=index,
        verdict="adjust",
        reason="heuristic_unproductive",
        facts=ev.Facts(),
        rationale=rationale,
        criteria=[ev.CriterionResult(criterion_id="c", status="unmet", evidence=result)],
    )
    advance(state, ended)


def lines_outside(prompt: str) -> list[str]:
    """The lines that are not quoted, after every block was checked to open and close as itself."""
    outside: list[str] = []
    open_block: tuple[str, str] | None = None
    marks: set[str] = set()
    for line in prompt.split("\n"):
        fence = FENCE.fullmatch(line)
        if open_block is None and fence is not None:
            assert fence[1] == "<<<"
            open_block = fence[2], fence[3]
            marks.add(fence[2])
        elif open_block is not None and fence is not None:
            assert (fence[1], fence[2], fence[3]) == (">>>", *open_block)
            open_block = None
        elif open_block is not None:
            assert line.startswith("| "), line
        else:
            outside.append(line)
    assert open_block is None
    assert len(marks) == 1
    return outside


def well_fenced(prompt: Prompt) -> None:
    assert all(OURS.fullmatch(line) for line in lines_outside(prompt.prompt)), lines_outside(prompt.prompt)
    assert len(prompt.prompt.splitlines()) == prompt.prompt.count("\n") + 1, "no line break but ours"
    (mark,) = {fence[2] for line in prompt.prompt.split("\n") if (fence := FENCE.fullmatch(line))}
    quoted = [line for line in prompt.prompt.split("\n") if line.startswith("| ")]
    assert not any(mark in line for line in quoted)


@pytest.mark.guarantee("prompt-fences-hold")
@pytest.mark.parametrize("text", INJECTIONS, ids=range(len(INJECTIONS)))
def test_no_text_of_a_corpus_of_injections_leaves_its_fence(text: str) -> None:
    state = begun(text)
    for error in (None, text):
        iterated(state, text, args={text[:40]: text}, error=error, rationale=text)
        iterated(state, {text[:40]: [text, {"deep": text}]}, rationale=text)
        iterated(state, "", preview=text)
    told = words(instructions=text, reasons=[text], refused={"calls": [text]}, lessons=[text], left_off=[text])
    well_fenced(build_prompt(state, told))


@pytest.mark.guarantee("prompt-fences-hold")
@settings(max_examples=75, deadline=None)
@given(nasty, values, st.dictionaries(nasty, values, max_size=3), st.lists(nasty, max_size=3), st.none() | nasty)
def test_nothing_that_anybody_says_leaves_its_fence(
    text: str, result: Any, args: dict[str, Any], several: list[str], error: str | None
) -> None:
    state = begun(text)
    iterated(state, {"value": result}, args=args, error=error, rationale=text)
    iterated(state, text, args=args, rationale=text)
    well_fenced(build_prompt(state, words(reasons=several, refused=result, lessons=several, instructions=text)))


@pytest.mark.guarantee("prompt-is-deterministic")
@settings(max_examples=60, deadline=None)
@given(nasty, values, st.dictionaries(nasty, values, max_size=3), st.integers(1, 4))
def test_equal_states_give_equal_bytes(text: str, result: Any, args: dict[str, Any], count: int) -> None:
    def told() -> Prompt:
        state = begun(text)
        for _ in range(count):
            iterated(state, {"value": result}, args=args)
        return build_prompt(state, words(reasons=[text]))

    assert told() == told()


def asked() -> str:
    """What the question of a mission with many things in it comes to."""
    state = begun("Reach the far end", criteria=CRITERIA)
    for index in range(4):
        metrics = {f"m{place}": float(place + index) for place in range(40)}
        iterated(
            state, {f"k{place}": index for place in range(30)}, args={f"a{n}": n for n in range(9)}, metrics=metrics
        )
    tools = [
        OfferedTool(name=f"world.t{n}", description="d", schema={"properties": {f"p{m}": {} for m in range(9)}})
        for n in range(30)
    ]
    settings_of = state.mission.proposer
    assert isinstance(settings_of, ModelProposer)
    return AskModel(settings_of, NoSampler(), tools, lessons=["x", "y"], room=1_500).request(state).digest()


CRITERIA = [
    {"criterion_id": f"c{n}", "kind": "metric_threshold", "metric": f"m{n}", "op": ">", "target": 99} for n in range(20)
]


@pytest.mark.guarantee("prompt-is-deterministic")
def test_another_process_asks_the_same_bytes() -> None:
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    source = f"import sys; sys.path[:0] = {paths!r}; import test_prompt; print(test_prompt.asked())"
    environment = {**os.environ, "PYTHONHASHSEED": "7" if os.environ.get("PYTHONHASHSEED") != "7" else "8"}
    told = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == asked()


@pytest.mark.guarantee("prompt-is-bounded")
@settings(max_examples=60, deadline=None)
@given(
    st.integers(LEAST, LIMIT),
    st.sampled_from(["a", "é", "\U0001d4d8", "\u2027", '"\\']),
    st.integers(0, 20_000),
    st.integers(0, 30),
    st.integers(0, 60),
    st.lists(st.text(max_size=2_000), max_size=70),
)
def test_a_prompt_is_never_longer_than_its_limit(
    limit: int, letter: str, length: int, iterations: int, calls: int, several: list[str]
) -> None:
    long = letter * length
    criteria = [
        {"criterion_id": f"{place}", "kind": "event", "event_name": ("x" + long)[:200]} for place in range(1, 65)
    ]
    state = begun(long[:8_000] + "x", criteria=criteria)
    for _ in range(iterations):
        metrics = {f"{letter * 300}{place}": 1.0 for place in range(60)}
        iterated(state, long, calls=calls, args={"k": long, "l": several}, rationale=long, metrics=metrics)
    told = build_prompt(
        state,
        words(
            limit=limit,
            instructions=long[:8_000],
            reasons=several,
            refused=several,
            lessons=several,
            left_off=[f"server__{'t' * 50}{place}" for place in range(500)],
        ),
    )
    assert len(told) <= limit
    well_fenced(told)


@pytest.mark.guarantee("prompt-is-bounded")
def test_a_long_history_is_told_from_its_end() -> None:
    state = begun()
    for index in range(10_000):
        iterated(state, f"result {index}" if index < 9_999 else "x" * 50_000_000)
    told = build_prompt(state, words())
    assert len(told) <= LIMIT
    assert "This is iteration 10000." in told.prompt
    assert "50000000 characters" in told.prompt
    assert "result 9998" in told.prompt
    assert "result 9000" not in told.prompt
    assert "earlier ones are left out" in told.prompt


def test_the_newest_iteration_is_shown_even_if_it_is_huge() -> None:
    state = begun()
    for index in range(5):
        iterated(state, f"result {index} " + "x" * 15_000, calls=40)
    told = build_prompt(state, words())
    assert '"iteration":4' in told.prompt
    assert "of which the last 32 are shown" in told.prompt


tool_names = st.text(st.sampled_from("aZ0_-. /é"), min_size=1, max_size=90)


@pytest.mark.guarantee("tool-names-map-back")
@settings(max_examples=100, deadline=None)
@given(st.lists(tool_names, max_size=12), st.randoms())
def test_every_tool_has_one_name_that_providers_accept(names: list[str], random: Any) -> None:
    known = ToolNames(names, reserved=("do_nothing", "run_script"))
    shown = [known.shown(name) for name in set(names)]
    assert all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,63}", name) for name in shown)
    assert len(set(shown)) == len(shown)
    assert not {"do_nothing", "run_script"} & set(shown)
    assert all(known.meant(known.shown(name)) == name for name in names)
    shuffled = list(names)
    random.shuffle(shuffled)
    again = ToolNames(shuffled, reserved=("do_nothing", "run_script"))
    assert all(again.shown(name) == known.shown(name) for name in names)


def test_names_that_would_be_the_same_are_told_apart() -> None:
    names = ["a.b", "a__b", "a/b", "a_b", "do.nothing", f"s.{'x' * 100}", f"s.{'x' * 101}", "9.lives", "do_nothing"]
    known = ToolNames(names, reserved=["do_nothing"])
    assert known.shown("a_b").startswith("a_b_"), "a/b is written like it"
    assert len({known.shown(name) for name in names}) == len(names)
    assert len(known.shown(f"s.{'x' * 100}")) == LONGEST
    assert known.shown("9.lives") == "t_9__lives"
    assert known.meant("nobody") is None


def test_what_a_prompt_says_of_criteria_metrics_and_lessons() -> None:
    state = begun(
        criteria=[
            {
                "criterion_id": "c",
                "kind": "metric_threshold",
                "metric": "m",
                "op": ">",
                "target": 9,
                "source": "world.step",
            }
        ]
    )
    for index, value in enumerate((5.0, 3.0)):
        advance(state, ev.IterationProposed(iteration=index, proposer="model"))
        advance(state, ev.CallIntended(call_id=f"{index}", iteration=index, tool="world.step", args={}, order=0))
        advance(state, ev.CallSettled(call_id=f"{index}", iteration=index, outcome="ok", metrics={"m": value, "n": 1}))
        advance(state, ev.IterationEnded(iteration=index, verdict="continue", reason="in_progress", facts=ev.Facts()))
    told = build_prompt(state, words(lessons=["Do not hurry."])).prompt
    assert '| {"id":"c","wanted":"m > 9","source":"world.step","status":"not evaluated yet"}' in told
    assert '| {"metric":"m","last":3.0,"best":5.0}\n| {"metric":"n","last":1}' in told
    assert '| "Do not hurry."' in told
    assert '| {"max_iterations":{"cap":100000,"used":2}}' in told


def test_a_goal_of_full_length_is_told_whole_wherever_its_lines_break() -> None:
    goal = "Do the following, exactly:\n" + "never touch prod; " * 450
    told = build_prompt(begun(goal[:8_192]), words()).prompt
    assert told.count("never touch prod;") == goal[:8_192].count("never touch prod;")
    assert "(cut here)" not in told


def test_a_goal_that_is_too_long_in_bytes_is_cut_within_its_line() -> None:
    told = build_prompt(begun("Do it:\n" + "é" * 8_000), words(limit=LEAST)).prompt
    assert "éééé" in told and "(cut here)" in told


def lines_of(prompt: Prompt, kind: str) -> list[str]:
    """The quoted lines of a block, without the quote."""
    lines = prompt.prompt.split("\n")
    (mark,) = {fence[2] for line in lines if (fence := FENCE.fullmatch(line))}
    return [line[2:] for line in lines[lines.index(f"<<< {mark} {kind}") + 1 : lines.index(f">>> {mark} {kind}")]]


def wanting(texts: list[str], **more: Any) -> list[dict[str, Any]]:
    """Criteria whose descriptions are these."""
    kind = {"kind": "predicate", **more}
    return [{"criterion_id": f"c{place}", **kind, "expression": text} for place, text in enumerate(texts)]


sentences = st.builds(
    lambda word, count: f"{word} " * count + "end", st.sampled_from(["go", "я", "é\U0001d4d8"]), st.integers(0, 2_000)
)
expressions = st.builds(lambda count: f"obs['metrics']['m'] > {'1' * 3}" + " or 1 > 2" * count, st.integers(0, 200))


@pytest.mark.guarantee("operators-words-are-whole")
@settings(max_examples=80, deadline=None)
@given(
    st.integers(LEAST, 2 * LIMIT),
    sentences,
    st.none() | sentences,
    st.lists(expressions, min_size=1, max_size=64),
    st.integers(0, 3),
    st.lists(st.text(max_size=400), max_size=12),
)
def test_goal_instructions_and_every_criterion_are_whole_wherever_they_fit(
    limit: int, goal: str, instructions: str | None, wanted: list[str], iterations: int, several: list[str]
) -> None:
    proposer = {"kind": "model", "model": "openai:x", "instructions": instructions}
    state = begun(goal[:8_000], criteria=wanting(wanted), proposer=proposer)
    for _ in range(iterations):
        iterated(state, {"value": several}, calls=5, rationale=goal, metrics={"m": 1.0})
    told = build_prompt(
        state, words(limit=limit, instructions=instructions, lessons=several, reasons=several, refused=several)
    )
    assert len(told) <= limit
    well_fenced(told)
    missing = lack_of_room(state.mission, limit)
    own = sum(len(one.encode()) for one in (state.mission.directive, instructions or "", *wanted))
    if own + 64 * len(wanted) + 6_000 <= limit - limit // 8:
        assert not missing, "so much always fits"
    if not missing:
        assert "\n".join(lines_of(told, "goal")) == state.mission.directive
        assert not instructions or "\n".join(lines_of(told, "instructions")) == instructions
        assert [json.loads(line)["wanted"] for line in lines_of(told, "criteria")] == wanted
    if iterations:
        assert f'"iteration":{iterations - 1}' in told.prompt, "the newest results always have their place"
    enough = lack_of_room(state.mission, limit + missing)
    assert enough == 0, "what is said to be missing is enough"


def test_words_that_once_were_cut_though_there_was_room_are_whole() -> None:
    rules = "".join(f"Rule {place:04d}: do it carefully always.\n" for place in range(220))[:7_980]
    metrics = [
        {
            "criterion_id": f"c{n:02d}",
            "kind": "metric_threshold",
            "metric": f"quality_of_the_subsystem_{n:02d}",
            "op": ">",
            "target": 1,
        }
        for n in range(64)
    ]
    state = begun("я" * 7_000 + " КОНЕЦ", criteria=metrics)
    told = build_prompt(state, words(instructions=rules))
    assert "(cut here)" not in told.prompt
    assert "КОНЕЦ" in told.prompt
    assert "\n".join(lines_of(told, "instructions")) == rules
    assert len(lines_of(told, "criteria")) == 64
    (long,) = lines_of(build_prompt(begun(criteria=wanting(["1 > 0" + " or 2 > 1" * 400])), words()), "criteria")
    assert json.loads(long)["wanted"].endswith("2 > 1")


def test_of_criteria_that_do_not_fit_the_open_ones_come_first() -> None:
    state = begun(criteria=wanting([f"obs['metrics']['m{place}'] > 1{' or 1 > 2' * 20}" for place in range(64)]))
    advance(state, ev.IterationProposed(iteration=0, proposer="model"))
    results = [ev.CriterionResult(criterion_id=f"c{n}", status="met" if n < 60 else "unmet") for n in range(64)]
    advance(
        state,
        ev.IterationEnded(
            iteration=0, verdict="continue", reason="in_progress", facts=ev.Facts(), criteria=results, rationale="x"
        ),
    )
    told = build_prompt(state, words(limit=LEAST))
    assert len(told) <= LEAST
    rows = [json.loads(line) for line in lines_of(told, "criteria") if line.startswith("{")]
    assert [row["id"] for row in rows[:4]] == ["c60", "c61", "c62", "c63"]
    assert all(row["status"] == "met" for row in rows[4:])
    assert re.fullmatch(r"\(\d+ more\)", lines_of(told, "criteria")[-1])


def test_evidence_takes_no_room_from_criteria() -> None:
    state = begun(criteria=wanting(["obs['metrics']['m'] > 1"] * 40))
    advance(state, ev.IterationProposed(iteration=0, proposer="model"))
    huge = [ev.CriterionResult(criterion_id=f"c{n}", status="unmet", evidence={"x": "y" * 9_000}) for n in range(40)]
    ended = ev.IterationEnded(iteration=0, verdict="continue", reason="in_progress", facts=ev.Facts(), criteria=huge)
    advance(state, ended)
    rows = [json.loads(line) for line in lines_of(build_prompt(state, words()), "criteria")]
    assert len(rows) == 40
    assert all("9000 characters" in row["evidence"]["x"] for row in rows)
