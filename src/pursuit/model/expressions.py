"""What an expression or a script may look like before anything parses it in earnest.

Owns: the syntax limits of user-written code. Runs none of it (`sandbox`).
Invariant: Python's own parser never sees more nesting than it can take.
"""

from __future__ import annotations

import ast
import re
import warnings

MAX_EXPRESSION = 4_096
MAX_NESTING = 100
MAX_SCRIPT = 256 * 1024
# A quote that is never closed reaches to the end of what it could be: Python's own tokenizer stops there, and looking
# for its end again from each later quote would cost the square of the length.
_QUOTED = re.compile(
    r"""'{3}.*?(?:'{3}|\Z)|"{3}.*?(?:"{3}|\Z)|'(?:\\.|[^'\\\n])*+'?|"(?:\\.|[^"\\\n])*+"?|\#[^\n]*""", re.DOTALL
)


class SyntaxProblem(ValueError):
    """Why the code is refused, with the place where it is wrong."""

    def __init__(self, reason: str, line: int | None = None, column: int | None = None) -> None:
        place = "" if line is None else f" (line {line}, column {column})"
        super().__init__(reason + place)
        self.line = line
        self.column = column


def checked_expression(expression: str) -> str:
    """The expression itself, or a `SyntaxProblem`: one Python expression, short, not deeply nested."""
    text = expression.strip()
    if not text:
        raise SyntaxProblem("is empty; write one Python expression over `obs`")
    if len(text) > MAX_EXPRESSION:
        raise SyntaxProblem(f"has {len(text)} characters; at most {MAX_EXPRESSION} are allowed")
    _refuse_deep(text)
    _parse(text, "eval")
    return text


def checked_script(source: str) -> str:
    """The script itself, or a `SyntaxProblem`."""
    if not source.strip():
        raise SyntaxProblem("is empty; write a script that calls tools")
    if len(source) > MAX_SCRIPT:
        raise SyntaxProblem(f"has {len(source)} characters; at most {MAX_SCRIPT} are allowed")
    _refuse_deep(source)
    _parse(source, "exec")
    return source


def _refuse_deep(text: str) -> None:
    """Counts twice, with and without what is quoted: a quoted bracket closes nothing, an f-string's opens one."""
    _refuse_nesting(text)
    _refuse_nesting(_QUOTED.sub(lambda quoted: re.sub(r"[^\n]", " ", quoted[0]), text))


def _refuse_nesting(text: str) -> None:
    depth = 0
    for place, character in enumerate(text):
        if character in "([{":
            depth += 1
            if depth > MAX_NESTING:
                line = text.count("\n", 0, place) + 1
                column = place - text.rfind("\n", 0, place)
                raise SyntaxProblem(f"nests more than {MAX_NESTING} brackets", line, column)
        elif character in ")]}":
            depth = max(0, depth - 1)


def _parse(text: str, mode: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "<input>", mode, ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as error:
        raise SyntaxProblem(f"is no valid Python: {error.msg}", error.lineno, error.offset) from None
    except (RecursionError, MemoryError):
        raise SyntaxProblem("is nested too deeply to parse") from None
    except UnicodeEncodeError:
        raise SyntaxProblem("is no valid Unicode; it holds half of a surrogate pair") from None
    except ValueError as error:
        raise SyntaxProblem(f"is no valid Python: {error}") from None
