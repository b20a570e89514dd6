"""The regular expressions of `upstream/`, `server/` and `tasks/`; elsewhere in them ruff forbids Python's `re`.

Invariant: each pattern is fixed and takes linear time on any text, because these packages read untrusted text. Patterns
of users and servers go through `core/patterns.py`, which has a timeout.
"""

from __future__ import annotations

import re

Pattern = re.Pattern

# Commands that start a known server.
_VERSION = r"[0-9A-Za-z][0-9A-Za-z._+\-]*"
NPM = re.compile(rf"(?P<name>@[a-z0-9._-]+/[a-z0-9._-]+|[a-z0-9._-]+)(?:@[\^~]?{_VERSION})?")
PYPI = re.compile(rf"(?P<name>[A-Za-z0-9._-]+)(?:(?:@|==|~=|>=){_VERSION})?")
INTERPRETER = re.compile(r"python(?:3(?:\.\d+)?)?t?")
STEERS = re.compile(r"PATH|(PYTHON|NODE_|NPM_CONFIG_|BUN_|UV_|PIP_|PIPX_|LD_|DYLD_).*", re.IGNORECASE)

# Names and addresses.
TOKEN_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
PLAIN_CHARACTER = re.compile(r"[A-Za-z0-9-]")
KEPT_NAME = re.compile(r"[A-Za-z0-9_-]+")
ESCAPED_CHARACTER = re.compile(r"_-|__|_x[0-9a-f]+_|[A-Za-z0-9-]")
AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?P<port>:[0-9]{1,5})?")
MISSION_URI = re.compile(r"mission://(mission-[0-9a-f]{16})(?:/(report|events))?(?:\?after=([0-9]{1,15}))?", re.ASCII)
TASK_ID = re.compile(r"task-[0-9a-f]{32}")

# Texts.
WORD = re.compile(r"[a-z0-9]+")
GAP = re.compile(r"<<([a-z]+)>>")
SECRET_TEXT = re.compile(r"(?i)(\bbearer\s+)\S+|\bpursuit_[\w-]{20,}")
PLAIN_VALUE = re.compile(r"[^\s\"'=\\]+")
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])|[\x00-\x08\x0b-\x1f\x7f]")
