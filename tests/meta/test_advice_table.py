"""Commands and configuration keys that printed text names come from `ADVICE` in `pursuit/errors.py`.

`tests/surface/test_advice.py` follows each row and each command that `Context.command` builds.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import typer.main
from test_advice import FOLLOWERS

from pursuit.cli.main import COMMANDS, app, loaded
from pursuit.config.configuration import TOML_KEYS
from pursuit.config.json_schemas import configuration_schema, mission_schema
from pursuit.errors import ADVICE

SRC = Path(__file__).parents[2] / "src" / "pursuit"
DESCRIBES = {
    "is the server name of [commands]": "a name that is taken",
    "requires decision =": "a key that is there",
    "this client's user may not answer": "whose answers count",
    "approvals over": "whose answers count",
    "this needs the scope": "the subject that an authorization server must name",
    "the token lives longer than": "a limit that is set",
    "--no-token contradicts [serve.oauth]": "a table that is there",
    "no [checks.{}] in": "a name of the mission that is wrong",
    "[servers.{}.tools.{}] names": "a table that is there",
    "correct [commands.{}]": "a table that is there",
    "[limits] {} = {} is reached": "a limit that is set",
    "{} of your tasks are running": "a limit that is set",
    "clients may not mark a mission": "a limit that is set",
    "[tracking] {}": "a key that is there",
    "[limits]": "the place of a limit",
    "no server offers a": "the table where servers stand",
    "must be a table such as": "the form of a value",
}  # fmt: skip
"""Text that names a table or a key and does not ask to add it, by its beginning."""


class Literal(NamedTuple):
    where: str
    text: str


@cache
def source() -> dict[str, str]:
    paths = [path for path in sorted(SRC.rglob("*.py")) if "shipped" not in path.parts]
    return {str(path.relative_to(SRC)): path.read_text(encoding="utf-8") for path in paths}


@cache
def parsed(name: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(source()[name])))


def literals(pattern: re.Pattern[str]) -> Iterator[Literal]:
    """The texts in which the pattern is found, without docstrings and the rows that `advice` is called with."""
    for name, text in source().items():
        if name == "errors.py" or not pattern.search(text.replace('\\"', '"')):
            continue
        skipped: set[int] = set()
        for node in parsed(name):
            if isinstance(node, ast.JoinedStr):
                skipped |= {id(part) for part in node.values}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "advice":
                skipped.add(id(node.args[0]))
            elif _has_body(node):  # docstrings, also those of fields
                skipped |= {id(one.value) for one in node.body if _is_text(one)}
        for node in parsed(name):
            if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in skipped:
                words = words_of(node)
                if pattern.search(words) and " ".join(words.split()) not in help_texts():
                    yield Literal(f"{name}:{node.lineno}", words)


def _has_body(node: Any) -> bool:
    return isinstance(getattr(node, "body", None), list)


def _is_text(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def words_of(node: ast.expr) -> str:
    """The text of a literal; `{}` stands for what is put into it."""
    if isinstance(node, ast.JoinedStr):
        return "".join(words_of(one) if isinstance(one, ast.Constant) else "{}" for one in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@cache
def commands() -> Any:
    group: Any = typer.main.get_command(app)
    group.commands = {name: loaded(name) for name in COMMANDS}
    return group


@cache
def help_texts() -> str:
    found: list[str] = []
    left: list[Any] = [commands()]
    while left:
        one = left.pop()
        left += getattr(one, "commands", {}).values()
        found += [one.help or "", one.epilog or "", one.short_help or ""]
        found += [getattr(param, "help", None) or "" for param in one.params]
    return "\n".join(" ".join(text.split()) for text in found)


def resolved(words: list[str]) -> str | None:
    """Why these words are no command of ours, or None; values of arguments and options may be anything."""
    command: Any = commands()
    if words[0] not in command.commands:
        return f"there is no command {words[0]}"
    known = {"--help"}
    for word in words:
        if word == "--":
            return None
        command = getattr(command, "commands", {}).get(word, command)
        if word == "tools":  # a server may follow it: `tools list SERVER`
            known |= {name for param in command.commands["list"].params for name in param.opts}
        known |= {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
        if re.match(r"-[a-z-]", word) and word not in known:
            return f"{command.name} has no option {word}"
    return None


def test_text_names_commands_of_the_table_only() -> None:
    named = re.compile(rf"\bpursuit (?:{'|'.join(commands().commands)})\b")
    found = [f"{one.where}: {one.text}" for one in literals(named)]
    assert found == [], "put the command into ADVICE (errors.py) and follow it in tests/surface/test_advice.py"


def _keys(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for one in schema.values():
            yield from _keys(one)
    elif isinstance(schema, list):
        for one in schema:
            yield from _keys(one)


def test_text_names_keys_of_the_table_only() -> None:
    tables = {*TOML_KEYS} - {"model", "state", "client_models", "inherit_env"}
    mission = mission_schema()
    mission["properties"] = {**mission["properties"], "servers": {}}
    keys = ({*_keys(configuration_schema())} - {*_keys(mission)}) | {"mode", "decision", "parallel_safe"}
    table, value = rf"(?<!pursuit)\[(?:{'|'.join(tables)})(?:\.[^\]]*)?\]", r"(?:[\[{\"\d]|true|false)"
    named = re.compile(rf"{table}|\[\{{\}}\] of|\b(?:{'|'.join(keys)}) = {value}")
    found = [one for one in literals(named) if "\n" not in one.text]  # not whole files
    wrong = [f"{one.where}: {one.text}" for one in found if not one.text.startswith(tuple(DESCRIBES))]
    assert wrong == [], "put the key into ADVICE (errors.py) and follow it in tests/surface/test_advice.py"
    assert [begins for begins in DESCRIBES if not any(one.text.startswith(begins) for one in found)] == []


def _calls(*names: str) -> Iterator[tuple[str, ast.Call]]:
    for name, text in source().items():
        if any(f"{one}(" in text for one in names):
            for node in parsed(name):
                if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in names:
                    yield f"{name}:{node.lineno}", node


def test_each_row_is_used_and_each_use_is_a_row() -> None:
    used = [(where, words_of(call.args[0])) for where, call in _calls("advice")]
    assert [f"{where}: {row}" for where, row in used if row not in ADVICE] == []
    assert sorted(ADVICE - {row for _, row in used}) == []


def built() -> set[str]:
    """The commands that `Context.command` builds: `{}` stands for a value, and options from a list are left out."""
    found: set[str] = set()
    for _where, call in _calls("command", "say"):
        words = [one for one in call.args if not isinstance(one, ast.Starred)]
        if not words or words_of(words[0]) not in commands().commands:
            continue
        texts = [text if (text := words_of(one)) and not text.isupper() and "{}" not in text else "{}" for one in words]
        found.add(shlex.join(["pursuit", *texts]).replace("'{}'", "{}"))
    return found


def test_commands_in_help_texts_exist() -> None:
    found = re.findall(r"(?<![\w/])pursuit ([^`,;()|\n]+)", help_texts())
    assert len(found) > 40
    wrong = {line: why for line in found if (why := resolved(shlex.split(line.partition("  ")[0].replace("'", ""))))}
    assert wrong == {}


def test_commands_that_are_built_exist() -> None:
    assert {line: why for line in built() if (why := resolved(line.split()[1:]))} == {}


def test_commands_that_are_built_are_followed() -> None:
    assert sorted(built() - FOLLOWERS.keys()) == []
