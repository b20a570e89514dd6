"""Shows missions, lists, iterations, verifications, requests and replays.

These functions render answers of the service. Output for a pipe is plain: one fact or row per line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from pursuit.cli.console import (
    MARKS,
    STYLES,
    CommandAnswer,
    Fact,
    Forms,
    Hint,
    Part,
    Styled,
    TableRows,
    clean,
    counted,
    line,
    of_cap,
)
from pursuit.cli.context import Context
from pursuit.core.history import Iteration
from pursuit.core.proposing import settings_type
from pursuit.core.report import ChildRow, CriterionRow, Status, way_on
from pursuit.core.state import MissionState
from pursuit.errors import SessionTerminal, advice
from pursuit.ledger.contract import Verification
from pursuit.reports.wording import (
    best_words,
    compact,
    evidence_words,
    figure,
    gauges,
    local_iso,
    moment,
    seconds_between,
    span,
    why,
)
from pursuit.service.conversations import VerdictReplay
from pursuit.service.queries import HistoryPage, ListedMission, MissionPage

if TYPE_CHECKING:
    from rich.table import Table

    from pursuit.service.conversations import ConversationText, RequestReplay


def way_on_from(context: Context, mission_id: str, state: MissionState) -> str:
    say = context.command
    return way_on(mission_id, reason=state.verdict_reason, parent=state.parent, origin=state.origin, say=say)


def has_ended(context: Context, mission_id: str, state: MissionState) -> SessionTerminal:
    way = way_on_from(context, mission_id, state)
    text = f"{mission_id} has ended: {state.status} ({state.verdict_reason}); {way}"
    return SessionTerminal(text, session_id=mission_id, status=state.status, way_on=way)


def continue_command(context: Context, status: Status) -> str:
    """Returns how to continue a mission: a command, or instructions if a client's model proposes."""
    kind = settings_type(status.proposer)
    if kind is None or not kind.LENDS_MODEL:
        child = status.resume is not None and status.parent is not None  # a child continues with its parent
        return context.command("resume", (child and status.parent) or status.mission_id)
    # A server applies one mode to all missions, not the mission's own mode.
    mode = ("--mode", status.mode) if status.mode is not None else ()
    serve = context.command("serve", "--mission", status.mission_id, *mode)
    return f"mission_iterate from an MCP client that declares sampling, connected to {serve}"


def mission(context: Context, status: Status) -> Iterator[Part]:
    yield Fact("mission", status.mission_id)
    styled = Styled("status: ", (status.status, STYLES.get(status.status, "bold")))
    yield Forms([Fact("status", status.status)], lambda _width: [styled])
    if text := why(status):
        yield Fact("why", text)
    if status.resume is not None or status.next is not None:
        yield Fact("resume", continue_command(context, status))
    if status.verdict is not None:
        yield Fact("verdict", f"{status.verdict} ({status.verdict_reason})")
    yield Fact("directive", status.directive)
    yield criteria(status.criteria)
    if text := best_words(status.best_point):
        yield Fact("best", text)
    for gauge in gauges(status.budget):
        yield Fact(gauge.label.lower(), of_cap(gauge.used, gauge.limit))
    yield Fact("no progress for", counted(status.no_progress_counter, "checkpoint"))
    yield Fact("proposer", status.proposer)
    if row := status.model:
        said = f"{row.name}, {row.cached_tokens:,} tokens from its cache"
        if row.estimated_tokens:
            said += f", {row.estimated_tokens:,} tokens estimated (requests without an answer)"
        yield Fact("model", said)
    yield Fact("tools", ", ".join(status.tool_allowlist))
    yield from _more_facts(context, status)
    for label, at in (("created", status.created_at), ("started", status.started_at), ("ended", status.ended_at)):
        if at is not None:
            yield Fact(label, local_iso(at))
    for warning in status.warnings:
        yield Fact("warning", warning)


def comparison(found: Sequence[Status]) -> TableRows:
    """A column for each mission; a row only where one of them has something to say."""
    rows: dict[str, list[str]] = {
        "status": [one.status + (f" ({one.verdict_reason})" if one.verdict_reason else "") for one in found],
        "directive": [line(one.directive, 60) for one in found],
        "proposer": [one.proposer for one in found],
    }
    standing = [{row.criterion_id: row.status for row in one.criteria} for one in found]
    for name in dict.fromkeys(name for each in standing for name in each):
        rows[name] = [each.get(name, "") for each in standing]
    for name in dict.fromkeys(name for one in found for name in one.best):
        rows[f"best {name}"] = [figure(one.best.get(name)) if name in one.best else "" for one in found]
    used = [{gauge.label.lower(): gauge.used for gauge in gauges(one.budget)} for one in found]
    for name in dict.fromkeys(name for each in used for name in each):
        rows[name] = [each.get(name, "0") for each in used]
    rows["branch"] = ["" if one.workspace is None else one.workspace.branch or "" for one in found]
    cells = [(name, *values) for name, values in rows.items() if any(values)]
    return TableRows(("", *(one.mission_id for one in found)), cells)


def criteria(rows: Sequence[CriterionRow]) -> Forms:
    return Forms(map(_criterion, rows), lambda _width: [criteria_table(rows)])


def _criterion(row: CriterionRow) -> Fact:
    source = row.source
    origin = f" from {source.tool} in iteration {source.iteration + 1}" if source else ""
    need = "required" if row.required else "optional"
    proof = f"[{evidence_words(row)}{origin}]"
    return Fact(f"criterion {row.criterion_id}", f"{row.status} ({need}): {row.description} {proof}")


def _more_facts(context: Context, status: Status) -> Iterator[Fact]:
    """Facts that only some missions have: notes of a model, a workspace, a mode, relatives."""
    for note in status.notes:
        yield Fact("note of the model", line(note, 500))
    yield from _workspace_facts(context, status)
    if status.mode is not None:
        yield Fact("policy mode", f"{status.mode} (kept by resume)")
    if status.parent is not None:
        yield Fact("parent", status.parent)
    for row in status.children:
        yield Fact(f"child {row.mission_id}", f"{row.status}: {line(row.directive, 200)}{_share(row)}")


def _workspace_facts(context: Context, status: Status) -> Iterator[Fact]:
    """The workspace of an agent, the changes of its last turn, and the branch of the result."""
    row = status.workspace
    if row is None:
        return
    yield Fact("workspace", row.path)
    names = ("agent writes", "agent reads", "agent reaches", "agent limits")
    names = names if len(row.isolation or ()) > 1 else ("isolation",)
    yield from map(Fact, names, row.isolation or ())
    if row.turns:
        last = row.turns[-1]
        diff = f"; {context.command('workspace', 'diff', status.mission_id, '--turn', str(last.iteration))}"
        yield Fact("last turn", f"{counted(last.files, 'file')} changed{diff}")
    if row.protected_turns:
        yield Fact("protected files", f"changed in {counted(row.protected_turns, 'turn')}, which does not count")
    for one in row.agents or ():
        state = "won" if one.won else "completed" if one.completed else "did not meet the criteria"
        yield Fact("agent", f"{one.agent} {state} ({one.session_id})")
    if row.branch is not None:
        yield Fact("branch", row.branch)


def _share(row: ChildRow) -> str:
    used = row.used or {}
    parts = [
        f"{name.removeprefix('max_')} {of_cap(figure(used.get(name, 0)) if _known(row, name) else '?', figure(amount))}"
        for name, amount in row.reserved.items()
    ]
    return f" [{', '.join(parts)}]" if parts else ""


def _known(row: ChildRow, name: str) -> bool:
    """True if the child's usage of this cap is known; a child that never started used nothing."""
    return row.used is not None and (not row.used or name in row.used)


def criteria_table(criteria: Sequence[CriterionRow]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("  criterion", "wants", "has", "from"):
        table.add_column(name, overflow="fold" if name == "wants" else "ellipsis", no_wrap=name != "wants")
    for row in criteria:
        style, source = STYLES.get(row.status, ""), row.source
        name = Text.assemble((f"  {MARKS.get(row.status, '?')} ", style), line(row.criterion_id, 40))
        if not row.required:
            name.append(" (optional)", "dim")
        table.add_row(
            name,
            Text(line(row.description, 60)),
            Text(evidence_words(row), style=style),
            Text(f"{line(source.tool, 30)} in iteration {source.iteration + 1}" if source else "", style="dim"),
        )
    return table


def _aim(row: ListedMission) -> str:
    return line(row.directive, 200) + (f" (child of {row.parent})" if row.parent is not None else "")


def listing(context: Context, page: MissionPage) -> Iterator[Part]:
    found = page.missions
    standings = [row.status if row.waiting_for is None else f"waiting for {row.waiting_for}" for row in found]
    rows = [(row.mission_id, now, str(row.iteration_count)) for row, now in zip(found, standings, strict=True)]
    cells = [(*row, moment(one.created_at), _aim(one)) for row, one in zip(rows, found, strict=True)]
    piped = [(*row, local_iso(one.created_at), _aim(one)) for row, one in zip(rows, found, strict=True)]
    columns = ("mission", "status", "iterations", "created", "directive")
    if found:
        yield TableRows(columns, cells, right=("iterations",), piped=piped)
    else:
        start = Hint(f"no missions yet; `{advice('pursuit run {}', 'FILE')}` starts one")
        yield Forms((), lambda _width: [start])
    if any(row.resume is not None for row in found):
        yield Hint(f"resume an interrupted mission with: {context.command('resume', 'ID')} (or --all)")
    if page.next_cursor is not None:
        yield Hint(f"more: {context.command('list', '--cursor', page.next_cursor)}")


def lessons(missions: Sequence[Mapping[str, Any]]) -> Iterator[Part]:
    for row in missions:
        yield f"{row['session_id']}  {line(row['ending'])}  {line(row['directive'], 200)}"
        for lesson in row["lessons"]:
            yield f"\t{line(lesson)}"
    if not missions:
        yield Hint("no ended mission contains any of these words")


def history(context: Context, page: HistoryPage, *, full: bool) -> CommandAnswer:
    rows = page.iterations
    plain = (part for row in rows for part in _iteration(row, full=full))
    parts: list[Part] = [plain if full else Forms(plain, lambda _width: [_iterations(rows)])]
    if page.next_cursor is not None:
        words = ("--full",) if full else ()
        more = context.command("history", page.mission_id, *words, "--cursor", page.next_cursor)
        parts.append(Hint(f"more: {more}"))
    return CommandAnswer(page, *parts)


def _iterations(rows: Sequence[Iteration]) -> TableRows:
    cells = [
        (
            str(row.index + 1),
            row.verdict or "",
            row.verdict_reason or "",
            moment(row.started_at),
            span(seconds_between(row.started_at, row.ended_at)),
        )
        for row in rows
    ]
    return TableRows(("iteration", "verdict", "reason", "started", "took"), cells, right=("iteration", "took"))


def _iteration(row: Iteration, *, full: bool) -> Iterator[Part]:
    times = [local_iso(at) for at in (row.started_at, row.ended_at)]
    yield TableRows((), (), piped=[[row.index + 1, row.verdict, row.verdict_reason, *times]])
    if not full:
        return
    for call in row.calls or ():
        took = "" if call.seconds is None else f" in {span(call.seconds)}"
        error = "" if call.error is None else f" - {line(call.error, 200)}"
        yield f"  {line(call.tool)} {line(compact(call.args))}: {call.outcome or 'open'}{took}{error}"
    for name, value in ({} if row.observation is None else row.observation.metrics).items():
        yield f"  {line(name)} = {line(compact(value), 200)}"
    if (script := row.script) is not None:
        if script.error is not None:
            yield f"  script: {line(script.error, 400)}"
        for text in script.printed.splitlines():
            yield f"  > {line(text, 200)}"
    for result in row.criteria or ():
        yield f"  {MARKS.get(result.status, '?')} {line(result.criterion_id)} {result.status}"
    if row.rationale:
        yield f"  {line(row.rationale)}"


def verification(what: str, found: Verification) -> CommandAnswer:
    """The result of a check of the hash chains; the exit code is 1 if anything was changed."""
    ok = found.ok
    intact = Styled(("intact", "bold green") if ok else ("not intact", "bold red"), f"  {what}")
    counts = ((found.streams, "streams"), (found.events, "events"), (found.blobs, "blobs"))
    return CommandAnswer(
        {"ok": ok, **asdict(found)},
        Forms([Fact("verified", what), Fact("intact", "yes" if ok else "no")], lambda _width: [intact]),
        *(Fact("fault", fault) for fault in found.faults),
        Fact("checked", ", ".join(f"{figure(count)} {name}" for count, name in counts)),
        Fact("root", found.root),
        code=0 if ok else 1,
    )


def audit_line(row: Mapping[str, Any]) -> str:
    who = f"{row['who']} ({', '.join(part for part in (row['transport'], row.get('client')) if part)})"
    asked = " ".join(f"{name}={compact(value)}" for name, value in row.get("arguments", {}).items())
    parts = [moment(row["at"]), row["verb"], row.get("session_id", ""), f"by {who}", asked]
    if "refused" in row:
        parts.append(f"refused: {row['refused']['code']}: {row['refused']['message']}")
    if "outcome" in row:
        parts.append(": ".join(row[key] for key in ("outcome", "why") if key in row))
    return line("  ".join(part for part in parts if part))


def requests(found: ConversationText, *, tokens: bool) -> Iterator[Part]:
    """The requests to a language model: their texts or their token counts."""
    exactly = {True: ", exactly as sent", False: ", rebuilt with differences"}
    for request in found.requests:
        name = f"iteration {request.iteration + 1}, request {request.request + 1}"
        name += ", for a summary" if request.purpose == "summary" else ""
        yield f"== {name}{exactly[request.exact] if request.exact is not UNSET else ''} =="
        if tokens:
            for part, size in request.tokens.items():
                yield f"{part}\t{size}"
            if used := request.used:
                yield f"counted\t{used.input} input, {used.cached} of it cached, {used.output} output"
            continue
        yield "-- tools --"
        for tool in request.tools:
            yield clean(f"{tool.name}: {tool.description} {json.dumps(tool.schema)}")
        yield f"-- system --\n{clean(request.system)}"
        for message in request.messages:
            yield f"-- {message.role}{f' {message.tool}' if message.tool else ''} --"
            if message.text:
                yield clean(message.text)
            for kind in message.media:
                yield f"({clean(kind)})"
            for call in message.calls or ():
                yield f"{call.tool} {clean(json.dumps(call.args))}"
    if not found.requests:
        yield "The budget does not allow another request."


def replayed(row: RequestReplay | VerdictReplay) -> CommandAnswer:
    """One step of a replay; the exit code is 1 if it differs from the recorded step."""
    parts: list[str] = []
    if isinstance(row, VerdictReplay):
        said = f"verdict {row.verdict}, {'as recorded' if row.same_verdict else 'which was not recorded'}"
    else:
        same = "the same" if row.same_request else "this release sends a different text"
        said = f"request {row.request + 1}: {same}"
        if row.same_calls is not UNSET:
            said += f"; {row.model} {'makes the same calls' if row.same_calls else 'answers differently'}"
        if row.same_calls is False:
            pairs = (("recorded:", row.calls), ("now:     ", row.new_calls or []))
            parts = [f"  {head} {clean(json.dumps([one.as_json() for one in calls]))}" for head, calls in pairs]
    return CommandAnswer(row.as_json(), f"iteration {row.iteration + 1}, {said}", *parts, code=int(not row.is_same))
