"""Commands as people quote them: which argv runs one, and whether its words alone decide how it ends.

Owns: what needs a shell, and what a command comes to whatever the mission does. Runs nothing. Invariant: an argv means
what the words mean in a terminal; a command that a terminal would not take is refused with the reason.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath

from pursuit.drafting.measures import wordset

_BROKEN = re.compile(r"(?:&&|\|\|?|[<>(])\s*$|^\s*(?:&&?|\|\|?|[;)])")
_BACKGROUND = re.compile(r"(?<!&)&\s*$")
_BUILTINS = wordset("cd export set unset source . ulimit umask alias eval exec exit ! if for while case until")
_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ksh"})
_WRAPPERS = wordset("env nice nohup time command exec sudo stdbuf ionice builtin doas")
_ALWAYS_WELL = wordset("true : echo printf pwd date sleep whoami hostname uname id cal seq yes clear")
_ALWAYS_THERE = frozenset({"/", ".", "..", "./", "../", "/dev/null", "/dev", "/bin", "/etc", "/usr", "/home"})
_OPERATORS = frozenset({"&&", "||", "|", "|&", ";", "&", "(", ")", ";;", "<", ">", ">>", "<<", "<<<", ">&", "<&", "&>"})
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")
_HARMLESS = frozenset({"print", "exit", "quit", "len", "range", "str", "int", "sum", "bool"})


def argv_of(command: str) -> list[str] | str:
    """The argv that runs a command as a terminal would, or why none does."""
    try:
        words = shlex.split(command)
    except ValueError:
        return "a quote in it is never closed"
    if not words:
        return "there is no command in it"
    special = _special(command)
    if not special and words[0] not in _BUILTINS and not _ASSIGNED.match(words[0]):
        return words
    if _BACKGROUND.search(command):
        return "it runs in the background, so nobody learns how it ends"
    if _BROKEN.search(command):
        return "it begins or ends with an operator of the shell, so a part of it is missing"
    if "<<" in special and "<<<" not in command:
        return "a here-document cannot stand on one line; put it into a script"
    # -e and pipefail: it passes only if every part of it does, which is what "passes" says.
    return ["bash", "-eo", "pipefail", "-c", command] if "|" in special else ["sh", "-ec", command]


def _special(command: str) -> frozenset[str]:
    """What stands in it that only a shell understands, outside of quotes."""
    found: set[str] = set()
    quote, skip = "", False
    for place, letter in enumerate(command):
        if skip:
            skip = False
        elif letter == "\\" and quote != "'":
            skip = True
        elif quote:
            quote = "" if letter == quote else quote
            if quote == '"' and letter in "$`":
                found.add(letter)
        elif letter in "'\"":
            quote = letter
        elif letter == "|" and "||" not in (command[place : place + 2], command[place - 1 : place + 1]):
            found.add("|")
        elif letter == "|":
            found.add("||")
        elif letter in "&;<>()$*?\n" or (letter == "~" and (place == 0 or command[place - 1].isspace())):
            found.add("<<" if command[place : place + 2] == "<<" else letter)
    return frozenset(found)


def ending(argv: Sequence[str]) -> int | None:
    """The exit code that a command ends with whatever the mission has done (1: any but 0), or None if it depends."""
    words = _bare(argv)
    if not words:
        return 0
    name, rest = PurePath(words[0]).name, words[1:]
    if name in _SHELLS:
        script = _script(rest)
        options = " ".join(rest[: rest.index(script)]) if script is not None else ""
        return None if script is None else _ending_of_script(script, strict=re.search(r"-[a-z]*e", options) is not None)
    if name in ("test", "["):
        return _ending_of_test(rest[:-1] if name == "[" and rest[-1:] == ["]"] else rest)
    if name in _ALWAYS_WELL:
        return 0
    if name == "false":
        return 1
    if name in ("exit", "return"):
        return (0 if not rest or rest == ["0"] else 1) if not rest or rest[0].isdigit() else None
    if name == "cd":
        return 0 if not rest or rest[0] in _ALWAYS_THERE else None
    if re.fullmatch(r"python[\d.]*", name) and len(rest) == 2 and rest[0] == "-c":
        return _ending_of_python(rest[1])
    if name in ("cat", "ls", "stat", "file"):
        return 0 if all(word.startswith("-") or word in _ALWAYS_THERE for word in rest) and name != "cat" else None
    return None


def _bare(argv: Sequence[str]) -> list[str]:
    """The command without what only runs it: env, nice, timeout, and the variables for it."""
    words = list(argv)
    while words:
        name = PurePath(words[0]).name
        if _ASSIGNED.match(words[0]):
            words = words[1:]
        elif name in _WRAPPERS or name in ("timeout", "xargs"):
            words = words[1:]
            while words and words[0].startswith("-"):
                words = words[1:]
            words = words[1:] if name == "timeout" and words else words
        else:
            break
    return words


def _script(rest: Sequence[str]) -> str | None:
    """What a shell is told to run by -c, with whatever options before it."""
    for place, word in enumerate(rest[:-1]):
        if re.fullmatch(r"-[a-z]*c", word):
            return rest[place + 1]
    return None


def _ending_of_script(script: str, *, strict: bool) -> int | None:
    """How a line for the shell ends, as far as its words tell; if it is strict, any part that fails ends it (-e)."""
    lexer = shlex.shlex(script, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        tokens = list(lexer)
    except ValueError:
        return None
    if any(word in ("if", "for", "while", "case", "until", "function", "{", "(", ")") for word in tokens):
        return None
    if tokens[-1:] == ["&"]:
        return 0  # in the background: nobody waits for it
    parts: list[tuple[str, int | None]] = []
    words: list[str] = []
    joined = ";"
    for word in [*tokens, ";"]:
        if word not in ("&&", "||", ";", "|", "&"):
            words.append(word)
            continue
        parts.append((joined, _ending_of_simple(words) if words else 0))
        words, joined = [], word
    return _together(parts if tokens[-1:] != [";"] else parts[:-1], strict=strict)


def _ending_of_simple(words: Sequence[str]) -> int | None:
    if words[0] == "!":
        inner = ending(words[1:])
        return _turned(inner)
    for place, word in enumerate(words):
        if word in _OPERATORS:
            return ending(words[:place]) if place and words[0] in _ALWAYS_WELL else None
    depends = any("$" in word or "`" in word for word in words)
    return None if depends and words[0] not in _ALWAYS_WELL else ending(words)


def _together(parts: Sequence[tuple[str, int | None]], *, strict: bool) -> int | None:
    """How commands that are joined end."""
    result: int | None = 0
    depends = False
    for joined, ends in parts:
        if joined == "&&" or (joined == "|" and strict):
            result = _both(result, ends)
        elif joined == "||":
            result = _turned(_both(_turned(result), _turned(ends)))
        else:
            if strict and result == 1:
                return 1
            depends = depends or (strict and result is None)
            result = ends
    return result if not depends or result == 1 else None


def _both(one: int | None, other: int | None) -> int | None:
    """How two end together if both must end well."""
    if 1 in (one, other):
        return 1
    return None if None in (one, other) else 0


def _turned(ends: int | None) -> int | None:
    return None if ends is None else 1 - ends


def _ending_of_test(words: Sequence[str]) -> int | None:
    """How `test` ends if it looks at nothing but its own words."""
    if words[:1] == ["!"]:
        inner = _ending_of_test(words[1:])
        return _turned(inner)
    if any("$" in word or "`" in word for word in words):
        return None
    match list(words):
        case []:
            return 1
        case [word] | ["-n", word]:
            return 0 if word else 1
        case ["-z", word]:
            return 1 if word else 0
        case ["-e" | "-d" | "-r", path] if path in _ALWAYS_THERE:
            return 0
        case [left, "=" | "==", right]:
            return 0 if left == right else 1
        case [left, "!=", right]:
            return 0 if left != right else 1
        case [left, "-eq" | "-ne" | "-lt" | "-le" | "-gt" | "-ge" as how, right]:
            return _compared(left, how, right)
        case _:
            return None


def _compared(left: str, how: str, right: str) -> int | None:
    try:
        one, other = int(left), int(right)
    except ValueError:
        return None
    holds = {"-eq": one == other, "-ne": one != other, "-lt": one < other, "-le": one <= other, "-gt": one > other}
    return 0 if holds.get(how, one >= other) else 1


def _ending_of_python(code: str) -> int | None:
    """A program that reads nothing ends in the same way every time; which way, only its simplest forms tell."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 1
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Attribute | ast.Assert | ast.Raise | ast.While):
            return None
        if isinstance(node, ast.Name) and node.id not in _HARMLESS:
            return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node) in ("exit", "quit")]
    codes = [ast.literal_eval(arg) for call in calls for arg in call.args if isinstance(arg, ast.Constant)]
    return 0 if len(codes) <= 1 and all(code in (0, None) for code in codes) and len(calls) <= 1 else None


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""
