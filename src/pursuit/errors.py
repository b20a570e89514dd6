"""The errors that Pursuit raises to its callers, as one tree below `PursuitError`. Each class statement sets its code.

A failing tool raises none of these: its failure is an outcome, a value in the ledger.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

MAX_FAULTS, MAX_FAULT_TEXT = 5, 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One error in an input: its place, the reason and the remedy."""

    field: str
    reason: str
    source: str | None = None
    line: int | None = None
    column: int | None = None
    excerpt: str | None = None
    """The faulty line with a marker under the column, for a terminal."""

    def __str__(self) -> str:
        place = self.source or ""
        if self.line is not None and not self.field:  # inside a field, the reason says the place
            place += f":{self.line}" + (f":{self.column}" if self.column is not None else "")
        where = " ".join(part for part in (place, self.field) if part)
        return f"{where}: {self.reason}" if where else self.reason

    def as_dict(self) -> dict[str, Any]:
        """The fault as JSON, without absent fields."""
        pairs = asdict(self).items()
        return {key: value for key, value in pairs if value is not None and key != "excerpt"}


class PursuitError(Exception):
    """Base class: a stable code, a message that says what to do, and JSON details."""

    code: ClassVar[str] = "internal_error"
    exit_code: ClassVar[int] = 1

    def __init_subclass__(cls, *, code: str | None = None, exit_code: int | None = None) -> None:
        """Sets the code and the exit code of a class; both are inherited by default."""
        cls.code, cls.exit_code = code or cls.code, exit_code or cls.exit_code

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def as_dict(self) -> dict[str, Any]:
        """The error as JSON, the same on the command line, over MCP and over HTTP."""
        return {"code": self.code, "message": self.message, "details": self.details}


class ValidationFailed(PursuitError, code="validation_error", exit_code=2):
    """The whole input was rejected; nothing was stored."""

    def __init__(self, faults: Sequence[Fault], message: str | None = None) -> None:
        self.faults = tuple(faults)
        count = len(self.faults)
        text = message or f"{count} fault{'' if count == 1 else 's'} in the input; nothing was stored"
        super().__init__(text, faults=[fault.as_dict() for fault in self.faults])

    def __str__(self) -> str:
        """The message and the first faults that it does not mention: a traceback shows nothing else."""
        rest = [fault for fault in self.faults if fault.reason not in self.message]
        lines = [self.message, *(f"  {fault}"[:MAX_FAULT_TEXT] for fault in rest[:MAX_FAULTS])]
        more = len(rest) - MAX_FAULTS
        return "\n".join([*lines, *([f"  and {more} more"] if more > 0 else [])])


class InvalidArgument(PursuitError, code="invalid_argument", exit_code=2):
    """The call is well formed but does not fit this mission."""


class SessionNotFound(PursuitError, code="session_not_found", exit_code=2):
    """No mission has that id."""


class ApprovalNotFound(SessionNotFound, code="approval_not_found", exit_code=2):
    """No pending approval has that id."""


class SessionTerminal(PursuitError, code="session_terminal", exit_code=2):
    """The mission has ended."""


class SessionPaused(PursuitError, code="session_paused", exit_code=4):
    """The mission is paused: resume it first."""


class NotPaused(PursuitError, code="not_paused", exit_code=2):
    """The mission is neither paused nor failed: there is nothing to resume."""


class NoIterations(PursuitError, code="no_iterations", exit_code=2):
    """The mission has not run yet."""


class Conflict(PursuitError, code="conflict", exit_code=2):
    """Another process drives the mission, or its stream has new events."""


class Fenced(Conflict):
    """The process lost its lease on a stream and may no longer store or send anything for it."""


class Overtaken(Conflict):
    """The step that the caller requests has already run."""


class LedgerUnavailable(PursuitError, code="ledger_unavailable"):
    """The ledger cannot be opened, read or written: disk full, read-only, or not a Pursuit ledger."""


class LedgerTooNew(LedgerUnavailable, code="ledger_too_new", exit_code=2):
    """The ledger was written by a newer release."""


class UpstreamUnavailable(PursuitError, code="upstream_unavailable"):
    """An upstream server cannot be started or reached."""


class PolicyDenied(PursuitError, code="policy_denied", exit_code=2):
    """Policy does not allow this call."""


class NotTrusted(PursuitError, code="not_trusted", exit_code=2):
    """A file starts something that this user has not accepted, or other users can write to it.

    `details` has the command that accepts it.
    """


class ApprovalNeeded(PursuitError, code="approval_needed", exit_code=4):
    """A person must approve this call, but nobody can be asked here."""


class TaskNotFound(PursuitError, code="task_not_found", exit_code=2):
    """No task with that id is visible to this requestor."""


class TaskTerminal(PursuitError, code="task_terminal", exit_code=2):
    """The task has ended, and an ended task never changes."""


class TooManyTasks(PursuitError, code="too_many_tasks"):
    """A limit on tasks, set by the operator, is reached."""


class LimitReached(PursuitError, code="limit_reached", exit_code=3):
    """A limit on clients, set by the operator, is reached; `details` has its name and when it resets."""


class PathTraversal(PursuitError, code="path_traversal_detected", exit_code=2):
    """An argument has a `..` segment, which its command does not allow."""


class ProblemNotFound(PursuitError, code="problem_not_found", exit_code=2):
    """No problem has that id."""


class AttemptNotFound(PursuitError, code="attempt_not_found", exit_code=2):
    """No attempt has that id."""


class AlreadySubmitted(PursuitError, code="already_submitted", exit_code=2):
    """The attempt already has its one submission; `details` has the receipt."""


class BudgetExhausted(PursuitError, code="budget_exhausted", exit_code=3):
    """A budget of a problem is used up; `details` names it."""


class ProposerNotHere(PursuitError, code="proposer_not_here", exit_code=2):
    """The mission's proposer is Python code that this process does not have."""


class ModelUnavailable(PursuitError, code="model_unavailable", exit_code=2):
    """A language model is unknown, or its key is missing here."""


class ExtraMissing(PursuitError, code="extra_missing", exit_code=2):
    """An optional dependency is not installed."""


ADVICE = frozenset({
    "pursuit agents", "pursuit approvals", "pursuit approvals show {}", "pursuit approve {}", "pursuit extend {} {} -1",
    "pursuit init", "pursuit init --template {}", "pursuit install --help", "pursuit install claude-code --dry-run",
    "pursuit demo", "pursuit iterate {}",
    "pursuit list", "pursuit migrate up", "pursuit migrate up --role {}", "pursuit page", "pursuit problem compare {}",
    "pursuit problem list", "pursuit problem serve {}", "pursuit problem show {}", "pursuit resume {}",
    "pursuit run {}", "pursuit scaffold {}", "pursuit serve", "pursuit task list",
    "pursuit task run {}", "pursuit task run -- {}", "pursuit token",
    "pursuit token --operator", "pursuit token new --may approve-own", "pursuit tools", "pursuit tools diff",
    "pursuit tools pin", "pursuit trust --owner {}", "pursuit verify", "pursuit worker",
    "pursuit workspace diff last",
    "allow_parent_paths = true", '`parallel_safe = true` in `[commands."{}"]`',
    "`\"{}\" = '{}=({})'` in `[commands.\"{}\".metrics]`", "`unbounded = true` in `[limits]`",
    '`mode = "ask"` in `[policy]`', '`{{ tool = "{}", decision = "allow" }}` in `rules` of `[policy]`',
    '`enabled = true` in `[servers."{}"]`', '`trust_annotations = true` in `[servers."{}"]`',
    '`parallel_safe = true` in `[servers."{}".tools."{}"]`', '`read_only = true` in `[servers."{}".tools."{}"]`',
    "`isolation = false` in `[agents]`", '`network = ["{}"]` in `[agents]`',
    "`tasks_at_once = {}` in `[settings]`", "`tasks_each = {}` in `[settings]`", 'client_models = ["{}"]',
    '`clients = ["{}"]` in `[proposers]`', '`callables = ["{}"]` in `[proposers]`',
    '`"{}" = {{ input = {}, output = {} }}` in `[prices]`', 'schedule."{}" = {{ cron = "{}", mission = "{}" }}',
})  # fmt: skip
"""Commands and configuration that messages recommend. `tests/surface/test_advice.py` tests each."""
_BARE = re.compile(r'(?<=\.)"([A-Za-z0-9_-]+)"|"([A-Za-z0-9_-]+)"(?= =)')


def advice(row: str, *values: object) -> str:
    """A row of `ADVICE` with these values, quoted for a shell or for TOML. Raises KeyError for an unknown row."""
    if row not in ADVICE:
        raise KeyError(row)
    if row.startswith("pursuit "):
        return row.format(*(shlex.quote(str(one)) for one in values))
    quoted = row.format(*(json.dumps(str(one), ensure_ascii=False)[1:-1] for one in values))
    return _BARE.sub(r"\1\2", quoted)


# Error codes of JSON-RPC 2.0, section 5.1.

METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
