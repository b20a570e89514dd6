"""A command that runs as a task: what to start, and what to look for in its output.

Checks its parts before anything starts, and turns its end into the ending of its task.
Invariant: what it shows of itself holds none of its secrets.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pursuit.config.commands import LARGEST, LEAST_HEARTBEAT, LONGEST_GRACE
from pursuit.config.surroundings import CannotIsolate, Isolation, withheld_note
from pursuit.core.log_metrics import LogMetrics, MetricRule
from pursuit.core.patterns import checked_pattern
from pursuit.core.tasks import TaskEnd
from pursuit.errors import Fault, ValidationFailed
from pursuit.processes.subreaper import signal_name
from pursuit.tasks.record import whole
from pursuit.tasks.store import Ending

GRACE = 10.0
HEARTBEAT = 30.0
LEAST_SECRET_LINE = 8
LARGEST_FILE = 16 * 1024 * 1024
"""Bytes of a file that are searched for a metric."""
BLANK = "***"
_BOUNDS = {"grace": (0, LONGEST_GRACE), "heartbeat": (LEAST_HEARTBEAT, LARGEST), "total": (0, LARGEST)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run. `env` is the whole environment and `cwd` the folder; None is that of this process.

    The three patterns are of Python's `re` and see each line of stdout and stderr; what counts is their first group,
    or all of the match. One that takes too long is switched off. The files of `metrics` are whole paths, and `before`
    is what is known of each before the start. `secrets` are values that must not be seen in anything that is kept or
    told.
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
    """The names of our variables that it does not get."""
    secrets: Sequence[str] = field(default=(), repr=False)
    referenced: Sequence[str] = field(default=(), repr=False)
    """Those of the secrets that the configuration and the environment give again: they are not stored."""

    @property
    def shown(self) -> str:
        """The title, or else the words of the command, as a person may see them."""
        return self.redacted(self.title or shlex.join(self.argv))

    def redacted(self, text: str) -> str:
        """The text without secrets, and with bytes that are no UTF-8 replaced."""
        for secret in blanked(self.secrets):
            text = text.replace(secret, BLANK)
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    def check(self) -> None:
        """Raises `ValidationFailed` with everything that would keep it from starting."""
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
            yield "cwd", f"{self.cwd!r} is no folder"
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
            return "holds a null character, which no program can be given"
        name = self.argv[0]
        if "/" in name:
            # A relative one is looked up from the folder that it will run in.
            place = Path(self.cwd or ".", name)
            why = "is no file" if not place.is_file() else "" if os.access(place, os.X_OK) else "is not executable"
        else:
            path = (os.environ if self.env is None else self.env).get("PATH", os.defpath)
            why = "" if shutil.which(name, path=path) else "was not found in PATH"
        return f"the command {name!r} {why}" if why else None

    def stored(self) -> dict[str, Any]:
        """What is needed to go on with it after a crash: all but what starts it, and no secret of the configuration."""
        body = asdict(self)
        del body["env"], body["cwd"], body["isolation"], body["referenced"]
        secrets = [secret for secret in self.secrets if secret not in self.referenced]
        words = [self.redacted(word) for word in self.argv]
        return {**body, "argv": words, "title": self.shown, "secrets": secrets}

    def stamped(self) -> Command:
        """The same with what is known now of the files of its metrics: one that stays like that is not its own."""
        files = {rule.file for rule in self.metrics if rule.file is not None}
        return replace(self, before={file: known for file in files if (known := _stamp(file))}) if files else self

    def read_files(self, metrics: LogMetrics) -> list[str]:
        """Looks for the metrics in the files that the command wrote; why one of them has no value."""
        notes: list[str] = []
        for rule in self.metrics:
            if rule.file is None:
                continue
            try:
                why = self._read_file(rule, rule.file, metrics)
            except (OSError, TimeoutError) as error:
                why = getattr(error, "strerror", None) or "takes too long to search"
            if why is not None:
                notes.append(self.redacted(f"metric {rule.name}: {rule.file} {why}"))
        return notes

    def _read_file(self, rule: MetricRule, file: str, metrics: LogMetrics) -> str | None:
        stamp = _stamp(file)
        if not stamp:
            return "does not exist, or is not a file"
        if list(self.before.get(file, ())) == stamp:
            return "was not written by this run"
        if stamp[1] > LARGEST_FILE:
            return f"has more than {LARGEST_FILE} bytes"
        metrics.look_in_file(rule, Path(file).read_text(encoding="utf-8", errors="replace"))
        return None if rule.name in metrics.found else f"has no value: {rule.wants} finds none"


def _stamp(file: str) -> list[int]:
    """When a file was last written, its size and its inode; empty if there is no such file."""
    path = Path(file)
    if not path.is_file():  # reading a pipe would wait for its writer
        return []
    known = path.stat()
    return [known.st_mtime_ns, known.st_size, known.st_ino]


def blanked(secrets: Sequence[str]) -> list[str]:
    """The texts to look for, longest first; the lines of a secret that has several count each."""
    parts = {line.strip() for secret in secrets for line in secret.splitlines() if len(secret.splitlines()) > 1}
    wanted = {secret for secret in secrets if secret} | {part for part in parts if len(part) >= LEAST_SECRET_LINE}
    return sorted(wanted, key=len, reverse=True)


STDERR_LINES = 80
LONGEST_STDERR_LINE = 1_000
OUTPUT_BYTES = 32 * 1024
"""Of the end of the output in a result: about what a language model gets of one result (`result_tokens`)."""
SIGNALLED = 128
"""Added to the number of a signal, as shells do, so that an exit code is never negative."""
NOT_KNOWN = (
    "its supervisor was ended, or the machine restarted, before the command did: its exit code is not known; what it "
    "wrote until then is in the log"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """What is known of a command that has ended. `code` is None if it is unknown, and `-n` after signal n."""

    task_id: str
    command: Command
    code: int | None = None
    seconds: float
    done: int | None = None
    item: str | None = None
    failures: Sequence[str] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict[str, Any])
    stderr: Sequence[str] = ()
    output: Sequence[str] = ()
    notes: Sequence[str] = ()
    mark: Mapping[str, Any] | None = None
    cancelled: bool = False
    why: str | None = None
    """The reason that was given for cancelling it."""


def ending_of(run: FinishedRun) -> Ending:
    """The task's end for it."""
    status: TaskEnd = "cancelled" if run.cancelled else "completed" if run.code == 0 else "failed"
    message = _said(run, status)
    body: dict[str, Any] = {"status": status, "task_id": run.task_id}
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
        "content": [{"type": "text", "text": _text(message, run, status)}],
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
    """The end of a command that never ran."""
    why = why if command is None else command.redacted(why)
    body = {"status": "failed", "task_id": task_id, "reason": why}
    return Ending(
        status="failed",
        message=why,
        result={"content": [{"type": "text", "text": why}], "structuredContent": body, "isError": True},
    )


def exit_code(code: int | None) -> int | None:
    """The code as it is recorded: 128 + n for a command that signal n ended."""
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
    if run.code is None:
        return NOT_KNOWN
    if run.code < 0:
        return f"ended by {signal_name(-run.code)} {after}{units}"
    return f"exit code {run.code} {after}{units}"


def _text(message: str, run: FinishedRun, status: TaskEnd) -> str:
    parts = [f"{run.command.shown}: {message} ({run.task_id})"]
    if run.item is not None:
        parts.append(f"last item: {run.item}")
    if status == "completed" and run.metrics:
        parts.append("\n".join(f"{name} = {value}" for name, value in run.metrics.items()))
    if status == "failed":
        if run.failures:
            parts.append("failure lines:\n" + "\n".join(run.failures))
        if run.stderr:
            parts.append("the end of stderr:\n" + "\n".join(run.stderr))
    if status != "cancelled" and run.output:
        parts.append("output:\n" + "\n".join(run.output))
    parts += run.notes
    if status != "completed" and run.command.disclaimer is not None:
        parts.append(run.command.disclaimer)
    return "\n\n".join(parts)
