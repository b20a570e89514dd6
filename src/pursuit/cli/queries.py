"""The commands that look: status, list, history, watch, logs, prompt, replay, report, lessons, doctor.

They change nothing, and all but doctor work whatever is wrong with the configuration.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pursuit.cli.console import STYLES, CommandAnswer, Fact, Forms, Part, Screen, Styled, clean, line
from pursuit.cli.context import Context, NoLedger, command, conduct
from pursuit.cli.options import CursorOption, ForceOption, LimitOption, MissionId, OutputOption, check_choice
from pursuit.errors import InvalidArgument, UpstreamUnavailable

if TYPE_CHECKING:
    from pursuit.core.events import AnyEvent
    from pursuit.core.state import MissionState
    from pursuit.engine.context import Phase
    from pursuit.runtime import Runtime
    from pursuit.service import Service
    from pursuit.service.doctor import Finding

PANEL = "Look"

app = typer.Typer()


@command(app, reads=True)
async def status(context: Context, *, mission_id: MissionId) -> CommandAnswer:
    """Show a mission's status: criteria with their evidence, budget, verdict."""
    from pursuit.cli import show

    found = await context.service.status(mission_id)
    return CommandAnswer(found, show.mission(context, found))


@command(app, "list", epilog="Example:  pursuit list --status running --limit 10", reads=True)
def list_missions(
    context: Context,
    *,
    wanted: Annotated[
        str | None, typer.Option("--status", metavar="S", help="Only this status, such as running or interrupted.")
    ] = None,
    limit: LimitOption = 100,
    cursor: CursorOption = None,
) -> CommandAnswer:
    """List the missions of the ledger, newest first."""
    from pursuit.cli import show
    from pursuit.config.files import STATE_VARIABLE
    from pursuit.service.queries import SHOWN_STATUSES, MissionPage

    if wanted is not None:
        check_choice("--status", wanted, (*SHOWN_STATUSES, "forgotten"))
    page = MissionPage(missions=[])
    try:
        page = context.look(lambda runtime: runtime.runner.list(status=wanted, cursor=cursor, limit=limit))
    except NoLedger as error:
        # Without a ledger there are no missions yet. A ledger that was named may be a typing error.
        if context.state is not None or os.environ.get(STATE_VARIABLE):
            context.screen.note(f"note: {error.message}")
    return CommandAnswer(page, show.listing(context, page))


@command(app, reads=True)
async def history(
    context: Context,
    *,
    mission_id: MissionId,
    full: Annotated[bool, typer.Option("--full", help="Include calls, observations and criteria.")] = False,
    cursor: CursorOption = None,
) -> CommandAnswer:
    """Show the iterations of a mission, a hundred per page."""
    from pursuit.cli import show

    return show.history(context, await context.service.history(mission_id, full=full, cursor=cursor), full=full)


@command(app, json_lines=True, reads=True)
async def watch(context: Context, *, mission_id: MissionId) -> None:
    """Follow a mission until it ends or is interrupted, whichever process runs it; Ctrl-C stops watching."""
    from pursuit.config.files import live_folder

    live = live_folder(context.ledger_path)
    interrupted = await follow(context.service, mission_id, context.screen, live)
    await _show_end(context, mission_id, interrupted=interrupted)


@command(app, epilog="Example:  pursuit prompt ID --iteration 3 --tokens", reads=True)
def prompt(
    context: Context,
    *,
    mission_id: MissionId,
    iteration: Annotated[
        int | None,
        typer.Option("--iteration", metavar="N", min=1, help="What was sent in this iteration, counted from 1."),
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Show where the room goes instead of the texts.")] = False,
) -> CommandAnswer:
    """Show exactly what is sent to the mission's language model next, or was sent."""
    from pursuit.cli import show

    async def next_request(runtime: Runtime) -> dict[str, Any]:
        await runtime.use_servers_of(mission_id)
        return await runtime.runner.prompt(mission_id)

    try:
        found = context.look(
            lambda runtime: runtime.runner.prompt(mission_id, None if iteration is None else iteration - 1)
        )
    except UpstreamUnavailable:  # nothing was sent yet, so the tools are not recorded
        found = context.drive(next_request)
    return CommandAnswer(found, show.requests(found, tokens=tokens))


@command(app, json_lines=True, epilog="Example:  pursuit replay ID --model openai:gpt-5-mini")
def replay(
    context: Context,
    *,
    mission_id: MissionId,
    model: Annotated[
        str | None, typer.Option("--model", metavar="M", help="Ask this model, up to its first different answer.")
    ] = None,
) -> int:
    """Rebuild each request and verdict of a mission from its ledger, without a provider, and say what differs."""
    from pursuit.cli import show

    async def work(runtime: Runtime) -> int:
        different = 0
        async for row in runtime.runner.replay(mission_id, model):
            different += context.screen.render(show.replayed(row))
        return 1 if different else 0

    return context.look(work) if model is None else context.drive(work)


@command(app, json_lines=True, epilog="Example:  pursuit logs last -f", reads=True)
async def logs(
    context: Context,
    *,
    mission_id: MissionId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print each new entry until the mission has ended.")
    ] = False,
) -> None:
    """Show what a mission did, in order: turns, calls with arguments and outcomes, questions, failing checks."""
    from pursuit.cli.logs import Log

    service = context.service
    head = (await service.state(mission_id)).seq
    log = Log(service, context.screen, until=None if follow else head)
    interrupted = await until_over(service, mission_id, log.show)
    if interrupted:
        await _show_end(context, mission_id, interrupted=True)


@command(app, epilog="Examples:  pursuit report ID -o report.html   pursuit report ID --full -o all.html", reads=True)
def report(
    context: Context,
    *,
    mission_id: MissionId,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="html|md|json|csv|parquet",
            help="Format (default: by the file's name, else Markdown); csv and parquet are the trials alone.",
        ),
    ] = None,
    output: OutputOption = None,
    full: Annotated[
        bool, typer.Option("--full", help="HTML with the timeline: every call with its arguments and result, to share.")
    ] = False,
    force: ForceOption = False,
) -> CommandAnswer:
    """Show the report of a mission, the final one if the mission has ended; or write its trials as a table."""
    from pursuit.cli.reports import format_of, report_answer, trials_answer, write_share

    wanted = format_of(form, output, as_json=context.json)
    if full:
        if wanted != "html" or output is None:
            raise InvalidArgument("--full: it is an HTML file; name one with -o FILE.html", field="--full")
        context.check_output(output, force=force)
        return write_share(context, mission_id, output)
    if output is not None:
        context.check_output(output, force=force)
    if wanted in ("csv", "parquet"):
        rows = context.look(lambda runtime: runtime.runner.trials(mission_id))
        return trials_answer(mission_id, rows, wanted, output)
    found = context.look(lambda runtime: runtime.runner.report(mission_id))
    return report_answer(mission_id, found, wanted, output)


@command(app, epilog="Example:  pursuit lessons checkout latency", reads=True)
async def lessons(
    context: Context,
    *,
    words: Annotated[list[str], typer.Argument(metavar="WORDS", help="Words to search for.")],
    limit: LimitOption = 10,
) -> CommandAnswer:
    """Search the lessons of ended missions, best match first."""
    from pursuit.cli import show

    found = await context.service.lessons(" ".join(words), limit=limit)
    return CommandAnswer(found, show.lessons(found["missions"]))


@command(app, reads=True)
def doctor(context: Context) -> CommandAnswer:
    """Check configuration, servers and ledger, and say how to fix what is wrong."""
    from pursuit.runtime import examine_installation

    path, ledger = context.configuration_path, context.ledger_path
    with context.screen.busy("examining"):
        findings = conduct(lambda: examine_installation(path, ledger))
    ok = all(one.level != "broken" for one in findings)
    data = {"ok": ok, "findings": [one.as_dict() for one in findings]}
    return CommandAnswer(data, *map(_finding_parts, findings), code=0 if ok else 1)


@command(app, reads=True)
def agents(context: Context) -> CommandAnswer:
    """List the coding agents on this machine, what each says it can do, and the line for a mission file."""
    import msgspec

    from pursuit.proposers.agent.known_agents import find_agents, known_commands

    with context.screen.busy("asking the agents"):
        found = conduct(find_agents)
    parts: list[Part] = []
    if not found:
        parts.append(f"no known agent is on PATH; known are {', '.join(known_commands())}")
    for one in found:
        parts.append(Fact("agent", f"{one.name} {one.version}".strip() or " ".join(one.command)))
        if one.problem is not None:
            parts.append(Fact("problem", one.problem))
            continue
        parts.append(Fact("loads sessions", "yes" if one.loads_sessions else "no"))
        parts += [Fact("MCP servers", ", ".join(one.mcp)), Fact("mission file", one.configuration)]
    rows = [{**msgspec.to_builtins(one), "configuration": one.configuration} for one in found]
    return CommandAnswer({"agents": rows}, *parts)


def _finding_parts(finding: Finding) -> Iterator[Part]:
    first, *rest = clean(finding.what).splitlines() or [""]
    styled = Styled((f"{finding.level:8}", STYLES[finding.level]), (line(finding.about), "bold"), f"  {first}")
    yield Forms([f"{finding.level}\t{line(finding.about)}\t{first}"], lambda _width: [styled])
    for text in rest:
        yield f"    {text}"
    if finding.mend:
        yield f"    mend: {line(finding.mend)}"


_PHASES: dict[str, Phase] = {
    "RunClaimed": "propose",
    "ModelAsked": "propose",
    "ModelAnswered": "propose",
    "IterationEnded": "decided",
    "WaitBegan": "waiting",
    "MissionEnded": "ended",
}


WATCH_SECONDS = 1.0
"""How long a mission is without a driver before `watch` ends: a server continues a background run within half of it."""


async def follow(service: Service, mission_id: str, screen: Screen, live: Path | None = None) -> bool:
    """Shows every event of a mission until it has ended or is interrupted; returns whether it is interrupted."""
    async with _shown(screen, mission_id, live) as show_event:

        async def show_one(event: AnyEvent, state: MissionState) -> bool:
            show_event(event, state)
            return screen.unread

        return await until_over(service, mission_id, show_one)


async def until_over(
    service: Service, mission_id: str, show: Callable[[AnyEvent, MissionState], Awaitable[bool]]
) -> bool:
    """Hands on every event of a mission until it has ended or is interrupted, or `show` returns True.

    Returns whether the mission is interrupted. It also returns if the mission ended long ago, and not at an end that
    was taken back.
    """
    import anyio

    head = (await service.state(mission_id)).seq
    seen = 0
    interrupted = False

    async def is_interrupted() -> bool:
        return await service.is_stopped_short(mission_id) and (await service.state(mission_id)).seq <= seen

    async def await_interruption() -> None:
        nonlocal interrupted
        while not interrupted:
            before = await is_interrupted()
            await anyio.sleep(WATCH_SECONDS)
            interrupted = before and await is_interrupted()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(await_interruption)
        async for event, state in service.watch(mission_id):
            unwanted = await show(event, state)
            seen = state.seq
            if unwanted or _over(state, head):
                break
        tasks.cancel_scope.cancel()
    return interrupted


async def _show_end(context: Context, mission_id: str, *, interrupted: bool) -> None:
    from pursuit.cli import show

    status = await context.service.status(mission_id)
    if context.screen.rich:
        context.screen.render(CommandAnswer(status, show.mission(context, status)))
    elif interrupted:
        resume = show.continue_command(context, status)
        found = {"session_id": status.mission_id, "status": status.status, "resume": status.resume}
        data = {key: value for key, value in found.items() if value is not None}
        text = f"{status.status}: {show.why(status)}; resume it with: {resume}"
        context.screen.render(CommandAnswer(data, text))


@asynccontextmanager
async def _shown(
    screen: Screen, mission_id: str, live: Path | None
) -> AsyncGenerator[Callable[[AnyEvent, MissionState], None]]:
    """Shows each event: in place on a terminal, else one line for each."""
    if screen.rich:
        from pursuit.cli.progress import progress

        async with progress(screen, live) as see:
            yield lambda event, state: see(mission_id, _PHASES.get(type(event).__name__, "execute"), state)
        return

    import msgspec

    from pursuit.core.report import iso
    from pursuit.reports.wording import local_iso

    def write(event: AnyEvent, state: MissionState) -> None:
        data = {"seq": state.seq, "type": type(event).__name__, **msgspec.to_builtins(event), "at": iso(event.at)}
        text = _event_line(event, state, screen)
        screen.render(CommandAnswer(data, *([f"{local_iso(data['at'])}\t{text}"] if text else [])))

    yield write


def _over(state: MissionState, head: int) -> bool:
    """Whether this is the end: an end before the head at our start was taken back later."""
    return state.terminal and state.closed and state.seq >= head


def _event_line(event: AnyEvent, state: MissionState, screen: Screen) -> str | None:
    from pursuit.cli.logs import operator_words
    from pursuit.cli.progress import iteration_line
    from pursuit.core import events
    from pursuit.core.report import iso
    from pursuit.reports.wording import local_iso

    match event:
        case events.IterationEnded():
            return iteration_line(state)
        case events.MissionEnded():
            return f"{event.status} ({event.reason})"
        case events.MissionWarned():
            return f"warning: {line(event.message)}"
        case events.WaitBegan():
            until = (
                f", next try at {local_iso(iso(event.until))}" if event.waiting_for == "model" and event.until else ""
            )
            return f"waiting for {event.waiting_for}{until}"
        case events.ModelAnswered(answer=events.ModelAnswer(text=text)) if text:
            return f"the model says: {line(text, 200)}"
        case events.ConversationCompacted():
            return f"the conversation was compacted: {event.replaced} exchanges are a summary now"
        case events.ApprovalAsked():
            return f"asks for approval: {line(event.tool)}; answer: {screen.command('approve', event.approval_id)}"
        case events.OperatorEvent():
            return operator_words(event)
        case events.MissionCreated():
            return "created"
        case events.RunClaimed():
            return f"driven by process {event.pid} on {line(event.host)}"
        case events.MissionFailed():
            return f"failed: {line(event.error, 200)}"
        case _:
            return None
