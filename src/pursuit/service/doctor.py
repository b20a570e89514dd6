"""Looks after the installation: what is broken, what may surprise, and how to mend it.

Owns: the order of the examination and what it needs a connection or a ledger for. What the files alone tell is
`checkup`'s. Invariant: nothing is changed; whatever is wrong is a finding, with what to do about it, and never ends the
examination.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio

from pursuit.config.configuration import Configuration, load_configuration
from pursuit.config.servers import ServerConfig
from pursuit.core.base_model import nearest
from pursuit.core.catalogue import Catalogue
from pursuit.core.tools import Tool
from pursuit.errors import ExtraMissing, ModelUnavailable, PursuitError, ValidationFailed
from pursuit.ledger.contract import Ledger
from pursuit.proposers.provider import Providers
from pursuit.service.checkup import (
    Finding,
    broken,
    file_findings,
    fine,
    model_finding,
    note,
    rule_findings,
    server_findings,
    warning,
)
from pursuit.service.command_tools import command_tool
from pursuit.service.commands import check_startable
from pursuit.upstream.known_servers import recognised
from pursuit.upstream.pool import Pool

SLOW = 10.0
PATIENCE = 60.0
VERIFY_SECONDS = 10.0


async def examine(config: Path | None, state: Path, open_ledger: Callable[[Path], Ledger]) -> list[Finding]:
    """Everything that was found, in the order in which a person would look."""
    findings: list[Finding] = []
    configuration = Configuration()
    if config is None:
        mend = "`pursuit init` writes an example; --config names a file elsewhere"
        findings.append(warning("configuration", "there is no pursuit.toml or mcp.json here or above", mend))
    else:
        try:
            configuration = load_configuration(config)
            findings.append(fine("configuration", f"{config}: servers: {len(configuration.servers)}"))
        except ValidationFailed as failed:
            findings += [broken("configuration", str(fault), "put the file right") for fault in failed.faults]
        findings += file_findings(config, configuration.servers)
    findings += await _servers(configuration)
    findings += _commands(configuration)
    findings.append(await _model(configuration))
    findings += await _ledger(state, open_ledger)
    return findings


async def _model(configuration: Configuration) -> Finding:
    """The configured language model, or else which ones could be asked."""
    if configuration.model is None:
        return model_finding(os.environ, installed=find_spec("pydantic_ai") is not None)
    try:
        await Providers().check(configuration.model)
    except ExtraMissing as missing:
        return broken("models", missing.message, "install it, or take out `model`")
    except ModelUnavailable as error:
        return broken("models", error.message, "set its key, correct its name, or take out `model`")
    return fine("models", f"{configuration.model} can be asked; nothing was")


async def _servers(configuration: Configuration) -> list[Finding]:
    """Every server side by side; the findings stay in the order of the configuration."""
    found: dict[str, list[Finding]] = {}
    tools: list[Tool] = [command_tool(command) for command in configuration.commands.values()]
    complete = True

    async with Pool(configuration.servers, network=configuration.policy.network) as pool:

        async def one(name: str, server: ServerConfig) -> None:
            nonlocal complete
            found[name] = server_findings(name, server, configuration.policy.network, os.environ)
            if not server.enabled:
                found[name].append(note(f"server {name}", "is disabled", "enabled = true lets it in again"))
            elif any(finding.level == "broken" for finding in found[name]):
                complete = False
            else:
                listed, findings = await _connected(pool, name, server)
                found[name] += findings
                complete = complete and listed is not None
                tools.extend(listed or ())

        async with anyio.create_task_group() as tasks:
            for name, server in configuration.servers.items():
                tasks.start_soon(one, name, server)
    ordered = [finding for name in configuration.servers for finding in found[name]]
    return [*ordered, *rule_findings(configuration, tools if complete else None)]


async def _connected(pool: Pool, name: str, server: ServerConfig) -> tuple[list[Tool] | None, list[Finding]]:
    """The tools of a server that answers, or None; and what is to be said about it."""
    about, began = f"server {name}", anyio.current_time()
    catalogue: Catalogue | None = None
    reason = f"it did not answer within {PATIENCE:g} s"
    with anyio.move_on_after(PATIENCE):
        try:
            catalogue = await pool.catalogue([name])
            reason = catalogue.failures.get(name, "")
        except PursuitError as error:
            reason = error.message
    seconds = anyio.current_time() - began
    if catalogue is None or reason:
        return None, [broken(about, reason, _start_by_hand(server))]
    tools = list(catalogue)
    version = getattr(pool.upstream(name), "protocol_version", None)
    speaks = f", MCP {version}" if version else ""
    findings = [fine(about, f"{len(tools)} tools{speaks}, {seconds:.1f} s to connect")]
    findings += [
        warning(about, text, "tell whoever makes the server; the rest of it works") for text in catalogue.warnings
    ]
    if seconds > SLOW:
        mend = "install the package instead of fetching it at each start, or raise timeouts.connect"
        findings.append(warning(about, f"needs {seconds:.0f} s to connect", mend))
    return tools, [*findings, *_belief(about, name, server, tools)]


def _commands(configuration: Configuration) -> list[Finding]:
    """Whether each command could be started; none is."""
    findings: list[Finding] = []
    for name, command in configuration.commands.items():
        try:
            check_startable(command, os.environ)
            findings.append(fine(f"command {name}", "can be started"))
        except ValidationFailed as failed:
            mend = f"put [commands.{name}] right, or install what it needs"
            findings += [broken(f"command {name}", str(fault), mend) for fault in failed.faults]
    return findings


def _start_by_hand(server: ServerConfig) -> str:
    if server.url is not None:
        return "see whether the address and its headers are right, and whether the server runs"
    return f"start {server.command!r} with the same arguments by hand and read what it says"


def _belief(about: str, name: str, server: ServerConfig, tools: list[Tool]) -> list[Finding]:
    """What is known of the tools, and what is said of tools that are not there."""
    findings: list[Finding] = []
    offered = [tool.name for tool in tools]
    for word in server.tools:
        if word not in offered:
            text = f"[servers.{name}.tools.{word}] is about a tool that it does not offer{nearest(word, offered)}"
            findings.append(warning(about, text, "correct the name, or take the table out"))
    unknown = [tool for tool in tools if not server.tools.get(tool.name) and not _in_table(server, tool)]
    if not unknown:
        return findings
    silent = [tool for tool in unknown if not tool.definition.get("annotations")]
    if silent:
        text = f"says nothing about {_some(silent)}: taken to write and destroy, so missions ask first"
        mend = f"say what you know under [servers.{name}.tools.TOOL], or allow them by a rule under [policy]"
        findings.append(warning(about, text, mend))
    elif not server.trust_annotations:
        text = f"what it says about {_some(unknown)} is not believed"
        findings.append(note(about, text, "trust_annotations = true, if you trust this server"))
    return findings


def _in_table(server: ServerConfig, tool: Tool) -> bool:
    known = recognised(server)
    return known is not None and tool.name in known.tools


def _some(tools: list[Tool], most: int = 3) -> str:
    names = ", ".join(tool.name for tool in tools[:most])
    return names if len(tools) <= most else f"{names} and {len(tools) - most} more of its tools"


async def _ledger(state: Path, open_ledger: Callable[[Path], Ledger]) -> list[Finding]:
    if (absent := _no_ledger(state)) is not None:
        return [absent]
    try:
        ledger = open_ledger(state)
    except PursuitError as error:
        return [broken("ledger", error.message, "see whether the file is yours, and the disk is not full")]
    try:
        with anyio.move_on_after(VERIFY_SECONDS):
            found = await ledger.verify()
            if found.faults:
                mend = "keep a copy, see `pursuit verify`, and restore it from a backup"
                return [broken("ledger", fault, mend) for fault in found.faults[:5]]
            return [fine("ledger", f"{state}: intact, {found.events} events of {found.streams} streams")]
        return [
            note("ledger", f"{state}: too large to check in {VERIFY_SECONDS:g} s", "`pursuit verify` takes its time")
        ]
    except PursuitError as error:
        return [broken("ledger", error.message, "see whether the file is yours, and the disk is not full")]
    finally:
        await ledger.close()


def _no_ledger(state: Path) -> Finding | None:
    """Whether one can be made where there is none; None if there is one."""
    if state.exists():
        return None
    folder = next(parent for parent in state.absolute().parents if parent.exists())
    if not os.access(folder, os.W_OK):
        return broken("ledger", f"{folder} cannot be written", "choose another place with --state")
    return fine("ledger", f"{state}: not there yet; the first mission makes it")


def document(findings: list[Finding]) -> Mapping[str, Any]:
    """The examination as JSON."""
    return {
        "ok": all(finding.level != "broken" for finding in findings),
        "findings": [finding.as_dict() for finding in findings],
    }
