"""The commands about evidence: verify, export, audit, forget."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pursuit.cli import show
from pursuit.cli.console import CommandAnswer, Fact, Hint, clean
from pursuit.cli.context import Context, command
from pursuit.cli.options import ForceOption, MissionId, mission_ids
from pursuit.cli.reports import remove_reports
from pursuit.cli.show import audit_line
from pursuit.errors import Fault, InvalidArgument, ValidationFailed
from pursuit.ledger.contract import Verification
from pursuit.ledger.opening import address_of, without_password
from pursuit.service.proof import verify_export

app = typer.Typer()


class AuditFormat(StrEnum):
    text = "text"
    jsonl = "jsonl"


@command(app, reads=True)
def verify(
    context: Context,
    *,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="An exported mission (default: the whole ledger).")
    ] = None,
    expect: Annotated[str | None, typer.Option(metavar="ROOT", help="Fail unless the root equals ROOT.")] = None,
    sign: Annotated[
        Path | None, typer.Option(metavar="KEY", help="Sign the root with this Ed25519 key (PEM) if all is intact.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Append the signed root to this file.")
    ] = None,
    signatures: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Check every signed root of this file.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Public key of the signatures: 64 hex digits or a PEM file.")
    ] = None,
) -> CommandAnswer | None:
    """Check every hash of the ledger or of an exported mission; exit code 1 if anything was changed."""
    _check_words(file, {"--sign": sign, "--signatures": signatures}, output=output, key=key)
    if file is not None:
        found, what = _verify_file(file, expect), file
    else:
        found = _verify_ledger(context, expect, signatures, key)
        path = context.existing_ledger()
        what = without_password(address_of(path) or str(path))
    if sign is not None and found.ok:
        return _sign(sign, output, found.root)
    return show.verification(str(what), found)


def _check_words(file: Path | None, signing: dict[str, Path | None], *, output: Path | None, key: str | None) -> None:
    given = [name for name, value in signing.items() if value is not None]
    faults = [Fault(field=name, reason="applies to the ledger only; omit FILE") for name in given if file is not None]
    if output is not None and "--sign" not in given:
        faults.append(Fault(field="--output", reason="needs --sign KEY"))
    if key is not None and "--signatures" not in given:
        faults.append(Fault(field="--key", reason="needs --signatures FILE"))
    if faults:
        raise ValidationFailed(faults)


def _verify_ledger(context: Context, expect: str | None, signatures: Path | None, key: str | None) -> Verification:
    roots = [] if expect is None else [expect]
    if signatures is None:
        return context.look(lambda runtime: runtime.runner.verify(expect=roots))
    from pursuit.service.signed_roots import load_public_key, read_signatures

    signed = read_signatures(signatures, None if key is None else load_public_key(key))
    found = context.look(lambda runtime: runtime.runner.verify(expect=[*roots, *signed.roots]))
    if key is None:
        context.screen.hint(f"signed with {', '.join(sorted(signed.keys))}; compare it, or pass --key")
    return replace(found, faults=(*found.faults, *signed.faults))


def _sign(key: Path, output: Path | None, root: str) -> CommandAnswer | None:
    from pursuit.service.signed_roots import append_signature, load_key, sign_root

    signed = sign_root(load_key(key), root, time.time())
    if output is None:
        print(signed.line().decode(), end="")  # noqa: T201 - a line for a file, with or without --json
        return None
    append_signature(output, signed)
    data = {"root": signed.root, "at": signed.at, "key": signed.key, "file": clean(output)}
    return CommandAnswer(data, Fact("signed", signed.root), Fact("appended to", output))


def _verify_file(file: Path, expect: str | None) -> Verification:
    if expect is not None and ":" in expect:
        reason = (
            "EVENTS:HASH is the root of a ledger and STREAM@SEQ:HASH the head of a stream: omit FILE to check them. "
            "An exported file has its own hash, which this command prints without --expect"
        )
        raise ValidationFailed([Fault(field="--expect", reason=reason)])
    found = verify_export(file)
    if expect is None or expect.strip() == found.root:
        return found
    return replace(found, faults=(*found.faults, f"the root is {found.root}, not {expect}"))


@command(app, epilog="Example:  pursuit export ID -o mission.jsonl", reads=True)
def export(
    context: Context,
    *,
    mission_id: MissionId,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The new file.")],
    force: ForceOption = False,
) -> CommandAnswer:
    context.check_output(output, force=force)
    context.look(lambda runtime: runtime.runner.export(mission_id, output))
    check = Hint(f"check it with: {context.command('verify', str(output))}")
    return CommandAnswer({"session_id": mission_id, "file": clean(output)}, Fact("wrote", output), check)


@command(app, reads=True)
async def audit(
    context: Context,
    *,
    mission_id: Annotated[
        str | None, typer.Argument(metavar="ID", autocompletion=mission_ids, help="Only this mission.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Show the newest N rows.")] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print each new event as it is stored, until interrupted.")
    ] = False,
    form: Annotated[
        AuditFormat, typer.Option("--format", help="`jsonl`: stored events with their hashes, one per line.")
    ] = AuditFormat.text,
) -> CommandAnswer | None:
    """Show who asked for what: every start, run, stop and extension, from the terminal or from a client."""
    if follow and form is not AuditFormat.jsonl:
        raise ValidationFailed([Fault(field="--follow", reason="needs --format jsonl")])
    if form is AuditFormat.jsonl:
        if mission_id is not None:
            raise ValidationFailed([Fault(field="ID", reason="--format jsonl prints the whole audit; omit ID")])
        async for event in context.service.audit.stored(follow=follow, limit=limit):
            print(json.dumps(event, ensure_ascii=False), flush=True)  # noqa: T201 - a line for a log shipper
        return None
    rows = await context.service.audited(mission_id, limit=limit)
    return CommandAnswer({"audit": rows}, map(audit_line, rows) if rows else Hint("the audit is empty"))


@command(app)
def forget(
    context: Context,
    *,
    mission_id: MissionId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> CommandAnswer:
    context.look(lambda runtime: runtime.runner.state(mission_id))  # raises if the mission does not exist
    if not yes:
        if context.json or not sys.stdin.isatty():
            raise InvalidArgument(
                f"forgetting {mission_id} cannot be undone; confirm with --yes", session_id=mission_id
            )
        typer.confirm(f"Forget {mission_id} and everything it stored? This cannot be undone.", abort=True)
    context.look(lambda runtime: runtime.runner.forget(mission_id))
    remove_reports(context, mission_id)
    return CommandAnswer({"session_id": mission_id, "status": "forgotten"}, Fact("forgotten", mission_id))
