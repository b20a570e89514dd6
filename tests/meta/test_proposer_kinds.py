"""Nothing outside of a kind's folder knows the kind of a proposer: facts and hooks say what others must know."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from source_tree import modules

from pursuit.core.proposing import BUILT_IN, find_kind

ALLOWED = ("proposers/", "__init__.py", "runtime.py", "cli/setup.py", "problems/missions.py", "core/proposing.py")
"""The kinds themselves, the public names, the composition root, `init`, the missions of problems, and the registry."""
NEUTRAL = {"pursuit.proposers", *(f"pursuit.proposers.{name}" for name in ("contract", "language", "view"))}
"""The modules of the port, which belong to no kind."""
NAMES = frozenset(BUILT_IN)
CLASSES = {kind.settings.__name__ for name in BUILT_IN if (kind := find_kind(name)) is not None} | {"AskedProposer"}
SETS = (ast.Set, ast.Tuple, ast.List)


def texts(node: ast.AST) -> set[object]:
    return {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}


def of_a_kind(name: str) -> bool:
    """Whether a name that a kind's module has stays there: its settings, hooks, proposer, tools and constants."""
    return name in CLASSES or name.isupper() or name.endswith(("Kind", "Proposer")) or name == "AskModel"


def reads_proposer(node: ast.AST) -> bool:
    """Whether an expression reads a proposer, or the kind of something."""
    return any(
        (isinstance(one, ast.Attribute) and one.attr in ("proposer", "kind"))
        or (isinstance(one, ast.Name) and "proposer" in one.id)
        or (isinstance(one, ast.Constant) and one.value in ("proposer", "kind"))
        for one in ast.walk(node)
    )


def branches(tree: ast.Module) -> Iterator[str]:
    """What a module has to know of a kind, with its line."""
    sets = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, SETS) and len(texts(node.value) & NAMES) > 1
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        line = f"{getattr(node, 'lineno', 0)}:"
        match node:
            case ast.ImportFrom(module=str(module)) if module.startswith("pursuit.proposers"):
                for one in node.names:
                    if f"{module}.{one.name}" not in NEUTRAL and module not in NEUTRAL and of_a_kind(one.name):
                        yield f"{line} imports {one.name} of {module}"
            case ast.ImportFrom() if {one.name for one in node.names} & CLASSES:
                yield f"{line} imports a class of settings"
            case ast.Import() if any(one.name.startswith("pursuit.proposers.") for one in node.names):
                yield f"{line} imports a module of a kind"
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in CLASSES:
                yield f"{line} reads {name}"
            case ast.Compare() if texts(node) & NAMES and reads_proposer(node):
                yield f"{line} {ast.unparse(node)}"
            case ast.Match() if reads_proposer(node.subject) and any(texts(one.pattern) & NAMES for one in node.cases):
                yield f"{line} match {ast.unparse(node.subject)}"
            case ast.Call(func=ast.Name(id="getattr" | "hasattr")) if reads_proposer(node.args[0]):
                yield f"{line} {ast.unparse(node)}"
            case ast.Compare(comparators=[ast.Name(id=name)]) if name in sets:
                yield f"{line} {ast.unparse(node)}"
            case _:
                pass


@pytest.mark.parametrize(
    "source",
    [
        "from pursuit.proposers.agent.settings import AgentProposer",
        "from pursuit.proposers.agent.settings import TURN",
        "from pursuit.proposers.model.asking import AskModel",
        "from pursuit import ModelProposer",
        "import pursuit.proposers.agent.settings",
        "settings.AgentProposer",
        "mission.proposer.kind == 'agent'",
        "row['kind'] in ('model', 'sampling')",
        "KINDS = ('model', 'sampling')\nx in KINDS",
        "match mission.proposer.kind:\n    case 'search': pass",
        "getattr(mission.proposer, 'models', ())",
        "isinstance(it, SearchProposer)",
    ],
)
def test_each_way_to_know_a_kind_is_found(source: str) -> None:
    assert list(branches(ast.parse(source)))


def test_no_module_outside_of_a_kind_knows_it() -> None:
    found = [
        f"{module.place}:{branch}"
        for module in modules()
        if not module.place.startswith(ALLOWED)
        for branch in branches(module.tree)
    ]
    assert not found, "\n".join(found)
