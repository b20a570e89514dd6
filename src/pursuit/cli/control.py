"""The operator's commands: pause, abort, complete and extend a mission; show and answer approval requests.

Each is recorded immediately, and the process that runs the mission sees it within a quarter of a second. Only the
person at the terminal or one of these commands answers an approval.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Annotated, Any

import anyio
import typer

from pursuit.cli import show
from pursuit.cli.console import ENDED, CommandAnswer, Fact, Hint, Note, Part, Screen, clean, facts_of
from pursuit.cli.context import Context, command
from pursuit.cli.options import MissionId, ReasonOption, mission_ids
from pursuit.core.approvals import Approval
from pursuit.core.events import Permission
from pursuit.core.report import ApprovalRow, Status, iso
from pursuit.core.state import MissionState
from pursuit.errors import Conflict, Fault, InvalidArgument, PursuitError, SessionTerminal, ValidationFailed
from pursuit.reports.wording import moment
from pursuit.service.approvals import Answered, Approvals, require_channel
from pursuit.service.queries import find_id

MAX_CAP = 2**53
"""The largest cap that a mission file accepts: larger integers are not exact as floats."""
WIDTHS = ("once", "arguments", "mission")

USAGE = 2
ApprovalIds = Annotated[
    list[str] | None, typer.Argument(metavar="ID…", help="Approval ids (`pursuit approvals`) or unique prefixes.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Answer all open questions.")]
ApprovalsOf = Annotated[
    str | None,
    typer.Option(
        "--mission", metavar="ID", autocompletion=mission_ids, help="Answer all open questions of this mission."
    ),
]

app = typer.Typer()


@command(app)
async def pause(context: Context, *, mission_id: MissionId, reason: ReasonOption = None) -> CommandAnswer:
    return _state(context, mission_id, await context.service.pause(mission_id, reason=reason))


@command(app)
async def abort(context: Context, *, mission_id: MissionId, reason: ReasonOption = None) -> CommandAnswer:
    return _state(context, mission_id, await context.service.abort(mission_id, reason=reason))


@command(app)
async def complete(context: Context, *, mission_id: MissionId, reason: ReasonOption = None) -> CommandAnswer:
    return _state(context, mission_id, await context.service.complete(mission_id, reason=reason))


@command(app, epilog="Example:  pursuit extend ID --max-iterations 400,  then  pursuit resume ID")
async def extend(
    context: Context,
    *,
    mission_id: MissionId,
    max_iterations: Annotated[int | None, typer.Option(metavar="N", max=MAX_CAP, help="Iterations.")] = None,
    max_tool_calls: Annotated[int | None, typer.Option(metavar="N", max=MAX_CAP, help="Tool calls.")] = None,
    max_wall_clock_seconds: Annotated[float | None, typer.Option(metavar="S", help="Seconds of running time.")] = None,
    max_tokens: Annotated[int | None, typer.Option(metavar="N", max=MAX_CAP, help="Tokens.")] = None,
    max_cost_usd: Annotated[float | None, typer.Option(metavar="X", help="Cost in US dollars.")] = None,
) -> CommandAnswer:
    """Raise the caps of a mission's budget. Give the new cap, not the increase; -1 removes it."""
    given = {
        "max_iterations": max_iterations,
        "max_tool_calls": max_tool_calls,
        "max_wall_clock_seconds": max_wall_clock_seconds,
        "max_tokens": max_tokens,
        "max_cost_usd": max_cost_usd,
    }
    caps = {name: float(value) for name, value in given.items() if value is not None}
    try:
        state = await context.service.extend(mission_id, caps)
    except SessionTerminal:
        raise show.has_ended(context, mission_id, await context.service.state(mission_id)) from None
    return _state(context, mission_id, state)


def _state(context: Context, mission_id: str, state: MissionState) -> CommandAnswer:
    status = Status.of(mission_id, state)
    facts = {"mission": mission_id, "status": status.status, "why": show.why(status)}
    ended = status.status in ENDED
    step = context.command("report", mission_id) if ended else show.continue_command(context, status)
    return CommandAnswer(status, facts_of({key: text for key, text in facts.items() if text}), Hint(f"next: {step}"))


@command(app, epilog="Example:  pursuit approvals show ID  (the full arguments of one question)", reads=True)
async def approvals(
    context: Context,
    *,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MISSION | show ID]", help="Only calls of this mission; or one call in full."),
    ] = None,
    reveal: Annotated[
        bool, typer.Option("--reveal", help="With show: include secrets; this is recorded in the audit.")
    ] = False,
) -> CommandAnswer:
    """Show the calls that wait for your approval; `show ID` prints the full arguments of one."""
    approvals, given = Approvals(context.service), words or []
    if given[:1] == ["show"] and len(given) == len(("show", "ID")):
        shown = await approvals.show(await approvals.find(given[1]), reveal=reveal)
        return CommandAnswer(ApprovalRow.of(shown).as_json(), _whole(shown))
    if len(given) > 1 or reveal or given == ["show"]:
        raise InvalidArgument("give one MISSION, or `show` and the ID of one question; --reveal requires `show`")
    found = await approvals.open(await find_id(context.service.ledger, "mission", given[0]) if given else None)
    return CommandAnswer(
        {"approvals": [ApprovalRow.of(one).as_json() for one in found]}, _open_questions(context, found)
    )


def _open_questions(context: Context, found: Sequence[Approval]) -> Iterator[Part]:
    for one in found:
        yield Fact("question", one.approval_id)
        yield Fact(one.asker, one.stream)
        for line in one.description.splitlines():
            yield f"  {line}"
        if one.cut:
            yield Fact("cut", f"see it in full first: {context.command('approvals', 'show', one.approval_id)}")
        if people := people_words(one):
            yield Fact("yes", people)
        yield Fact("expires", moment(iso(one.until)))
    several = " (or --all)" if len(found) > 1 else ""
    answers = f"answer with: {context.command('approve', 'ID')}{several}  or  {context.command('deny', 'ID')}"
    yield Hint(answers if found else "nothing waits for an answer")


@command(app, epilog="Examples:  pursuit approve ID --for arguments,  pursuit approve --all")
async def approve(
    context: Context,
    *,
    approval_ids: ApprovalIds = None,
    every: AllOption = False,
    mission_id: ApprovalsOf = None,
    width: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="WIDTH",
            help="Scope: once, arguments (these arguments in this mission) or mission (this tool in this mission).",
        ),
    ] = "once",
    unseen: Annotated[
        bool, typer.Option("--unseen", help="Include calls whose truncated arguments you have not seen with `show`.")
    ] = False,
    reason: ReasonOption = None,
) -> CommandAnswer:
    if width not in WIDTHS:
        raise ValidationFailed([Fault(field="--for", reason=f"{width!r} is not one of {', '.join(WIDTHS)}")])
    require_channel("terminal", context.configuration.approvals.channels)
    wanted = await _questions(context, approval_ids, mission_id, every=every)
    return await _answer(context, wanted, width, reason, named=bool(approval_ids), unseen=unseen)


@command(app)
async def deny(
    context: Context,
    *,
    approval_ids: ApprovalIds = None,
    every: AllOption = False,
    mission_id: ApprovalsOf = None,
    reason: ReasonOption = None,
) -> CommandAnswer:
    wanted = await _questions(context, approval_ids, mission_id, every=every)
    return await _answer(context, wanted, "denied", reason, named=bool(approval_ids))


async def _questions(
    context: Context, approval_ids: Sequence[str] | None, mission_id: str | None, *, every: bool
) -> list[str]:
    if [bool(approval_ids), every, mission_id is not None].count(True) != 1:
        raise InvalidArgument("give IDs of questions, or --all, or --mission ID", field="ID")
    approvals = Approvals(context.service)
    if approval_ids:
        return list(dict.fromkeys([await approvals.find(word) for word in approval_ids]))
    return [one.approval_id for one in await approvals.open(mission_id)]


async def _answer(
    context: Context, wanted: Sequence[str], answer: Any, reason: str | None, *, named: bool, unseen: bool = False
) -> CommandAnswer:
    """Answers each question; a failure does not stop the rest."""
    approvals = Approvals(context.service)
    answered: list[Answered] = []
    refused: list[PursuitError] = []
    for approval_id in wanted:
        try:
            answered.append(await approvals.answer(approval_id, answer, reason=reason, unseen=unseen))
        except PursuitError as error:
            # Not given by id: a wider answer or another person answered first.
            if named or not isinstance(error, Conflict):
                refused.append(error)
    if len(wanted) == 1 and refused:
        raise refused[0]
    rows = [one.row() for one in answered]
    several = {"approvals": rows, **({"refused": [one.as_dict() for one in refused]} if refused else {})}
    parts: list[Part] = []
    asked = [one.approval for one in answered]
    for one in asked:
        parts += [Fact("denied" if answer == "denied" else "approved", one.tool), Fact(one.asker, one.stream)]
        if answer != "denied" and (people := people_words(one)):
            parts.append(Fact("yes", people))
    parts += [Note(f"error: {error.message}") for error in refused]
    if not wanted:
        parts.append(Hint("nothing waits for an answer"))
    for mission_id in dict.fromkeys(one.stream for one in asked if one.asker == "mission"):
        parts.append(
            Hint(f"if no process waits for the answer, continue with: {context.command('resume', mission_id)}")
        )
    if answer != "denied" and any(one.asker == "gateway" for one in asked):
        parts.append(Hint("the client may repeat the call now"))
    data = rows[0] if named and len(wanted) == 1 else several
    return CommandAnswer(data, *parts, code=USAGE if refused else 0)


def people_words(asked: Approval) -> str | None:
    """How many of the required people have approved, such as "1 of 2 (ann)"; None if one is enough."""
    if asked.require == 1:
        return None
    said = asked.approved_by
    return f"{len(said)} of {asked.require}" + (f" ({', '.join(map(clean, said))})" if said else "")


def _whole(shown: Approval) -> Iterator[str]:
    """A question with its full arguments; each line of a multi-line text gets a bar in front."""
    first, *_, last = shown.description.splitlines()
    yield clean(first)
    for name, value in shown.args.items():
        if isinstance(value, str) and "\n" in value:
            yield f"  {clean(name)}:"
            yield from (f"    | {clean(line)}" for line in value.split("\n"))
        else:
            yield f"  {clean(name)}: {clean(json.dumps(value, ensure_ascii=False, default=str))}"
    yield clean(last)


_ANSWERS: dict[str, Permission] = {"y": "once", "a": "arguments", "m": "mission", "n": "denied"}
_MAX_LINE = 4096


async def ask_at_terminal(
    screen: Screen, asked: Approval, show: Callable[[], Awaitable[Approval]]
) -> Permission | None:
    """Asks the person at the terminal; None leaves the question open. `show` returns the question in full.

    Input is read in the event loop: after cancellation, no thread is left to consume the next line.
    """
    screen.plain("")
    for line in asked.description.splitlines():
        screen.plain(clean(line))
    if people := people_words(asked):
        screen.plain(f"{people} approved")
    cut = asked.cut
    if cut:
        screen.plain("(the arguments are truncated: [s]how them in full before you approve)")
    while True:
        typer.echo(
            "[y]es once, yes for these [a]rguments, yes for this [m]ission, [s]how, [n]o, [l]ater [l]: ", nl=False
        )
        try:
            await anyio.wait_readable(sys.stdin)
        except anyio.get_cancelled_exc_class():
            typer.echo()  # the next output starts on a new line
            raise
        typed = os.read(sys.stdin.fileno(), _MAX_LINE).decode(errors="replace")
        if not typed:  # the end of the input
            typer.echo()
        given = typed.strip().lower()[:1]
        if given in ("l", ""):
            return None
        if given == "s":
            for text in _whole(await show()):
                screen.plain(text)
            cut = False
        elif cut and given in ("y", "a", "m"):
            screen.plain("the arguments above are truncated; type s to see them in full first")
        elif given in _ANSWERS:
            return _ANSWERS[given]
