"""The read-only commands: status, list, history, watch, logs, prompt, replay, report, lessons, doctor.

They change nothing. All except doctor work with a broken configuration.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import msgspec
import typer

from pursuit.cli import show
from pursuit.cli.console import STYLES, CommandAnswer, Fact, Forms, Part, Screen, Styled, clean, line
from pursuit.cli.context import Context, NoLedger, command, conduct
from pursuit.cli.logs import Log, entry_lines
from pursuit.cli.options import CursorOption, ForceOption, LimitOption, MissionId, OutputOption, check_choice
from pursuit.cli.reports import format_of, report_answer, trials_answer, write_share
from pursuit.config.files import STATE_VARIABLE, live_folder
from pursuit.core.events import AnyEvent
from pursuit.core.report import iso
from pursuit.core.state import MissionState
from pursuit.engine.context import Phase
from pursuit.errors import InvalidArgument, UpstreamUnavailable
from pursuit.runtime import Runtime, examine_installation
from pursuit.service.conversations import ConversationText
from pursuit.service.queries import SHOWN_STATUSES, MissionPage, find_id
from pursuit.service.service import Service

if TYPE_CHECKING:
    from pursuit.service.doctor import Finding

app = typer.Typer()
MAX_COMPARED = 10


@command(app, reads=True)
async def status(context: Context, *, mission_id: MissionId) -> CommandAnswer:
    found = await context.service.status(mission_id)
    return CommandAnswer(found, show.mission(context, found))


@command(app, epilog="Example:  pursuit compare last 0514 07ab", reads=True)
async def compare(
    context: Context,
    *,
    mission_ids: Annotated[
        list[str], typer.Argument(metavar="ID ID…", help="Two to ten missions: ids, unique prefixes, or `last`.")
    ],
) -> CommandAnswer:
    """Compare missions side by side: outcome, criteria, best values, and what they used."""
    if not 2 <= len(set(mission_ids)) <= MAX_COMPARED:
        raise InvalidArgument(f"give 2 to {MAX_COMPARED} different missions", field="ID")
    service = context.service
    names = [await find_id(service.ledger, "mission", word) for word in mission_ids]
    found = [await service.status(name) for name in names]
    return CommandAnswer({"missions": found}, show.comparison(found))


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
    if wanted is not None:
        check_choice("--status", wanted, (*SHOWN_STATUSES, "forgotten"))
    page = MissionPage(missions=[])
    try:
        page = context.look(lambda runtime: runtime.runner.list(status=wanted, cursor=cursor, limit=limit))
    except NoLedger as error:
        # Without a ledger there are no missions yet. A named ledger that does not exist may be a typo.
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
    return show.history(context, await context.service.history(mission_id, full=full, cursor=cursor), full=full)


@command(app, json_lines=True, reads=True)
async def watch(context: Context, *, mission_id: MissionId) -> None:
    """Follow a mission until it ends or is interrupted, whichever process runs it; Ctrl-C stops watching."""
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
        typer.Option("--iteration", metavar="N", min=1, help="Show the requests of this iteration, counted from 1."),
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Show token counts instead of the texts.")] = False,
) -> CommandAnswer:

    async def next_request(runtime: Runtime) -> ConversationText:
        await runtime.use_servers_of(mission_id)
        return await runtime.runner.conversations.shown(mission_id)

    try:
        found = context.look(
            lambda runtime: runtime.runner.conversations.shown(mission_id, None if iteration is None else iteration - 1)
        )
    except UpstreamUnavailable:  # no request was sent yet, so the tools are not recorded
        found = context.drive(next_request)
    return CommandAnswer(found.as_json(), show.requests(found, tokens=tokens))


@command(app, json_lines=True, epilog="Example:  pursuit replay ID --model openai:gpt-5-mini")
def replay(
    context: Context,
    *,
    mission_id: MissionId,
    model: Annotated[
        str | None, typer.Option("--model", metavar="M", help="Ask this model too, until its first different answer.")
    ] = None,
) -> int:
    """Rebuild each request and verdict of a mission from its ledger, without a provider, and show differences."""

    async def work(runtime: Runtime) -> int:
        different = 0
        async for row in runtime.runner.conversations.replayed(mission_id, model):
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
    service = context.service
    head = (await service.state(mission_id)).seq
    log, screen = Log(service), context.screen

    async def show_entry(event: AnyEvent, state: MissionState) -> bool:
        if (row := await log.entry(event, state)) is not None:
            screen.render(CommandAnswer(row, entry_lines(row)))
        return screen.unread or (not follow and state.seq >= head)

    interrupted = await until_over(service, mission_id, show_entry)
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
            help="Format (default: by the file's name, else Markdown); csv and parquet contain only the trials.",
        ),
    ] = None,
    output: OutputOption = None,
    full: Annotated[
        bool, typer.Option("--full", help="HTML with the timeline: every call with its arguments and result, to share.")
    ] = False,
    force: ForceOption = False,
) -> CommandAnswer:
    """Show the report of a mission, the final one if the mission has ended; or write its trials as a table."""
    wanted = format_of(form, output, as_json=context.json)
    if full:
        if wanted != "html" or output is None:
            raise InvalidArgument("--full writes an HTML file; name it with -o FILE.html", field="--full")
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
    found = await context.service.lessons(" ".join(words), limit=limit)
    return CommandAnswer(found, show.lessons(found["missions"]))


@command(app, reads=True)
def doctor(
    context: Context,
    *,
    report: Annotated[
        bool, typer.Option("--report", help="Add versions and the system, for a bug report; it holds no secrets.")
    ] = False,
) -> CommandAnswer:
    path, ledger = context.configuration_path, context.ledger_path
    with context.screen.busy("examining"):
        findings = conduct(lambda: examine_installation(path, ledger))
    ok = all(one.level != "broken" for one in findings)
    data: dict[str, Any] = {"ok": ok, "findings": [one.as_dict() for one in findings]}
    parts: list[Part] = []
    if report:
        from pursuit.cli.main import installation

        home = str(Path.home())
        findings = [
            replace(one, what=one.what.replace(home, "~"), mend=one.mend.replace(home, "~")) for one in findings
        ]
        about = installation()
        data = {"installation": about, "ok": ok, "findings": [one.as_dict() for one in findings]}
        parts = [Fact(name, str(value)) for name, value in about.items()]
    return CommandAnswer(data, *parts, *map(_finding_parts, findings), code=0 if ok else 1)


@command(app, reads=True)
def agents(context: Context) -> CommandAnswer:
    """List the coding agents on this machine, their capabilities, and the line for a mission file."""
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
        yield f"    fix: {line(finding.mend)}"


_PHASES: dict[str, Phase] = {
    "RunClaimed": "propose",
    "ModelAsked": "propose",
    "ModelAnswered": "propose",
    "IterationEnded": "decided",
    "WaitBegan": "waiting",
    "MissionEnded": "ended",
}


WATCH_SECONDS = 1.0
"""Seconds without a driver before `watch` ends; a server continues a background run within half of that."""


async def follow(service: Service, mission_id: str, screen: Screen, live: Path | None = None) -> bool:
    """Shows a mission until it ends: live on a terminal, else as log lines; returns whether it is interrupted."""
    if screen.rich:
        from pursuit.cli.progress import progress

        async with progress(screen, live) as see:

            async def show(event: AnyEvent, state: MissionState) -> bool:
                see(mission_id, _PHASES.get(type(event).__name__, "execute"), state)
                return False

            return await until_over(service, mission_id, show)

    log = Log(service)

    async def write(event: AnyEvent, state: MissionState) -> bool:
        raw = {"seq": state.seq, "type": type(event).__name__, **msgspec.to_builtins(event), "at": iso(event.at)}
        screen.render(CommandAnswer(raw, entry_lines(await log.entry(event, state))))
        return screen.unread

    return await until_over(service, mission_id, write)


async def until_over(
    service: Service, mission_id: str, show: Callable[[AnyEvent, MissionState], Awaitable[bool]]
) -> bool:
    """Passes every event of a mission to `show` until the mission ends or is interrupted, or `show` returns True.

    Returns whether the mission is interrupted. Returns even if the mission had already ended, but not at an end that
    was reverted later.
    """
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
            # An end before the initial head was reverted later.
            if unwanted or (state.terminal and state.closed and state.seq >= head):
                break
        tasks.cancel_scope.cancel()
    return interrupted


async def _show_end(context: Context, mission_id: str, *, interrupted: bool) -> None:
    status = await context.service.status(mission_id)
    if context.screen.rich:
        context.screen.render(CommandAnswer(status, show.mission(context, status)))
    elif interrupted:
        resume = show.continue_command(context, status)
        found = {"session_id": status.mission_id, "status": status.status, "resume": status.resume}
        data = {key: value for key, value in found.items() if value is not None}
        text = f"{status.status}: {show.why(status)}; resume it with: {resume}"
        context.screen.render(CommandAnswer(data, text))
