"""The size of the source only grows on purpose: `size.toml` holds the limits, and each change of it has a reason.

Lines are counted as an editor counts them, with docstrings, comments and blank lines.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

from source_tree import SHIPPED, Module, modules

from pursuit.core.proposing import BUILT_IN

SIZE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("size.toml").read_text(encoding="utf-8"))
RAISE = "Join modules, or raise the number in tests/meta/size.toml in the same commit and say why in its message."


def test_the_source_has_no_more_lines_than_it_may() -> None:
    limit, now = SIZE["lines"]["total"], sum(module.lines for module in modules())
    assert now <= limit, (
        f"The source has {now} lines and may have {limit}. Make it smaller: only an issue raises the number."
    )


def test_there_are_no_more_modules_than_there_may_be() -> None:
    limit, now = SIZE["modules"]["all"], len(modules())
    assert now <= limit, f"There are {now} modules and may be {limit}. {RAISE}"


def test_no_module_is_too_long() -> None:
    limit = SIZE["modules"]["longest"]
    assert [f"{m.name}: {m.lines}" for m in modules() if m.lines > limit] == [], f"at most {limit} lines each"


def imports(module: Module, known: frozenset[str]) -> set[str]:
    """The modules of ours that it imports, wherever in its text."""
    found: set[str] = set()
    for node in module.nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, f"{module.name}: a relative import"
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return (found & known) - {module.name}


def is_data(module: Module) -> bool:
    """Whether it only sets names to values and has nothing that runs."""
    return not any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for node in module.tree.body)


def test_few_small_modules_have_a_single_consumer() -> None:
    known = frozenset(module.name for module in modules())
    consumers: defaultdict[str, set[str]] = defaultdict(set)
    for module in modules():
        for name in imports(module, known):
            consumers[name].add(module.name)
    kinds = {place.partition(":")[0] for place in BUILT_IN.values()}  # loaded by their names
    limit = SIZE["modules"]["small_with_one_consumer"]
    small = [
        f"{m.name} ({m.lines} lines), used by {consumers[m.name].pop()}"
        for m in modules()
        if m.lines < SIZE["modules"]["small"]
        and m.path.stem not in ("__init__", "__main__")
        and m.name not in kinds
        and len(consumers[m.name]) == 1
        and not is_data(m)
    ]
    said = "\n".join(small)
    assert len(small) <= limit, f"{len(small)} small modules have one consumer, at most {limit} may:\n{said}"


def classes(module: Module) -> list[str]:
    """The names of its classes, private and nested ones too."""
    return [node.name for node in module.nodes if isinstance(node, ast.ClassDef)]


def test_class_names_are_unique() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for module in modules():
        if not module.path.is_relative_to(SHIPPED):
            for name in classes(module):
                places[name].append(module.name)
    limit = SIZE["classes"]["sharing_a_name"]
    shared = [f"{name}: {', '.join(found)}" for name, found in sorted(places.items()) if len(found) > 1]
    said = "\n".join(shared)
    assert len(shared) <= limit, f"{len(shared)} names of classes exist more than once, at most {limit} may:\n{said}"


def words_of(name: str) -> set[str]:
    """The words that a name in CamelCase or snake_case is made of."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)}


def forbidden(name: str) -> set[str]:
    """The forbidden words in it, in the singular or the plural."""
    words = set(SIZE["names"]["forbidden"])
    return {word for word in words_of(name) if word in words or word.removesuffix("s") in words}


def test_no_module_or_class_has_a_metaphor_for_a_name() -> None:
    found: list[str] = []
    for module in modules():
        found += [f"{module.name}: {word}" for part in module.name.split(".") for word in sorted(forbidden(part))]
        found += [f"{module.name}:{name}: {word}" for name in classes(module) for word in sorted(forbidden(name))]
    assert found == []
