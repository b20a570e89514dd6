"""A command that runs as a task: the program, and the patterns to find in its output.

Checks its parts before anything starts, and converts its end to the ending of its task.
Invariant: its public description contains no secrets.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pursuit.config.commands import LARGEST, LEAST_HEARTBEAT, MAX_GRACE
from pursuit.config.process_environment import CannotIsolate, Isolation, withheld_note
from pursuit.core.log_metrics import LogMetrics, MetricRule
from pursuit.core.patterns import Unfinished, checked_pattern
from pursuit.core.tasks import TaskEnd
from pursuit.errors import Fault, ValidationFailed
from pursuit.processes.subreaper import signal_name
from pursuit.tasks.record import whole
from pursuit.tasks.store import Ending

GRACE = 10.0
HEARTBEAT = 30.0
LEAST_SECRET_LINE = 8
MAX_FILE = 16 * 1024 * 1024
"""Maximum bytes of a file that is searched for a metric."""
BLANK = "***"
_BOUNDS = {"grace": (0, MAX_GRACE), "heartbeat": (LEAST_HEARTBEAT, LARGEST), "total": (0, LARGEST)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command to run. `env` is the whole environment and `cwd` the folder; None means those of this process.

    The three patterns use Python's `re` on each line of stdout and stderr; their value is the first group, or the
    whole match. A pattern that takes too long is switched off. The files of `metrics` are absolute paths, and `before`
    is the state of each before the start. `secrets` are values to remove from all that is stored or reported.
    """

    argv: Sequence[str]
    cwd: str | None = None
    env: Mapping[str, str] | None = None
    title: str | None = None
    total: float | None = None
    unit_pattern: str | None = None
    failure_pattern: str | None = None
    item_pattern: str | None = None
    metrics: Sequence[MetricRule] = ()
    before: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    disclaimer: str | None = None
    grace: float = GRACE
    heartbeat: float = HEARTBEAT
    isolation: Isolation | None = None
    withheld: Sequence[str] = ()
    """Variables of this process that the command does not get."""
    secrets: Sequence[str] = field(default=(), repr=False)
    referenced: Sequence[str] = field(default=(), repr=False)
    """The secrets that can be read again from the configuration and the environment; they are not stored."""

    @property
    def shown(self) -> str:
        """The title, or else the redacted command line."""
        return self.redacted(self.title or shlex.join(self.argv))

    def redacted(self, text: str) -> str:
        """The text without secrets; bytes that are not UTF-8 are replaced."""
        for secret in blanked(self.secrets):
            text = text.replace(secret, BLANK)
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    def check(self) -> None:
        """Raises `ValidationFailed` with every fault that would prevent a start."""
        if faults := [Fault(field=field, reason=self.redacted(why)) for field, why in self._wrong()]:
            raise ValidationFailed(faults)

    def _wrong(self) -> Iterator[tuple[str, str]]:
        try:
            if self.isolation is not None:
                self.isolation.words(self.argv, Path(self.cwd or ".").absolute())
        except CannotIsolate as error:
            yield "isolation", str(error)
        if why := self._wrong_program():
            yield "argv", why
        if self.cwd is not None and not Path(self.cwd).is_dir():
            yield "cwd", f"{self.cwd!r} is not a folder"
        for name in ("unit_pattern", "failure_pattern", "item_pattern"):
            try:
                checked_pattern(getattr(self, name) or "")
            except ValueError as error:
                yield name, str(error)
        for name, (least, most) in _BOUNDS.items():
            if (value := getattr(self, name)) is not None and not least <= value <= most:
                yield name, f"must be a number from {least:g} to {most:g}, not {value}"

    def _wrong_program(self) -> str | None:
        if not self.argv or not self.argv[0]:
            return "is empty: name a program to run"
        if any("\0" in word for word in self.argv):
            return "contains a null character, which cannot be passed to a program"
        name = self.argv[0]
        if "/" in name:
            # A relative path is relative to the folder that the command runs in.
            place = Path(self.cwd or ".", name)
            why = "is not a file" if not place.is_file() else "" if os.access(place, os.X_OK) else "is not executable"
        else:
            path = (os.environ if self.env is None else self.env).get("PATH", os.defpath)
            why = "" if shutil.which(name, path=path) else "was not found in PATH"
        return f"the command {name!r} {why}" if why else None

    def stored(self) -> dict[str, Any]:
        """The fields needed to resume after a crash, without those for the start and the configuration's secrets."""
        body = asdict(self)
        del body["env"], body["cwd"], body["isolation"], body["referenced"]
        secrets = [secret for secret in self.secrets if secret not in self.referenced]
        words = [self.redacted(word) for word in self.argv]
        return {**body, "argv": words, "title": self.shown, "secrets": secrets}

    def stamped(self) -> Command:
        """A copy with the current state of its metrics' files, to tell later if the command wrote them."""
        return replace(self, before=found) if (found := stamps_of(self.metrics)) else self

    def read_files(self, metrics: LogMetrics) -> list[str]:
        """Reads the metrics from the files that the command wrote; returns notes on metrics without a value."""
        return [self.redacted(note) for note in read_files(self.metrics, self.before, metrics)]


def stamps_of(rules: Sequence[MetricRule]) -> dict[str, list[int]]:
    """The state of the files of metrics before a command."""
    files = {rule.file for rule in rules if rule.file is not None}
    return {file: known for file in files if (known := _stamp(file))}


def read_files(rules: Sequence[MetricRule], before: Mapping[str, Sequence[int]], metrics: LogMetrics) -> list[str]:
    """Reads the metrics from the files that a command wrote; returns notes on metrics without a value."""
    notes: list[str] = []
    for rule in rules:
        if rule.file is None:
            continue
        try:
            why = _read_file(rule, rule.file, before, metrics)
        except (OSError, Unfinished) as error:
            why = getattr(error, "strerror", None) or "takes too long to search"
        if why is not None:
            notes.append(f"metric {rule.name}: {rule.file} {why}")
    return notes


def _read_file(rule: MetricRule, file: str, before: Mapping[str, Sequence[int]], metrics: LogMetrics) -> str | None:
    stamp = _stamp(file)
    if not stamp:
        return "does not exist, or is not a file"
    if list(before.get(file, ())) == stamp:
        return "was not written by this run"
    if stamp[1] > MAX_FILE:
        return f"is larger than {MAX_FILE} bytes"
    metrics.look_in_file(rule, Path(file).read_text(encoding="utf-8", errors="replace"))
    return None if rule.name in metrics.found else f"does not contain a match of {rule.wants}"


def _stamp(file: str) -> list[int]:
    """A file's modification time, size and inode; empty if it does not exist."""
    path = Path(file)
    if not path.is_file():  # reading a pipe would wait for its writer
        return []
    known = path.stat()
    return [known.st_mtime_ns, known.st_size, known.st_ino]


def blanked(secrets: Sequence[str]) -> list[str]:
    """The texts to remove, longest first; each line of a multi-line secret is a text."""
    parts = {line.strip() for secret in secrets for line in secret.splitlines() if len(secret.splitlines()) > 1}
    wanted = {secret for secret in secrets if secret} | {part for part in parts if len(part) >= LEAST_SECRET_LINE}
    return sorted(wanted, key=len, reverse=True)


STDERR_LINES = 80
MAX_STDERR_LINE = 1_000
OUTPUT_BYTES = 32 * 1024
"""Characters of the end of the output in a result: about the part that a model gets (`result_tokens`)."""
SIGNALLED = 128
"""Added to a signal's number, as shells do: an exit code is never negative."""
NOT_KNOWN = (
    "its supervisor ended, or the machine restarted, before the command ended: its exit code is not known; its output "
    "until then is in the log"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A command that has ended. `code` is None if it is unknown, and `-n` after signal n."""

    task_id: str
    command: Command
    code: int | None
    seconds: float
    done: int | None
    item: str | None
    failures: Sequence[str]
    metrics: Mapping[str, Any]
    stderr: Sequence[str]
    output: Sequence[str]
    notes: Sequence[str]
    mark: dict[str, Any]
    cancelled: bool
    overdue: bool
    """True if a deadline cancelled it."""
    why: str | None
    """The reason for the cancellation."""


def ending_of(run: FinishedRun) -> Ending:
    status: TaskEnd = "completed" if run.code == 0 else "failed"
    if run.cancelled:
        status = "failed" if run.overdue else "cancelled"
    message = _said(run, status)
    body: dict[str, Any] = {"status": status, "task_id": run.task_id}
    if run.cancelled and run.overdue:
        body["reason"] = message
    if status != "completed":
        body["exit_code"] = exit_code(run.code)
        if run.code is not None and run.code < 0:
            body["signal"] = signal_name(-run.code)
    body |= {"units_done": run.done, "units_total": whole(run.command.total), "last_item": run.item}
    if status == "completed" and run.command.metrics:
        body["metrics"] = dict(run.metrics)
    if status == "failed":
        body |= {"failure_lines": list(run.failures), "stderr_tail": list(run.stderr)}
    if status != "cancelled" and run.output:
        body["output_tail"] = list(run.output)
    if status == "failed" and run.command.withheld:
        run = replace(run, notes=[*run.notes, withheld_note(run.command.withheld)])
    body |= {"duration_seconds": round(run.seconds, 3), "notes": list(run.notes) or None}
    if status != "completed":
        body["disclaimer"] = run.command.disclaimer
    body = {key: value for key, value in body.items() if value is not None}
    result: dict[str, Any] = {
        "content": [{"type": "text", "text": _text(message, run, body)}],
        "structuredContent": body,
    }
    return Ending(
        status=status,
        message=message,
        result=result if status == "completed" else {**result, "isError": True},
        exit_code=exit_code(run.code),
        done=run.done,
        item=run.item,
        mark=run.mark,
    )


def refusal_of(task_id: str, command: Command | None, why: str) -> Ending:
    why = why if command is None else command.redacted(why)
    body = {"status": "failed", "task_id": task_id, "reason": why}
    return Ending(
        status="failed",
        message=why,
        result={"content": [{"type": "text", "text": why}], "structuredContent": body, "isError": True},
    )


def exit_code(code: int | None) -> int | None:
    return SIGNALLED - code if code is not None and code < 0 else code


def in_words(seconds: float) -> str:
    """A duration for people: `4m12s`."""
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m{rest:02d}s" if hours else f"{minutes}m{rest:02d}s"


def _said(run: FinishedRun, status: TaskEnd) -> str:
    after = f"after {in_words(run.seconds)}"
    units = ""
    if run.done is not None:
        units = f", {run.done}" + (f" of {whole(run.command.total)}" if run.command.total else "") + " units"
    if status == "cancelled":
        return f"cancelled {after}{units}" + (f": {run.why}" if run.why else "")
    if run.cancelled:
        return f"{run.why}, {after}{units}"
    if run.code is None:
        return NOT_KNOWN
    if run.code < 0:
        return f"ended by {signal_name(-run.code)} {after}{units}"
    return f"exit code {run.code} {after}{units}"


def _text(message: str, run: FinishedRun, body: Mapping[str, Any]) -> str:
    """The result as text: the parts of the structured content that a person reads."""
    parts = [f"{run.command.shown}: {message} ({run.task_id})"]
    if "last_item" in body:
        parts.append(f"last item: {run.item}")
    if metrics := body.get("metrics"):
        parts.append("\n".join(f"{name} = {value}" for name, value in metrics.items()))
    for key, head in (
        ("failure_lines", "failure lines"),
        ("stderr_tail", "the end of stderr"),
        ("output_tail", "output"),
    ):
        if lines := body.get(key):
            parts.append("\n".join([f"{head}:", *lines]))
    return "\n\n".join([*parts, *run.notes, *([body["disclaimer"]] if "disclaimer" in body else [])])
