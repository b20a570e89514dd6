"""The modules of the source as the meta tests read them: each is read and parsed once."""

from __future__ import annotations

import ast
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2] / "src"
SHIPPED = ROOT / "pursuit" / "problems" / "shipped"


class Module:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        self.place = path.relative_to(ROOT / "pursuit").as_posix()
        self.text = path.read_text(encoding="utf-8")

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of its tree."""
        return tuple(ast.walk(self.tree))


@cache
def modules() -> tuple[Module, ...]:
    """All but what coding agents are to repair."""
    paths = sorted((ROOT / "pursuit").rglob("*.py"))
    return tuple(Module(path) for path in paths if not path.is_relative_to(SHIPPED) or path.parent.parent == SHIPPED)
