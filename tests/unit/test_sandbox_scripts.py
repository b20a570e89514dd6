"""Scripts: driven call by call, the same way every time, and resumed by replay."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import psutil
import pytest

from pursuit.sandbox.sandbox import Sandbox
from pursuit.sandbox.values import (
    KNOWN_DUNDERS,
    MODULES,
    Calls,
    Finished,
    ScriptCall,
    ScriptFailure,
    ScriptSpec,
    Step,
    missing_modules,
    unassigned_dunders,
)

TOOLS: Mapping[str, Mapping[str, list[str]]] = {
    "beam": {"evaluate": ["h", "l", "t"], "read": [], "set-load": ["from", "max value"], "class": ["x"]},
    "my-server": {"2nd": ["x"], "a-b": ["x"], "a_b": ["x"]},
    "state": {"get": []},
}
NOW = datetime.datetime(2026, 3, 4, 5, 6, 7, tzinfo=datetime.UTC)
Answer = Callable[[ScriptCall], Any]


def spec(source: str, **state: Any) -> ScriptSpec:
    given = {"iteration": 3, "metrics": {"cost": 2.5}, "best": None, "results": [], "memory": {"n": 1}, **state}
    return ScriptSpec(source=source, tools=TOOLS, state=given, seed=7, now=NOW)


def echo(call: ScriptCall) -> Any:
    return {"index": call.index, **call.arguments}


async def driven(sandbox: Sandbox, run: ScriptSpec, answer: Answer = echo) -> list[Step]:
    async with sandbox.script(run) as script:
        steps: list[Step] = [await script.start()]
        while isinstance(last := steps[-1], Calls):
            steps.append(await script.answer({call.index: answer(call) for call in last.calls}))
        return steps


def drive(source: str, answer: Answer = echo, **state: Any) -> list[Step]:
    async def main() -> list[Step]:
        async with Sandbox() as sandbox:
            return await driven(sandbox, spec(source, **state), answer)

    return anyio.run(main)


def calls(steps: list[Step]) -> list[list[tuple[str, dict[str, Any]]]]:
    return [[(call.tool, call.arguments) for call in step.calls] for step in steps if isinstance(step, Calls)]


def end(steps: list[Step]) -> Finished:
    assert isinstance(steps[-1], Finished)
    return steps[-1]


def memory(source: str, answer: Answer = echo, **state: Any) -> dict[str, Any]:
    finished = end(drive(source, answer, **state))
    assert finished.error is None
    return finished.memory


def test_a_call_stops_the_script_and_its_answer_goes_on() -> None:
    steps = drive("r = beam.evaluate(h=0.2, l=3)\nstate.memory['r'] = r['index'] + r['h']")
    assert calls(steps) == [[("beam.evaluate", {"h": 0.2, "l": 3})]]
    assert end(steps) == Finished(memory={"n": 1, "r": 0.2})


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("beam.evaluate(1, 2, t=3)", ("beam.evaluate", {"h": 1, "l": 2, "t": 3})),
        ("beam.evaluate(1, extra=(1, 2))", ("beam.evaluate", {"h": 1, "extra": [1, 2]})),
        ("beam.set_load(from_=1, max_value=2)", ("beam.set-load", {"from": 1, "max value": 2})),
        ("beam.class_(1)", ("beam.class", {"x": 1})),
        ("call('my-server.2nd', {'x': 1})", ("my-server.2nd", {"x": 1})),
        ("call('my-server.a-b', {'y': 1})", ("my-server.a-b", {"y": 1})),
        ("call(name='beam.read')", ("beam.read", {})),
        ("call('state.get', {})", ("state.get", {})),
        ("f = beam.evaluate\nf(5)", ("beam.evaluate", {"h": 5})),
        ("f = call\nf('beam.read', {})", ("beam.read", {})),
        ("await beam.evaluate(1)", ("beam.evaluate", {"h": 1})),
        ("await call('beam.read', {'a': None})", ("beam.read", {"a": None})),
        ("eval('beam.evaluate(2)')", ("beam.evaluate", {"h": 2})),
    ],
)
def test_every_spelling_of_a_call_names_its_tool(source: str, expected: tuple[str, dict[str, Any]]) -> None:
    steps = drive(source)
    assert end(steps).error is None
    assert calls(steps) == [[expected]]


@pytest.mark.parametrize(
    ("source", "kind", "hint"),
    [
        ("beam.evalute(1)", "AttributeError", "did you mean 'evaluate'"),
        ("beam.evalute", "AttributeError", "did you mean 'evaluate'"),
        ("bean.read()", "NameError", "did you mean 'beam'"),
        ("cal('x')", "NameError", "did you mean 'call'"),
        ("call('beam.evalute', {})", "LookupError", "did you mean 'beam.evaluate'"),
        ("my_server.a_b(1)", "AttributeError", "no tool 'a_b'"),
        ("beam.evaluate(1, 2, 3, 4)", "TypeError", "takes 3 positional"),
        ("beam.evaluate(1, h=2)", "TypeError", "two values"),
        ("beam.evaluate({1, 2})", "TypeError", "must be JSON"),
        ("beam.evaluate(float('nan'))", "TypeError", "must be JSON"),
        ("call('beam.read', 3)", "TypeError", "write call("),
        ("call()", "TypeError", "write call("),
        ("mission.observe('', 1)", "ValueError", "1 to 256"),
        ("mission.observe('a', 'b')", "ValueError", "finite number"),
        ("mission.observe('a', float('inf'))", "ValueError", "inf"),
        ("mission.observe('a')", "TypeError", "mission.observe(name, value)"),
        ("mission.event('x' * 257)", "ValueError", "1 to 256"),
        ("mission.event('x', a={1})", "ValueError", "JSON"),
        ("mission.evnt('x')", "AttributeError", "observe or event"),
        ("list(map(beam.evaluate, [1]))", "NotImplementedError", "comprehension"),
    ],
)
def test_a_mistake_is_an_exception_in_the_script_with_a_hint_and_a_line(source: str, kind: str, hint: str) -> None:
    steps = drive(f"x = 1\n{source}")
    assert calls(steps) == []
    error = end(steps).error or ""
    assert error.startswith(f"line 2: {kind}: ")
    assert hint in error
    caught = memory(f"try:\n  {source}\nexcept {kind} as e:\n  state.memory['e'] = 'caught'")
    assert caught["e"] == "caught"


def test_a_failed_call_is_a_runtime_error_where_it_was_made() -> None:
    def failing(call: ScriptCall) -> Any:
        return ScriptFailure(message="no luck") if call.index == 0 else 5

    for wait in ("", "await "):
        body = f"try:\n  {wait}beam.read()\nexcept RuntimeError as e:\n  state.memory['e'] = str(e)\n"
        assert memory(body + f"state.memory['v'] = {wait}beam.read()", failing) == {"n": 1, "e": "no luck", "v": 5}
    assert end(drive("x = 1\nbeam.read()", failing)).error == "line 2: RuntimeError: no luck"


GATHERS = {
    "arguments": "r = await asyncio.gather(beam.evaluate(1), beam.evaluate(2))",
    "comprehension": "r = await asyncio.gather(*[beam.evaluate(i) for i in (1, 2)])",
    "generator": "r = await asyncio.gather(*(beam.evaluate(i) for i in (1, 2)))",
    "list": "ts = []\nfor i in (1, 2):\n  ts.append(beam.evaluate(i))\nr = await asyncio.gather(*ts)",
    "loop": "ts = [beam.evaluate(i) for i in (1, 2)]\nr = []\nfor t in ts:\n  r.append(await t)",
    "names": "a, b = beam.evaluate(1), beam.evaluate(2)\nr = [await a, await b]",
    "dict": "d = {}\nfor i in (1, 2):\n  d[i] = beam.evaluate(i)\nr = [await t for k, t in d.items()]",
    "branches": "x = beam.evaluate(1) if True else beam.evaluate(3)\n"
    "r = [await t for t in [x, (y := beam.evaluate(2))]]",
    "places": "r = [0, 0]\nfor i, t in enumerate([beam.evaluate(1), beam.evaluate(2)]):\n  r[i] = await t",
    "coroutines": "async def w(i):\n  return await beam.evaluate(i)\nr = await asyncio.gather(w(1), w(2))",
    "function": "def w(i):\n  return beam.evaluate(i)\nr = await asyncio.gather(*[w(i) for i in (1, 2)])",
    "import": "from asyncio import gather\nr = await gather(beam.evaluate(1), beam.evaluate(2))",
    "main": "async def main():\n  return await asyncio.gather(beam.evaluate(1), beam.evaluate(2))\n"
    "r = asyncio.run(main())",
    "call": "r = await asyncio.gather(call('beam.evaluate', {'h': 1}), call('beam.evaluate', {'h': 2}))",
    "é": "é = 'é'; r = await asyncio.gather(beam.evaluate(1), beam.evaluate(2))",
}


@pytest.mark.parametrize("shape", GATHERS)
def test_gathered_calls_surface_together_and_each_gets_its_own_answer(shape: str) -> None:
    steps = drive(f"import asyncio\n{GATHERS[shape]}\nstate.memory['r'] = r".replace("\n", "\r\n"))
    assert end(steps).error is None
    assert calls(steps) == [[("beam.evaluate", {"h": 1}), ("beam.evaluate", {"h": 2})]]
    assert end(steps).memory["r"] == [{"index": 0, "h": 1}, {"index": 1, "h": 2}]


def test_plain_calls_beside_awaited_ones_are_answered_at_once() -> None:
    source = "r = await beam.evaluate(beam.read()['index'])\ns = beam.read()['index']\nstate.memory['r'] = [r, s]"
    steps = drive(source)
    assert calls(steps) == [[("beam.read", {})], [("beam.evaluate", {"h": 0})], [("beam.read", {})]]
    assert end(steps).memory["r"] == [{"index": 1, "h": 0}, 2]


def test_a_call_that_is_never_awaited_is_not_made() -> None:
    finished = end(drive("t = beam.read()\nif False:\n  await t"))
    assert finished.error is None
    assert finished.printed == "beam.read was never awaited, so it was not called\n"


def test_state_can_be_read_both_ways_and_memory_is_kept() -> None:
    source = (
        "state.memory['seen'] = [state.iteration, state['metrics']['cost'], state.best, state.results]\n"
        "state.memory['deep']['list'].append(2)\nstate['memory']['n'] += 1"
    )
    assert memory(source, memory={"n": 1, "deep": {"list": [1]}}) == {
        "n": 2,
        "deep": {"list": [1, 2]},
        "seen": [3, 2.5, None, []],
    }
    assert memory("state.memory = {'new': True}") == {"new": True}
    assert end(drive("state.memory['n'] = 2\nraise ValueError('x')")).memory == {"n": 2}


def test_observations_and_events_keep_their_order() -> None:
    source = (
        "mission.observe('cost', 1.5)\nmission.event('found', where=[1, 2], how={'a': None})\n"
        "mission.observe('cost', {'a': [1, True]})\nawait mission.event('end')\nmission.observe(name='n', value=3)"
    )
    finished = end(drive(source))
    assert finished.error is None
    assert finished.observed == (("cost", 1.5), ("cost", {"a": [1, 1]}), ("n", 3))
    assert finished.events == (
        {"name": "found", "data": {"where": [1, 2], "how": {"a": None}}},
        {"name": "end", "data": {}},
    )


def test_printed_text_is_collected_and_bounded() -> None:
    assert end(drive("print('a', 1)\nbeam.read()\nprint('b')")).printed == "a 1\nb\n"
    assert len(end(drive("for _ in range(300): print('x' * 1000)")).printed) == 64 * 1024


def test_chance_and_time_are_fixed_by_the_run() -> None:
    source = (
        "import random, datetime, time, asyncio\ntime.sleep(1000)\nawait asyncio.sleep(1000)\n"
        "state.memory['r'] = [random.random(), random.Random().random(), datetime.datetime.now().isoformat(),"
        " time.time(), time.monotonic(), list({'a', 'b', 'c'}), repr(beam), hash('x')]"
    )
    first = memory(source)
    assert first == memory(source)
    assert first["r"][2] == "2026-03-04T05:06:07"

    async def main() -> list[Step]:
        async with Sandbox() as sandbox:
            return await driven(sandbox, dataclasses.replace(spec(source), seed=8))

    assert end(anyio.run(main)).memory["r"][0] != first["r"][0]


async def test_replayed_answers_reach_the_same_next_step_in_new_processes() -> None:
    source = (
        "import random\nfor i in range(300):\n  r = beam.evaluate(random.random(), state.memory.get('last', 0))\n"
        "  state.memory['last'] = r['index']"
    )

    async def upto(count: int) -> list[Step]:
        async with Sandbox() as sandbox, sandbox.script(spec(source)) as script:
            steps = [await script.start()]
            while isinstance(last := steps[-1], Calls) and len(steps) <= count:
                steps.append(await script.answer({call.index: echo(call) for call in last.calls}))
            return steps

    first = await upto(200)
    assert first == await upto(200)
    assert isinstance(first[-1], Calls) and first[-1].calls[0].index == 200
    assert len({str(step) for step in first}) == 201


async def test_waiting_for_an_answer_costs_no_time() -> None:
    limits = dataclasses.replace(Sandbox().limits, script_seconds=0.2)
    async with Sandbox(limits) as sandbox, sandbox.script(spec("beam.read()\nbeam.read()")) as script:
        await script.start()
        await anyio.sleep(0.25)  # the waiting itself is what is tested
        assert isinstance(await script.answer({0: 1}), Calls)


async def test_a_dead_worker_ends_the_script_as_a_value() -> None:
    async with Sandbox() as sandbox, sandbox.script(spec("beam.read()")) as script:
        await script.start()
        for child in psutil.Process().children():
            if child.name() == "monty":
                child.kill()
        step = await script.answer({0: 1})
    assert isinstance(step, Finished)
    assert (step.error or "").startswith("the sandbox process died")
    assert step.memory == {"n": 1}


def test_the_known_modules_are_those_of_the_sandbox() -> None:
    assert memory("".join(f"import {name}\n" for name in MODULES)) == {"n": 1}
    for name in ("argparse", "socket", "statistics", "subprocess", "threading"):
        assert "ModuleNotFoundError" in (end(drive(f"import {name}")).error or "")
        (problem,) = missing_modules(f"try:\n  import yaml\nexcept ImportError:\n  pass\nimport {name}, math\n")
        assert (problem.line, problem.column) == (5, 1)
    (inner,) = missing_modules("def load():\n  if True:\n    import numpy\n")
    assert (inner.line, inner.column) == (3, 5)


def test_a_dunder_that_nothing_defines_is_a_fault_before_the_script_runs() -> None:
    assert memory("".join(f"{name}\n" for name in KNOWN_DUNDERS)) == {"n": 1}
    assert unassigned_dunders("".join(f"{name}\n" for name in KNOWN_DUNDERS)) == []
    assert unassigned_dunders("__mine__ = 1\ndef __run__(__x__): return __x__ + __mine__\n__run__(1)\n") == []
    for name in ("__builtins__", "__import__", "__loader__"):
        assert "NameError" in (end(drive(f"print({name})")).error or "")
        (problem,) = unassigned_dunders(f"x = 1\nprint({name})\n")
        assert (problem.line, problem.column) == (2, 7) and name in str(problem)
