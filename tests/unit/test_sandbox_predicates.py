"""Predicates: the check before anything runs, and what evaluation hands back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import psutil
import pytest

from pursuit.sandbox.pool import SandboxLimits
from pursuit.sandbox.sandbox import PredicateValue, Sandbox

# Generous, so that a busy machine is no reason to fail; the real limit is tested with the hostile corpus.
ROOMY = SandboxLimits(predicate_seconds=2.0)


async def values(
    expressions: Sequence[str], obs: Mapping[str, Any] | None = None, limits: SandboxLimits = ROOMY
) -> list[PredicateValue]:
    async with Sandbox(limits) as sandbox:
        return await sandbox.evaluate(expressions, {"obs": obs or {}})


def workers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.name() == "monty"]


def test_the_check_imports_no_sandbox() -> None:
    code = (
        "import sys; from pursuit.sandbox import pool, sandbox, values;"
        "values.missing_modules('x = 1'); sandbox.Sandbox();"
        "sys.exit('pydantic_monty' in sys.modules or pool.monty_started())"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_values_come_back_as_json_in_order() -> None:
    found = await values(["obs['a'] + 1", "obs['a'] > 1", "None", "[1.5, (2, 'x')]", "{'k': obs}"], {"a": 1})
    assert [value.value for value in found] == [2, False, None, [1.5, [2, "x"]], {"k": {"a": 1}}]
    assert all(value.is_json and value.error is None for value in found)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("{1}", "{1}"),
        ("float('nan')", "nan"),
        ("10**400", "1000"),
        ("[10**5000]", "<list>"),
        ("lambda: 1", "lambda"),
        ("'a' * 100_000", "'aaa"),
        ("[x := [], [x := [x] for _ in range(5000)][-1]]", "["),
    ],
)
async def test_what_is_no_json_comes_back_as_short_text(expression: str, text: str) -> None:
    (found,) = await values([expression])
    assert found.error is None
    assert isinstance(found.value, str)
    assert text in found.value
    assert len(found.value) <= 2000
    if expression != "lambda: 1":  # Monty itself hands a function over as its text
        assert not found.is_json


async def test_errors_are_texts_and_the_rest_goes_on() -> None:
    found = await values(["obs['no']", "1 +", "undefined", "obs['a']", "obs.a", "2"], {"a": 1})
    assert found[0].error == "KeyError: no"
    assert "not valid Python" in (found[1].error or "")
    assert "NameError" in (found[2].error or "")
    assert found[3] == PredicateValue(value=1)
    assert "AttributeError" in (found[4].error or "")
    assert found[5].value == 2


@pytest.mark.parametrize(
    "first",
    [
        "obs['xs'].append(9)",
        "obs.pop('xs')",
        "(obs := {'xs': 5})",
        "[len := (lambda x: 77)]",
        "exec('len = lambda x: 77')",
        "eval('(len := (lambda x: 77))')",
    ],
)
async def test_no_expression_sees_what_another_did(first: str) -> None:
    found = await values([first, "len(obs['xs'])"], {"xs": [1, 2]})
    assert found[0].error is None
    assert found[1].value == 2


async def test_a_killed_worker_is_replaced_without_a_word() -> None:
    async def main() -> list[PredicateValue]:
        async with Sandbox(ROOMY) as sandbox:
            await sandbox.evaluate(["1"], {})
            for child in workers():
                child.kill()
            return await sandbox.evaluate(["1", "2"], {})

    assert [value.value for value in await main()] == [1, 2]


async def test_without_workers_every_value_is_an_error_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONTY_BIN", os.devnull)
    found = await values(["1", "2"])
    assert all("worker" in (value.error or "") for value in found)


async def test_a_closed_sandbox_says_so() -> None:
    sandbox = Sandbox(ROOMY)
    await sandbox.evaluate(["1"], {})
    await sandbox.aclose()
    assert not workers()
    assert "closed" in ((await sandbox.evaluate(["1"], {}))[0].error or "")


async def test_any_task_may_start_use_and_close_it_and_cancellation_ends_an_evaluation() -> None:
    sandbox = Sandbox(SandboxLimits(predicate_seconds=60.0))
    async with anyio.create_task_group() as tasks:
        for number in range(6):
            tasks.start_soon(sandbox.evaluate, [f"{number}"], {})
    with anyio.move_on_after(0.2) as scope:
        await sandbox.evaluate(["[0 for _ in range(10**12) if False]"], {})
    assert scope.cancelled_caught
    assert (await sandbox.evaluate(["3"], {}))[0].value == 3
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sandbox.aclose)
