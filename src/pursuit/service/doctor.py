"""Examines the installation: finds what is broken or surprising, and says how to fix it.

Invariant: nothing is changed; a fault is a finding with advice and never ends the examination; a finding names the
place of a secret, never its value.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import anyio

from pursuit.config.configuration import JSON_NAME, Configuration, load_configuration
from pursuit.config.files import read_text
from pursuit.config.mission_file import load_mission_file
from pursuit.config.process_environment import no_isolation
from pursuit.config.servers import ServerConfig, expand, is_loopback
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
_INSTALL = {"npx": "install Node.js, which brings npx", "uvx": "install uv, which brings uvx"}

_MODEL_KEYS = {"anthropic": ("ANTHROPIC_API_KEY",), "openai": ("OPENAI_API_KEY", "OPENAI_BASE_URL")}


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    about: str
    what: str
    mend: str = ""

    def as_dict(self) -> dict[str, str]:
        return {key: value for key, value in asdict(self).items() if value or key != "mend"}


fine = partial(Finding, "ok")
note = partial(Finding, "note")
warning = partial(Finding, "warning")
broken = partial(Finding, "broken")


def file_findings(path: Path, servers: Mapping[str, ServerConfig]) -> list[Finding]:
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
            what = f"{file} holds a secret ({', '.join(places[:3])}), and other users of this machine can read it"
            findings.append(warning("configuration", what, f"chmod 600 {file}, or write ${{VARIABLE}} there"))
    return findings


def server_findings(
    name: str, server: ServerConfig, network: NetworkRules, environ: Mapping[str, str]
) -> list[Finding]:
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
    mend = _INSTALL.get(Path(command).name, "install it, or give its full path")
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
    """Finds rules that match no tool: a typo in a `deny` is dangerous. `tools` is None if some are unknown."""
    findings: list[Finding] = []
    policy = configuration.policy
    if policy.mode == "auto":
        mend = advice('`mode = "ask"` in `[policy]`') + " asks before each write"
        findings.append(note("policy", "mode auto: every call that is not denied runs without approval", mend))
    for place, rule in enumerate(policy.rules, start=1):
        if tools is not None and not any(rule.means(tool) for tool in tools):
            names = [tool.name for tool in tools]
            text = f"rule {place} ({rule}) matches no tool of any server{nearest(rule.tool, names)}"
            findings.append(warning("policy", text, "correct its server and tool, or remove it"))
    return findings


SLOW = 10.0
PATIENCE = 60.0
VERIFY_SECONDS = 10.0
_STARTS_NOTHING: dict[str, Any] = {"servers": {}, "commands": {}, "checks": {}, "notify": None}
FULL = 2**20
"""A disk with fewer free bytes counts as full: a mission fills them in seconds."""


async def examine(config: Path | None, state: Path, open_ledger: Callable[[Path], Ledger]) -> list[Finding]:
    findings: list[Finding] = []
    configuration = Configuration.model_construct()
    if config is None:
        mend = f"`{advice('pursuit init')}` writes an example; --config takes a file elsewhere"
        findings.append(warning("configuration", "no pursuit.toml or mcp.json was found here or above", mend))
    else:
        try:
            configuration = load_configuration(config)
            findings.append(fine("configuration", f"{config}: servers: {len(configuration.servers)}"))
            own = of_configuration(configuration)
            require_trusted([] if own is None else [own])
        except NotTrusted as refused:
            mend = str(refused.details.get("trust", "correct its owner and its permissions"))
            findings.append(broken("trust", refused.message, mend))
            configuration = configuration.model_copy(update=_STARTS_NOTHING)
        except ValidationFailed as failed:
            findings += [broken("configuration", str(fault), "correct the file") for fault in failed.faults]
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
    around = [
        *(one.process_environment for one in configuration.commands.values()),
        *(one["process_environment"] for one in configuration.named_checks.values()),
    ]
    asked = any(one.isolation is not None for one in (*configuration.servers.values(), *around))
    why = no_isolation()
    if not why:
        return [fine("isolation", "bubblewrap works here")]
    if asked:
        return [broken("isolation", why, "install bubblewrap, or allow user namespaces")]
    return [fine("isolation", f"not used here; {why}")]


def unattended_findings(configuration: Configuration, environ: Mapping[str, str]) -> list[Finding]:
    """Finds what prevents notifications and schedules, as far as that is visible without trying them."""
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
            program = configuration.base / notify.command[0]
            if not os.access(program, os.X_OK):
                findings.append(
                    broken("notify", f"program {notify.command[0]} was not found", "correct notify.command")
                )
    for name, config in configuration.schedule.items():
        try:
            read_crons({name: config})
            load_mission_file(config.mission)
            findings.append(fine(f"schedule {name}", f"{config.cron}: {config.mission}"))
        except ExtraMissing as missing_extra:
            findings.append(broken("schedule", missing_extra.message, "install it, or remove the schedules"))
        except ValidationFailed as failed:
            mend = "correct it"
            findings += [broken(f"schedule {name}", str(fault), mend) for fault in failed.faults]
    return findings


async def _model(configuration: Configuration) -> Finding:
    """Which language models can be used; without a configured one, as far as that is visible without a request."""
    if configuration.model is not None:
        try:
            await Providers().check(configuration.model)
        except ExtraMissing as missing:
            return broken("models", missing.message, "install it, or remove `model`")
        except ModelUnavailable as error:
            return broken("models", error.message, "set its key, correct its name, or remove `model`")
        return fine("models", f"{configuration.model} can be used; no request was sent")
    if find_spec("pydantic_ai") is None:
        return fine("models", "no language model is installed; pip install 'pursuit[models]' if a mission needs one")
    ready = [name for name, needed in _MODEL_KEYS.items() if any(map(os.environ.get, needed))]
    if ready:
        return fine("models", f"keys in the environment: {', '.join(ready)}")
    variables = " or ".join(needed[0] for needed in _MODEL_KEYS.values())
    return fine("models", f"the environment holds no key; a mission with a language model needs {variables}")


async def _servers(configuration: Configuration) -> list[Finding]:
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
    """The tools of the server, None if it does not answer, and the findings about it."""
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
        mend = "check the address and the headers, and that the server runs"
        if server.url is None:
            mend = f"start {server.command!r} with the same arguments by hand and read its output"
        return None, [broken(about, reason, mend)]
    tools = list(catalogue)
    version = getattr(pool.upstream(name), "protocol_version", None)
    speaks = f", MCP {version}" if version else ""
    findings = [fine(about, f"{len(tools)} tools{speaks}, {seconds:.1f} s to connect")]
    findings += [
        warning(about, text, "report it to the author of the server; its other tools work")
        for text in catalogue.warnings
    ]
    if seconds > SLOW:
        mend = "install the package instead of fetching it at each start, or raise timeouts.connect"
        findings.append(warning(about, f"takes {seconds:.0f} s to connect", mend))
    return tools, [*findings, *_belief(about, name, server, tools)]


def _commands(configuration: Configuration) -> list[Finding]:
    findings: list[Finding] = []
    for name, command in configuration.commands.items():
        try:
            check_startable(command, os.environ)
            findings.append(fine(f"command {name}", "can be started"))
        except ValidationFailed as failed:
            mend = f"correct [commands.{name}], or install its program"
            findings += [broken(f"command {name}", str(fault), mend) for fault in failed.faults]
    return findings


def _belief(about: str, name: str, server: ServerConfig, tools: list[Tool]) -> list[Finding]:
    findings: list[Finding] = []
    offered = [tool.name for tool in tools]
    for word in server.tools:
        if word not in offered:
            text = f"[servers.{name}.tools.{word}] names a tool that the server does not offer{nearest(word, offered)}"
            findings.append(warning(about, text, "correct the name, or remove the table"))
    table = recognised(server)
    known = {*server.tools, *(() if table is None else table.tools)}
    unknown = [tool for tool in tools if tool.name not in known]
    if not unknown:
        return findings
    silent = [tool for tool in unknown if not tool.definition.get("annotations")]
    if silent:
        text = f"does not annotate {_some(silent)}: assumed to write and destroy, so missions ask first"
        known = advice('`read_only = true` in `[servers."{}".tools."{}"]`', name, silent[0].name)
        findings.append(warning(about, text, f"set the traits that you know, as in {known}, or {_ALLOW}"))
    elif not server.trust_annotations:
        text = f"its annotations of {_some(unknown)} are not trusted"
        mend = advice('`trust_annotations = true` in `[servers."{}"]`', name) + ", if you trust the server"
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
            found.append(broken("ledger", error.message, "check that the file is yours"))
    return found


def _place(state: Path) -> list[Finding]:
    """Checks the space for the ledger, the reports and the output of tasks, and that a ledger can be created."""
    folder = next(parent for parent in state.absolute().parents if parent.exists())
    free, writable = shutil.disk_usage(folder).free, os.access(folder, os.W_OK)
    if state.exists() and not writable:
        return [warning("ledger", f"{state} is read-only", "make its folder writable to run missions")]
    if not writable:
        return [broken("ledger", f"{folder} is not writable", "choose another place with --state")]
    found = [] if state.exists() else [fine("ledger", f"{state}: does not exist yet; the first mission creates it")]
    if free < FULL:
        mend = "free disk space, or choose another place with --state"
        found.append(broken("disk", f"the disk of {folder} is full: {free:,} bytes are free", mend))
    return found


async def _verified(state: Path, ledger: Ledger) -> list[Finding]:
    try:
        with anyio.move_on_after(VERIFY_SECONDS):
            found = await ledger.verify(folds=FOLDS)
            if found.faults:
                mend = f"keep a copy, see `{advice('pursuit verify')}`, and restore it from a backup"
                return [broken("ledger", fault, mend) for fault in found.faults[:5]]
            whole = fine("ledger", f"{state}: intact, {found.events} events of {found.streams} streams")
            await ledger.stored()  # a pooler is noticed with the first question
            if not getattr(ledger, "pooled", False):
                return [whole]
            what = "the database is behind a connection pooler: statements are not prepared, and the ledger polls for "
            what += "commits of other processes four times a second"
            return [whole, note("ledger", what, "to see them immediately, name the database itself in --state")]
        mend = advice("pursuit verify") + " checks all of it"
        return [note("ledger", f"{state}: too large to check in {VERIFY_SECONDS:g} s", mend)]
    finally:
        await ledger.close()
