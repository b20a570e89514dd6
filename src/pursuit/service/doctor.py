"""Examines the installation: what is broken, what may surprise, and how to mend it.

Invariant: nothing is changed; a fault is a finding with advice and never ends the examination; no finding holds the
value of a secret, only its place.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import anyio

from pursuit.config.configuration import JSON_NAME, Configuration, load_configuration
from pursuit.config.files import as_table, parse_json, read_text
from pursuit.config.mission_file import load_mission_file
from pursuit.config.servers import ServerConfig, expand, is_loopback
from pursuit.config.surroundings import no_isolation
from pursuit.config.trust import of_configuration, require_trusted
from pursuit.config.variables import expand_variables, holds_literal_secret
from pursuit.core.base_model import nearest
from pursuit.core.catalogue import Catalogue
from pursuit.core.tools import Tool
from pursuit.errors import (
    ExtraMissing,
    ModelUnavailable,
    NotTrusted,
    PursuitError,
    UpstreamUnavailable,
    ValidationFailed,
    advice,
)
from pursuit.ledger.contract import Ledger
from pursuit.policy.rules import NetworkRules, network_ruling
from pursuit.proposers.agent.known_agents import find_agents
from pursuit.proposers.model.provider import Providers
from pursuit.service.command_tools import command_tool
from pursuit.service.notifications import NotDelivered, signature
from pursuit.service.proof import FOLDS
from pursuit.service.schedules import read_crons
from pursuit.service.tasks import check_startable
from pursuit.upstream.known_servers import recognised
from pursuit.upstream.pool import Pool

Level = Literal["ok", "note", "warning", "broken"]

_ALLOW = advice('`{{ tool = "{}", decision = "allow" }}` in `rules` of `[policy]`', "SERVER.TOOL")
_IGNORED = {
    "alwaysAllow": f"is not obeyed here; write {_ALLOW} in pursuit.toml",
    "autoApprove": f"is not obeyed here; write {_ALLOW} in pursuit.toml",
    "timeout": 'is not obeyed here; write "timeouts": { "call": SECONDS }',
}
_INSTALL = {
    "npx": "install Node.js, which brings npx",
    "npm": "install Node.js, which brings npm",
    "node": "install Node.js",
    "uvx": "install uv, which brings uvx",
    "uv": "install uv",
    "docker": "install Docker, or start the server without it",
}

_MODEL_KEYS = {"anthropic": ("ANTHROPIC_API_KEY",), "openai": ("OPENAI_API_KEY", "OPENAI_BASE_URL")}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was examined; `mend` is how to improve it."""

    level: Level
    about: str
    what: str
    mend: str = ""

    def as_dict(self) -> dict[str, str]:
        """The finding as JSON."""
        row = {"level": self.level, "about": self.about, "what": self.what}
        return {**row, "mend": self.mend} if self.mend else row


fine = partial(Finding, "ok")
note = partial(Finding, "note")
warning = partial(Finding, "warning")
broken = partial(Finding, "broken")


def file_findings(path: Path, servers: Mapping[str, ServerConfig]) -> list[Finding]:
    """About the configuration's files: who can read their secrets, and keys that say nothing to us."""
    findings: list[Finding] = []
    secrets = [
        (f"servers.{name}.{at}.{key}", value)
        for name, server in servers.items()
        for at, table in (("env", server.env), ("headers", server.headers))
        for key, value in table.items()
        if holds_literal_secret(key, value)
    ]
    beside = path.with_name(JSON_NAME)
    for file in dict.fromkeys((path, beside)):
        if not secrets or not file.is_file() or not stat.S_IMODE(file.stat().st_mode) & 0o077:
            continue
        text = read_text(file)
        if places := [at for at, value in secrets if value in text]:
            what = f"{file} holds a secret ({', '.join(places[:3])}), and others on this machine can read it"
            findings.append(warning("configuration", what, f"chmod 600 {file}, or write ${{VARIABLE}} there"))
    if beside.is_file():
        findings += _foreign(beside)
    return findings


def _foreign(path: Path) -> list[Finding]:
    """Keys of other hosts that we accept and do not obey."""
    try:
        table = as_table(parse_json(read_text(path), source=str(path))) or {}
    except ValidationFailed:
        return []  # told already, with its place
    findings: list[Finding] = []
    for prefix in ("mcpServers", "servers"):
        for name, entry in (as_table(table.get(prefix)) or {}).items():
            for key in as_table(entry) or {}:
                if key in _IGNORED:
                    findings.append(note("configuration", f"{path} {prefix}.{name}.{key}", f"{key} {_IGNORED[key]}"))
    return findings


def server_findings(
    name: str, server: ServerConfig, network: NetworkRules, environ: Mapping[str, str]
) -> list[Finding]:
    """What keeps a server from being reached, as far as that is seen without trying."""
    about = f"server {name}"
    try:
        ready = expand(server, environ)
    except UpstreamUnavailable as error:
        missing = [f"${{{one['variable']}}} in {one['field']}" for one in error.details["missing"]]
        text = f"needs environment variables that are not set: {', '.join(missing)}"
        return [broken(about, text, "set them, or give a default: ${NAME:-default}")]
    if ready.url is not None:
        return _url(about, ready.url, network)
    command = ready.command or ""
    if shutil.which(command, path=ready.env.get("PATH") or environ.get("PATH")) is not None:
        return []
    mend = _INSTALL.get(Path(command).name, "install it, or write its full path")
    return [broken(about, f"the command {command!r} was not found", mend)]


def _url(about: str, url: str, network: NetworkRules) -> list[Finding]:
    try:
        parts = urlsplit(url)
        scheme, host = parts.scheme, parts.hostname
    except ValueError:
        scheme, host = "", None
    if not host or scheme not in ("http", "https"):
        return [broken(about, "its url is malformed", "write http:// or https:// with a host")]
    if network_ruling(network, url) == "deny":
        return [broken(about, f"the network rules deny {host}", "name it in policy.network.allow, or leave it out")]
    if scheme == "http" and not is_loopback(host):
        text = f"is reached over plain http at {host}: others on the network can read and change everything"
        return [warning(about, text, "use https, or a tunnel to this machine")]
    return []


def rule_findings(configuration: Configuration, tools: Sequence[Tool] | None) -> list[Finding]:
    """Rules that are about nothing: a slip of the pen in a `deny` is dangerous. `tools` is None if some are unknown."""
    findings: list[Finding] = []
    policy = configuration.policy
    if policy.mode == "auto":
        mend = advice('`mode = "ask"` in `[policy]`') + " asks before a write"
        findings.append(note("policy", "mode auto: no call that is not denied asks for approval", mend))
    for place, rule in enumerate(policy.rules, start=1):
        if tools is not None and not any(rule.means(tool) for tool in tools):
            names = [tool.name for tool in tools]
            text = f"rule {place} ({rule}) is about no tool of any server{nearest(rule.tool, names)}"
            findings.append(warning("policy", text, "correct its server and tool, or take it out"))
    return findings


SLOW = 10.0
PATIENCE = 60.0
VERIFY_SECONDS = 10.0
FULL, LOW = 2**20, 200 * 2**20
"""Bytes that are free on a full disk, which a mission fills in seconds, and on one that is almost full."""


async def examine(config: Path | None, state: Path, open_ledger: Callable[[Path], Ledger]) -> list[Finding]:
    """Everything that was found, in the order in which a person would look."""
    findings: list[Finding] = []
    configuration = Configuration()
    if config is None:
        mend = f"`{advice('pursuit init')}` writes an example; --config names a file elsewhere"
        findings.append(warning("configuration", "there is no pursuit.toml or mcp.json here or above", mend))
    else:
        try:
            configuration = load_configuration(config)
            findings.append(fine("configuration", f"{config}: servers: {len(configuration.servers)}"))
            own = of_configuration(configuration)
            require_trusted([] if own is None else [own])
        except NotTrusted as refused:
            mend = str(refused.details.get("trust", "put its owner and its permissions right"))
            findings.append(broken("trust", refused.message, mend))
            configuration = replace(
                configuration, servers={}, commands={}, checks={}, notify=None
            )  # nothing of it is started
        except ValidationFailed as failed:
            findings += [broken("configuration", str(fault), "put the file right") for fault in failed.faults]
        findings += file_findings(config, configuration.servers)
    findings += await _servers(configuration)
    findings += _commands(configuration)
    findings += unattended_findings(configuration, os.environ)
    findings.append(await _model(configuration))
    findings += await _ledger(state, open_ledger)
    findings += isolation_findings(configuration)
    for one in await find_agents():
        words, mend = " ".join(one.command), "repair or remove it, or use another agent"
        works = fine("agent", f"{one.name} {one.version} ({words}) works")
        findings.append(works if one.problem is None else warning("agent", f"{words}: {one.problem}", mend))
    return findings


def isolation_findings(configuration: Configuration) -> list[Finding]:
    """Whether isolation works here; that it does not is broken only where it is asked for."""
    around = [
        *(one.surroundings for one in configuration.commands.values()),
        *(one["surroundings"] for one in configuration.checks.values()),
    ]
    asked = any(one.isolation is not None for one in (*configuration.servers.values(), *around))
    why = no_isolation()
    if not why:
        return [fine("isolation", "bubblewrap works here")]
    if asked:
        return [broken("isolation", why, "install bubblewrap, or allow user namespaces")]
    return [fine("isolation", f"nothing asks for it; {why}")]


def unattended_findings(configuration: Configuration, environ: Mapping[str, str]) -> list[Finding]:
    """What keeps notifications from being sent and schedules from starting, as far as that is seen without trying."""
    findings: list[Finding] = []
    if (notify := configuration.notify) is not None:
        texts = (notify.webhook or "", notify.secret)
        if missing := [name for text in texts for name in expand_variables(text, environ)[1]]:
            what = f"needs environment variables that are not set: {', '.join(missing)}"
            findings.append(broken("notify", what, "set them where missions run"))
        elif notify.webhook is not None:
            try:
                signature(expand_variables(notify.secret, environ)[0], "", "", b"")
            except NotDelivered as wrong:
                findings.append(broken("notify", str(wrong), "correct notify.secret"))
        if notify.command and shutil.which(notify.command[0], path=environ.get("PATH")) is None:
            program = notify.base / notify.command[0]
            if not os.access(program, os.X_OK):
                findings.append(
                    broken("notify", f"{notify.command[0]} is not a program here", "correct notify.command")
                )
    for config in configuration.schedules.values():
        try:
            read_crons([config])
            load_mission_file(config.mission)
            findings.append(fine(f"schedule {config.name}", f"{config.cron}: {config.mission}"))
        except ExtraMissing as missing_extra:
            findings.append(broken("schedule", missing_extra.message, "install it, or take out the schedules"))
        except ValidationFailed as failed:
            mend = "put it right"
            findings += [broken(f"schedule {config.name}", str(fault), mend) for fault in failed.faults]
    return findings


async def _model(configuration: Configuration) -> Finding:
    """Which language models can be asked; without a configured one as far as that is seen without asking."""
    if configuration.model is not None:
        try:
            await Providers().check(configuration.model)
        except ExtraMissing as missing:
            return broken("models", missing.message, "install it, or take out `model`")
        except ModelUnavailable as error:
            return broken("models", error.message, "set its key, correct its name, or take out `model`")
        return fine("models", f"{configuration.model} can be asked; nothing was")
    if find_spec("pydantic_ai") is None:
        return fine("models", "no language model is installed; pip install 'pursuit[models]' if a mission needs one")
    ready = [name for name, needed in _MODEL_KEYS.items() if any(map(os.environ.get, needed))]
    if ready:
        return fine("models", f"keys in the environment: {', '.join(ready)}")
    variables = " or ".join(needed[0] for needed in _MODEL_KEYS.values())
    return fine("models", f"no key is in the environment; a mission with a language model needs {variables}")


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
                mend = advice('`enabled = true` in `[servers."{}"]`', name)
                found[name].append(note(f"server {name}", "is disabled", mend))
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
    """The tools of a server that answers, or None; and the findings about it."""
    about, began = f"server {name}", anyio.current_time()
    catalogue: Catalogue | None = None
    patience = max(PATIENCE, server.timeouts.connect + 1)
    reason = f"it did not answer within {patience:g} s"
    with anyio.move_on_after(patience):
        try:
            catalogue = await pool.catalogue([name])
            reason = catalogue.failures.get(name, "")
        except PursuitError as error:
            reason = error.message
    seconds = anyio.current_time() - began
    if catalogue is None or reason:
        mend = "see whether the address and its headers are right, and whether the server runs"
        if server.url is None:
            mend = f"start {server.command!r} with the same arguments by hand and read what it says"
        return None, [broken(about, reason, mend)]
    tools = list(catalogue)
    version = getattr(pool.upstream(name), "protocol_version", None)
    speaks = f", MCP {version}" if version else ""
    findings = [fine(about, f"{len(tools)} tools{speaks}, {seconds:.1f} s to connect")]
    findings += [
        warning(about, text, "report it to the author of the server; the rest of it works")
        for text in catalogue.warnings
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


def _belief(about: str, name: str, server: ServerConfig, tools: list[Tool]) -> list[Finding]:
    """What is known of the tools, and what is said of tools that are not there."""
    findings: list[Finding] = []
    offered = [tool.name for tool in tools]
    for word in server.tools:
        if word not in offered:
            text = f"[servers.{name}.tools.{word}] is about a tool that it does not offer{nearest(word, offered)}"
            findings.append(warning(about, text, "correct the name, or take the table out"))
    table = recognised(server)
    known = {*server.tools, *(() if table is None else table.tools)}
    unknown = [tool for tool in tools if tool.name not in known]
    if not unknown:
        return findings
    silent = [tool for tool in unknown if not tool.definition.get("annotations")]
    if silent:
        text = f"says nothing about {_some(silent)}: taken to write and destroy, so missions ask first"
        known = advice('`read_only = true` in `[servers."{}".tools."{}"]`', name, silent[0].name)
        findings.append(warning(about, text, f"say what you know where it is configured, as in {known}, or {_ALLOW}"))
    elif not server.trust_annotations:
        text = f"what it says about {_some(unknown)} is not believed"
        mend = advice('`trust_annotations = true` in `[servers."{}"]`', name) + ", if you trust it"
        findings.append(note(about, text, mend))
    return findings


def _some(tools: list[Tool]) -> str:
    names = ", ".join(tool.name for tool in tools[:3])
    return names if len(tools) <= 3 else f"{names} and {len(tools) - 3} more of its tools"


async def _ledger(state: Path, open_ledger: Callable[[Path], Ledger]) -> list[Finding]:
    found = _place(state)
    if os.path.exists(state):  # noqa: ASYNC240, PTH110 - once
        try:
            found += await _verified(state, open_ledger(state))
        except PursuitError as error:
            found.append(broken("ledger", error.message, "see whether the file is yours"))
    return found


def _place(state: Path) -> list[Finding]:
    """Whether there is room for the ledger, the reports and the output of tasks, and whether a ledger can be made."""
    folder = next(parent for parent in state.absolute().parents if parent.exists())
    found = _disk(state, folder)
    if state.exists():
        return found
    if os.access(folder, os.W_OK):
        return [*found, fine("ledger", f"{state}: not there yet; the first mission makes it")]
    return [*found, broken("ledger", f"{folder} cannot be written", "choose another place with --state")]


def _disk(state: Path, folder: Path) -> list[Finding]:
    free, mend = shutil.disk_usage(folder).free, "free some space, or choose another place with --state"
    if state.exists() and not os.access(folder, os.W_OK):
        return [warning("ledger", f"{state} can be read and not written", "make its folder writable to run missions")]
    if free < FULL:
        return [broken("disk", f"the disk of {folder} is full: {free:,} bytes are free", mend)]
    if free < LOW:
        return [warning("disk", f"the disk of {folder} is almost full: {free // 2**20} MB are free", mend)]
    return []


async def _verified(state: Path, ledger: Ledger) -> list[Finding]:
    try:
        with anyio.move_on_after(VERIFY_SECONDS):
            found = await ledger.verify(folds=FOLDS)
            if found.faults:
                mend = f"keep a copy, see `{advice('pursuit verify')}`, and restore it from a backup"
                return [broken("ledger", fault, mend) for fault in found.faults[:5]]
            whole = fine("ledger", f"{state}: intact, {found.events} events of {found.streams} streams")
            await ledger.root()  # a pooler is noticed with the first question
            if not getattr(ledger, "pooled", False):
                return [whole]
            what = "a pooler of connections is before the database: "
            what += "commits of other processes are noticed within a second"
            return [whole, note("ledger", what, "to notice them at once, name the database itself in --state")]
        mend = advice("pursuit verify") + " takes its time"
        return [note("ledger", f"{state}: too large to check in {VERIFY_SECONDS:g} s", mend)]
    finally:
        await ledger.close()
