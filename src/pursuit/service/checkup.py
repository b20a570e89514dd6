"""What the files alone tell of an installation, before anything is started.

Owns: the shape of a finding and the checks that need no connection. Starts nothing and reads only the configuration's
own files. Invariant: no value of a secret gets into a finding, only its place.
"""

from __future__ import annotations

import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pursuit.config.configuration import JSON_NAME, Configuration
from pursuit.config.files import as_table, parse_json, read_text
from pursuit.config.servers import ServerConfig, expand
from pursuit.config.variables import is_telling
from pursuit.core.base_model import nearest
from pursuit.core.tools import Tool
from pursuit.errors import UpstreamUnavailable, ValidationFailed
from pursuit.policy.rules import NetworkRules, network_ruling

Level = Literal["ok", "note", "warning", "broken"]

_IGNORED = {
    "alwaysAllow": 'is not obeyed here; write a rule with decision = "allow" under [policy] in pursuit.toml',
    "autoApprove": 'is not obeyed here; write a rule with decision = "allow" under [policy] in pursuit.toml',
    "timeout": "is not obeyed here; write timeouts = { call = SECONDS } (in mcp.json an object)",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at: how it stands, and how to mend it if it should stand better."""

    level: Level
    about: str
    what: str
    mend: str = ""

    def as_dict(self) -> dict[str, str]:
        """The finding as JSON."""
        row = {"level": self.level, "about": self.about, "what": self.what}
        return {**row, "mend": self.mend} if self.mend else row


def fine(about: str, what: str) -> Finding:
    """It is as it should be."""
    return Finding(level="ok", about=about, what=what)


def note(about: str, what: str, mend: str) -> Finding:
    """It works; this may be worth knowing."""
    return Finding(level="note", about=about, what=what, mend=mend)


def warning(about: str, what: str, mend: str) -> Finding:
    """It works, and may surprise."""
    return Finding(level="warning", about=about, what=what, mend=mend)


def broken(about: str, what: str, mend: str) -> Finding:
    """It does not work."""
    return Finding(level="broken", about=about, what=what, mend=mend)


def file_findings(path: Path, servers: Mapping[str, ServerConfig]) -> list[Finding]:
    """About the configuration's files: who can read their secrets, and keys that say nothing to us."""
    findings: list[Finding] = []
    secrets = [one for name, server in servers.items() for one in _plain_secrets(name, server)]
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


def _plain_secrets(name: str, server: ServerConfig) -> list[tuple[str, str]]:
    """Secrets that stand there as they are, not as a variable: where, and what."""
    tables = (("env", server.env), ("headers", server.headers))
    return [
        (f"servers.{name}.{at}.{key}", value)
        for at, table in tables
        for key, value in table.items()
        if is_telling(key, value)
    ]


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
    return _command(about, ready, environ)


def model_finding(environ: Mapping[str, str], *, installed: bool) -> Finding:
    """Which language models can be asked, as far as that is seen without asking; missions do without one, too."""
    if not installed:
        return fine("models", "no language model is installed; pip install 'pursuit[models]' if a mission needs one")
    ready = [name for name, needed in _MODEL_KEYS.items() if any(environ.get(variable) for variable in needed)]
    if not ready:
        variables = " or ".join(needed[0] for needed in _MODEL_KEYS.values())
        return fine("models", f"no key is in the environment; a mission with a language model needs {variables}")
    return fine("models", f"keys in the environment: {', '.join(ready)}")


def _command(about: str, ready: ServerConfig, environ: Mapping[str, str]) -> list[Finding]:
    command = ready.command or ""
    path = ready.env.get("PATH") or environ.get("PATH")
    if shutil.which(command, path=path) is not None:
        return []
    mend = _INSTALL.get(Path(command).name, "install it, or write its full path")
    return [broken(about, f"the command {command!r} was not found", mend)]


def _url(about: str, url: str, network: NetworkRules) -> list[Finding]:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return [broken(about, "its url is malformed", "write http:// or https:// with a host")]
    if not host or parts.scheme not in ("http", "https"):
        return [broken(about, "its url is malformed", "write http:// or https:// with a host")]
    ruling = network_ruling(network, url)
    if ruling == "deny":
        return [broken(about, f"the network rules deny {host}", "name it in policy.network.allow, or leave it out")]
    if parts.scheme == "http" and not _is_loopback(host):
        text = f"is reached over plain http at {host}: whoever is in between reads and changes everything"
        return [warning(about, text, "use https, or a tunnel to this machine")]
    return []


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def rule_findings(configuration: Configuration, tools: Sequence[Tool] | None) -> list[Finding]:
    """Rules that are about nothing: a slip of the pen in a `deny` is dangerous. `tools` is None if some are unknown."""
    findings: list[Finding] = []
    policy = configuration.policy
    if policy.mode == "auto":
        mend = 'mode = "ask" asks before a write'
        findings.append(note("policy", "mode auto: nobody is asked before a call that is not denied", mend))
    for place, rule in enumerate(policy.rules, start=1):
        if tools is not None and not any(rule.means(tool) for tool in tools):
            names = [tool.name for tool in tools]
            text = f"rule {place} ({rule}) is about no tool of any server{nearest(rule.tool, names)}"
            findings.append(warning("policy", text, "correct its server and tool, or take it out"))
    return findings
