"""References in a configuration, and the detection of secret values.

`${NAME}`, `${env:NAME}` and `${NAME:-default}` are environment variables, `${file:PATH}` is the content of a file, and
`${keyring:SERVICE/NAME}` is a password of the system's keyring. Inserted values are not expanded again.

A value is shown only if it is clearly not secret: a known setting, a word, a path that exists, an address without a
user. Any other value of a variable or of an `env` or `headers` table is a secret, unless it is very short.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import cast
from urllib.parse import unquote

SHORTEST_SECRET = 6
"""Redacting `80` or `true` would spoil each message."""
SECRETIVE = re.compile(
    r"key|token|secret|pass|pwd|credential|auth|cookie|dsn|conn|(?:^|[^a-z])(?:pat|pin)(?:$|[^a-z])", re.IGNORECASE
)
VARIABLE = re.compile(r"\$\{(?:(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?|(file|keyring):([^}]+))\}")
"""The name of a variable and its default, or the kind of another reference and its place."""
MAX_FILE = 64 * 1024
# Variables of every session, and names of settings that are not secret.
_KNOWN = re.compile(
    r"HOME|(OLD)?PWD|USER(NAME)?|LOGNAME|HOSTNAME|SHELL|PATH|LANG(UAGE)?|LC_\w+|TERM|TZ|TMP(DIR)?|TEMP|XDG_\w+"
    r"|SSH_CONNECTION|SSH_AUTH_SOCK|GIT_AUTHOR_\w+"
)
_SETTING = re.compile(
    r"NO_COLOR|DEBUG|PORT|HOST|MODE|ENV|PYTHON\w+|\w+_(PATH|DIR|ROOT|HOME|FILE|LEVEL|ENV|MODE|VERSION|REGION)"
)
_WORDS = r"([A-Z]?[a-z]+|[A-Z]+)([ ,._-]([A-Z]?[a-z]+|[A-Z]+))*"
_PLAIN = re.compile(rf"{_WORDS}|[a-z][a-z+.-]*://[A-Za-z0-9.-]+(:\d+)?(/({_WORDS}|v\d+))*/?")
_LONE_USER = re.compile(r"://([^\s/@:]+)@")
# A name is read backwards from the `=` after it, up to this length.
_MAX_NAME = 200
_NAME_BACK = re.compile(r"\s*([\w-]*[A-Za-z])")
_VALUE = re.compile(r"\s*([^\s;&]+)")
_NAME = re.compile(r"[A-Za-z][\w-]*")


def expand_variables(text: str, environ: Mapping[str, str]) -> tuple[str, list[str]]:
    """Returns the expanded text and the unresolved references: unset variables without a default, missing files."""
    missing: list[str] = []

    def value_of(match: re.Match[str]) -> str:
        if match[3] is not None:
            try:
                return _looked_up(match[3], match[4])
            except LookupError as error:
                missing.append(f"{match[3]}:{match[4]} ({error.args[0]})")
                return ""
        variable, default = match.group(1), cast("str | None", match.group(2))
        if variable in environ:
            return environ[variable]
        if default is None:
            missing.append(variable)
        return default or ""

    return VARIABLE.sub(value_of, text), missing


def _looked_up(kind: str, place: str) -> str:
    """The value of a reference to a file or a keyring. Raises `LookupError` with the reason if it is missing."""
    if kind == "keyring":
        return _password(place)
    path = Path(place).expanduser()
    if not path.is_absolute():
        raise LookupError("give an absolute path, or a path that starts with ~")
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_FILE + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise LookupError(getattr(error, "strerror", None) or "is not text") from None
    if len(text) > MAX_FILE:
        raise LookupError(f"has more than {MAX_FILE} characters")
    return text.rstrip("\r\n")


def _password(place: str) -> str:
    service, slash, name = place.partition("/")
    if not slash or not service or not name:
        raise LookupError("write keyring:SERVICE/NAME")
    try:
        import keyring  # noqa: PLC0415 - an extra, and slow to load
    except ImportError:
        raise LookupError("install it: pip install 'pursuit[keyring]'") from None
    try:
        found = keyring.get_password(service, name)
    except Exception as error:  # noqa: BLE001 - each backend has its own errors
        raise LookupError(f"the keyring says {type(error).__name__}: {error}") from None
    if found is None:
        raise LookupError("the password does not exist")
    return found


def _referred(texts: Iterable[str | None]) -> list[str]:
    """The values of the files and passwords that these texts refer to."""
    found: list[str] = []
    for match in (match for text in texts if text for match in VARIABLE.finditer(text) if match[3] is not None):
        with suppress(LookupError):
            found.append(_looked_up(match[3], match[4]))
    return found


def variable_values(texts: Iterable[str | None], environ: Mapping[str, str]) -> list[str]:
    """The values of the references in these texts, and the secrets inside them; without plain settings."""
    given = list(texts)
    names = {match[1] for text in given if text for match in VARIABLE.finditer(text) if match[1] is not None}
    values = [environ[name] for name in names if name in environ and not _KNOWN.fullmatch(name)]
    secret = [*(value for value in values if not _is_path(value)), *_referred(given)]
    return [part for value in secret for part in (value, *_inside(value))]


def secret_entries(said: Mapping[str, str], full: Mapping[str, str]) -> list[str]:
    """The secret values of a table: by their name, by the variable they came from, or by their form."""
    return [part for key, value in said.items() for part in _of_entry(key, value, full[key])]


def _of_entry(key: str, said: str, full: str) -> list[str]:
    inside = _inside(full)
    if SECRETIVE.search(key):
        return [full, *inside]
    references = list(VARIABLE.finditer(said))
    if any(match[3] is not None for match in references):
        return [full, *_referred([said]), *inside]
    names = [match[1] for match in references]
    if names:
        shown = all(_KNOWN.fullmatch(name) for name in names)
    else:
        shown = any(pattern.fullmatch(text) for pattern, text in ((_KNOWN, key), (_SETTING, key), (_PLAIN, full)))
    return inside if shown or _is_path(full) else [full, *inside]


def inherited_secrets(environ: Mapping[str, str]) -> list[str]:
    """The secrets of our own environment: values with a secretive name, and secrets inside any value."""
    found: list[str] = []
    for name, value in environ.items():
        named = SECRETIVE.search(name) and not _KNOWN.fullmatch(name) and not _SETTING.fullmatch(name)
        found += [value] if named and not _is_path(value) else []
        found += _inside(value)
    return found


def secret_arguments(words: Iterable[str]) -> list[str]:
    """The secrets of a command line: the values of options with secretive names, and secrets inside a word.

    Examples are `--token=VALUE` and `--token VALUE`; the user of an address or a password in a header.
    """
    found: list[str] = []
    for option, following in pairwise((*words, "")):
        name, equals, value = option.partition("=")
        if name.startswith("-") and SECRETIVE.search(name):
            found.append(value if equals else following)
        found += _inside(option)
    return found


def holds_literal_secret(key: str, value: str) -> bool:
    """True if an entry certainly holds a literal secret."""
    secret = [value] if SECRETIVE.search(key) else _inside(value)
    return not VARIABLE.search(value) and any(len(part) >= SHORTEST_SECRET for part in secret)


def _inside(text: str) -> list[str]:
    """The secrets within a text, in linear time: a caller may have written the text."""
    found: list[str] = []
    for user in _users(text):
        found += [user, user.partition(":")[2]]
    found += [match[1] for match in _LONE_USER.finditer(text) if not _PLAIN.fullmatch(match[1])]
    found += _assigned(text)
    name, _, value = text.partition(":")
    value = value.lstrip()
    if value and "\n" not in value and _NAME.fullmatch(name) and SECRETIVE.search(name):
        found += [value, value.rpartition(" ")[2]]
    return [part for one in found for part in dict.fromkeys((one, unquote(one)))]


def _users(text: str) -> Iterator[str]:
    """`user:password` of each address; a password with a `/` extends to the last `@`."""
    for word in text.split():
        for address in word.split("://")[1:]:
            user, at, _ = address.partition("@")
            if "/" in user or ":" not in user:
                user, at, _ = address.rpartition("@")
            if at and ":" in user:
                yield user


def _assigned(text: str) -> Iterator[str]:
    """The value of each `NAME=` with a secretive name."""
    place = text.find("=")
    while place >= 0:
        name = _NAME_BACK.match(text[max(0, place - _MAX_NAME) : place][::-1])
        secret = name is not None and SECRETIVE.search(name[1][::-1]) is not None
        value = _VALUE.match(text, place + 1) if secret else None
        if value is not None:
            yield value[1]
        place = text.find("=", place + 1 if value is None else value.end())


def _is_path(text: str) -> bool:
    try:
        return text.startswith(("/", "~")) and Path(text).expanduser().exists()
    except (OSError, ValueError, RuntimeError):
        return False


def as_secrets(values: Iterable[str]) -> tuple[str, ...]:
    """The values to redact, longest first; each line of a multi-line key is also redacted."""
    parts = {part.strip() for value in values for part in (value, *value.splitlines())}
    return tuple(sorted((part for part in parts if len(part) >= SHORTEST_SECRET), key=lambda part: (-len(part), part)))
