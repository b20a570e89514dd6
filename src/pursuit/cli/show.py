"""How missions are shown: one mission, a list of them, the iterations of one, a verification.

These functions read what the service answers and nothing else. Output for a pipe has no colour and no box, and one
fact or one row per line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

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
    budget_parts,
    clean,
    counted,
    line,
    of_cap,
)
from pursuit.cli.context import Context
from pursuit.core.proposing import settings_type
from pursuit.core.report import way_on
from pursuit.core.state import MissionState
from pursuit.errors import SessionTerminal, advice
from pursuit.ledger.contract import Verification
from pursuit.reports.wording import (
    best_words,
    compact,
    evidence_words,
    figure,
    local_iso,
    moment,
    seconds_between,
    span,
    why,
)

if TYPE_CHECKING:
    from pursuit.core.history import Iteration
    from pursuit.core.report import ChildRow, CriterionRow, Status
    from pursuit.service.queries import HistoryPage, ListedMission, MissionPage

_TIMES = (("created", "created_at"), ("started", "started_at"), ("ended", "ended_at"))


def mission(context: Context, status: Status) -> Part:
    """Everything about one mission but its history."""
    return Forms(_mission_plain(context, status), lambda _width: _mission_rich(context, status))


def _model_plain(status: Status) -> Iterator[Part]:
    """What a language model read from its provider's cache, what is only estimated, and its notes."""
    if row := status.model:
        said = f"{row.name}, {row.cached_tokens:,} tokens from its cache"
        if row.estimated_tokens:
            said += f", {row.estimated_tokens:,} tokens estimated (requests without an answer)"
        yield Fact("model", said)
    for note in status.notes:
        yield Fact("note of the model", line(note, 500))


def way_on_from(context: Context, mission_id: str, state: MissionState) -> str:
    """What continues or repeats a mission that has ended."""
    say = context.command
    return way_on(mission_id, reason=state.verdict_reason, parent=state.parent, origin=state.origin, say=say)


def has_ended(context: Context, mission_id: str, state: MissionState) -> SessionTerminal:
    """The error for a mission that has ended, with the commands that go on from there."""
    way = way_on_from(context, mission_id, state)
    text = f"{mission_id} has ended: {state.status} ({state.verdict_reason}); {way}"
    return SessionTerminal(text, session_id=mission_id, status=state.status, way_on=way)


def continue_command(context: Context, status: Status) -> str:
    """What continues a mission that has not ended: a command, unless its proposer is the model of a client."""
    kind = settings_type(status.proposer)
    if kind is None or not kind.LENDS_MODEL:
        child = status.resume is not None and status.parent is not None  # it continues with its parent
        return context.command("resume", (child and status.parent) or status.mission_id)
    # A server has one mode for all missions: it does not keep that of a mission.
    mode = ("--mode", status.mode) if status.mode is not None else ()
    serve = context.command("serve", "--mission", status.mission_id, *mode)
    return f"mission_iterate from an MCP client that declares sampling, connected to {serve}"


def _mission_plain(context: Context, status: Status) -> Iterator[Part]:
    yield Fact("mission", status.mission_id)
    yield Fact("status", status.status)
    if text := why(status):
        yield Fact("why", text)
    if status.resume is not None or status.next is not None:
        yield Fact("resume", continue_command(context, status))
    if status.verdict is not None:
        yield Fact("verdict", f"{status.verdict} ({status.verdict_reason})")
    yield Fact("directive", status.directive)
    for row in status.criteria:
        need = "required" if row.required else "optional"
        yield Fact(f"criterion {row.criterion_id}", f"{row.status} ({need}): {row.description}{_proof(row)}")
    if text := best_words(status.best_point):
        yield Fact("best", text)
    for label, used, cap, _left in budget_parts(status.budget):
        yield Fact(label, of_cap(used, cap))
    yield Fact("no progress for", counted(status.no_progress_counter, "checkpoint"))
    yield Fact("proposer", status.proposer)
    yield from _model_plain(status)
    yield from _workspace_facts(context, status)
    if status.mode is not None:
        yield Fact("policy mode", f"{status.mode} (kept by resume)")
    yield Fact("tools", ", ".join(status.tool_allowlist))
    yield from _relatives_plain(status)
    for label, key in _TIMES:
        if (at := getattr(status, key)) is not None:
            yield Fact(label, local_iso(at))
    for warning in status.warnings:
        yield Fact("warning", warning)


def _workspace_facts(context: Context, status: Status) -> Iterator[Fact]:
    """Where an agent works, what its last turn changed, and the branch of the result."""
    row = status.workspace
    if row is None:
        return
    yield Fact("workspace", row.path)
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


def _relatives_plain(status: Status) -> Iterator[Part]:
    if status.parent is not None:
        yield Fact("parent", status.parent)
    for row in status.children:
        yield Fact(f"child {row.mission_id}", f"{row.status}: {line(row.directive, 200)}{_share(row)}")


def _mission_rich(context: Context, status: Status) -> Iterator[Part]:
    from rich.padding import Padding
    from rich.text import Text

    state = str(status.status)
    head = Text.assemble((status.mission_id, "bold"), "  ", (state, STYLES.get(state, "bold")))
    if text := why(status):
        head.append(f"  {line(text)}")
    yield from (head, Padding(Text(line(status.directive, 400)), (0, 0, 1, 2)), criteria_table(status))
    if text := best_words(status.best_point):
        yield Padding(Text(f"best  {line(text, 400)}"), (1, 0, 0, 2))
    used_of = budget_parts(status.budget)
    words = [f"{label} {of_cap(used, cap)}" for label, used, cap, _left in used_of]
    yield Padding(Text(" \u00b7 ".join(words)), (1, 0, 0, 2))
    for label, text in _workspace_facts(context, status):
        yield Padding(Text(f"{label} {line(text, 400)}"), (0, 0, 0, 2))
    if status.parent is not None:
        yield Padding(Text(f"child of {status.parent}"), (0, 0, 0, 2))
    if status.resume is not None or status.next is not None:
        yield Hint(f"  resume it with: {continue_command(context, status)}")
    for note in status.notes:
        yield Padding(Text(f"note of the model: {line(note)}"), (0, 0, 0, 2))
    if status.mode is not None:
        yield Padding(Text(f"policy mode {status.mode}, kept by resume"), (0, 0, 0, 2))
    for row in status.children:
        words = Text.assemble(f"child {row.mission_id}  ", (row.status or "", STYLES.get(row.status or "", "")))
        yield Padding(words.append(f"  {line(row.directive, 60)}{_share(row)}"), (0, 0, 0, 2))
    times = [f"{label} {moment(at)}" for label, key in _TIMES if (at := getattr(status, key)) is not None]
    yield Padding(Text(" \u00b7 ".join(times), style="dim"), (0, 0, 0, 2))
    for warning in status.warnings:
        yield Padding(Text(f"warning: {line(warning)}", style="yellow"), (0, 0, 0, 2))


def _share(row: ChildRow) -> str:
    """What a child used of what is reserved for it."""
    used = row.used or {}
    parts = [
        f"{name.removeprefix('max_')} {of_cap(figure(used.get(name, 0)) if _known(row, name) else '?', figure(amount))}"
        for name, amount in row.reserved.items()
    ]
    return f" [{', '.join(parts)}]" if parts else ""


def _known(row: ChildRow, name: str) -> bool:
    """Whether it is known how much of this a child used; one that never started used nothing."""
    return row.used is not None and (not row.used or name in row.used)


def criteria_table(status: Status) -> Any:
    """The criteria for a terminal, one per row."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("  criterion", "wants", "has", "from"):
        table.add_column(name, overflow="fold" if name == "wants" else "ellipsis", no_wrap=name == "from")
    for row in status.criteria:
        style, source = STYLES.get(row.status, ""), row.source
        name = Text.assemble((f"  {MARKS.get(row.status, '?')} ", style), line(row.criterion_id, 40))
        if not row.required:
            name.append(" (optional)", "dim")
        table.add_row(
            name,
            Text(line(row.description, 90)),
            Text(evidence_words(row), style=style),
            Text(f"{line(source.tool, 30)} in iteration {source.iteration + 1}" if source else "", style="dim"),
        )
    return table


def _proof(row: CriterionRow) -> str:
    source = row.source
    origin = f" from {source.tool} in iteration {source.iteration + 1}" if source else ""
    return f" [{evidence_words(row)}{origin}]"


def _aim(row: ListedMission) -> str:
    """What a mission is about, and whose child it is."""
    return line(row.directive, 200) + (f" (child of {row.parent})" if row.parent is not None else "")


def listing(context: Context, page: MissionPage) -> Iterator[Part]:
    """Missions, newest first."""
    found = page.missions
    rows = [(row.mission_id, _standing(row), str(row.iteration_count)) for row in found]
    cells = [(*row, moment(one.created_at), _aim(one)) for row, one in zip(rows, found, strict=True)]
    piped = [(*row, local_iso(one.created_at), _aim(one)) for row, one in zip(rows, found, strict=True)]
    columns = ("mission", "status", "iterations", "created", "directive")
    if found:
        yield TableRows(columns, cells, right=("iterations",), piped=piped)
    else:
        start = Hint(f"no missions yet; `{advice('pursuit run {}', 'FILE')}` starts one")
        yield Forms((), lambda _width: [start])
    if any(row.resume is not None for row in found):
        yield Hint(f"resume a mission that no process drives with: {context.command('resume', 'ID')} (or --all)")
    if page.next_cursor is not None:
        yield Hint(f"more: {context.command('list', '--cursor', page.next_cursor)}")


def _standing(row: ListedMission) -> str:
    return row.status if row.waiting_for is None else f"waiting for {row.waiting_for}"


def lessons(missions: Sequence[Mapping[str, Any]]) -> Iterator[Part]:
    """What ended missions learned: a line for each, then its lessons after a tab."""
    for row in missions:
        yield f"{row['session_id']}  {line(row['ending'])}  {line(row['directive'], 200)}"
        for lesson in row["lessons"]:
            yield f"\t{line(lesson)}"
    if not missions:
        yield Hint("no ended mission has any of these words")


def history(context: Context, page: HistoryPage, *, full: bool) -> CommandAnswer:
    """Iterations, oldest first."""
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
    """What a check of the hash chains found; the exit code is 1 if anything was changed."""
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
    """One line of the audit: when, what, which mission, who, and whether it was refused."""
    who = f"{row['who']} ({', '.join(part for part in (row['transport'], row.get('client')) if part)})"
    asked = " ".join(f"{name}={compact(value)}" for name, value in row.get("arguments", {}).items())
    parts = [moment(row["at"]), row["verb"], row.get("session_id", ""), f"by {who}", asked]
    if "refused" in row:
        parts.append(f"refused: {row['refused']['code']}: {row['refused']['message']}")
    if "outcome" in row:
        parts.append(": ".join(row[key] for key in ("outcome", "why") if key in row))
    return line("  ".join(part for part in parts if part))


def requests(found: Mapping[str, Any], *, tokens: bool) -> Iterator[Part]:
    """The requests to a language model: their texts, or where their tokens go."""
    for request in found["requests"]:
        name = f"iteration {request['iteration'] + 1}, request {request['request'] + 1}"
        name += ", for a summary" if request.get("purpose") == "summary" else ""
        exact = {True: ", exactly as sent", False: ", rebuilt with differences", None: ""}[request.get("exact")]
        yield f"== {name}{exact} =="
        if tokens:
            for part, size in request["tokens"].items():
                yield f"{part}\t{size}"
            if "used" in request:
                used = request["used"]
                yield f"counted\t{used['input']} input, {used['cached']} of it cached, {used['output']} output"
            continue
        yield "-- tools --"
        for tool in request["tools"]:
            yield clean(f"{tool['name']}: {tool['description']} {json.dumps(tool['schema'])}")
        yield f"-- system --\n{clean(request['system'])}"
        for message in request["messages"]:
            yield f"-- {message['role']}{' ' + message['tool'] if 'tool' in message else ''} --"
            if message["text"]:
                yield clean(message["text"])
            for kind in message.get("media", ()):
                yield f"({clean(kind)})"
            for call in message.get("calls", ()):
                yield f"{call['tool']} {clean(json.dumps(call['args']))}"
    if not found["requests"]:
        yield "The budget does not allow another request."


def replayed(row: Mapping[str, Any]) -> CommandAnswer:
    """One step of a replay; the code is 1 if it differs from what was recorded."""
    differs = not all(row.get(key, True) for key in ("same_request", "same_calls", "same_verdict"))
    if "verdict" in row:
        said = f"verdict {row['verdict']}, {'as recorded' if row['same_verdict'] else 'which was not recorded'}"
    else:
        same = "the same" if row["same_request"] else "this release sends another text"
        said = f"request {row['request'] + 1}: {same}"
        if "same_calls" in row:
            said += f"; {row['model']} {'makes the same calls' if row['same_calls'] else 'answers differently'}"
    parts = [f"iteration {row['iteration'] + 1}, {said}"]
    if not row.get("same_calls", True):
        parts += [
            f"  {head} {clean(json.dumps(row[key]))}"
            for head, key in (("recorded:", "calls"), ("now:     ", "new_calls"))
        ]
    return CommandAnswer(row, *parts, code=int(differs))
