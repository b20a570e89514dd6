"""Resolves and binds the address of the HTTP server, and lists the Host and Origin values that it accepts.

Invariants: an address that other machines can reach is bound only if a token exists; a unix socket serves only the user
who runs the server.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import stat
import struct
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcp.server.transport_security import TransportSecuritySettings

from pursuit.errors import InvalidArgument, advice
from pursuit.ledger.locks import PRIVATE_FILE, open_private
from pursuit.server.tokens import PAGE_NAME, Tokens
from pursuit.upstream.fixed_patterns import AUTHORITY

if TYPE_CHECKING:
    from pursuit.server.oauth import OAuth

PATH: Final = "/mcp"
PAGE_PATH: Final = "/page"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_DEFAULT_PORTS = {80: "http", 443: "https"}
_HIGHEST_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class BindAddress:
    host: str
    family: socket.AddressFamily
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address

    @property
    def is_loopback(self) -> bool:
        return self.ip.is_loopback

    def names(self) -> list[str]:
        """The hosts that a client may write in a URL of this server."""
        own = socket.gethostname()
        beyond = [] if self.is_loopback else [own, own.lower()]
        asked = [] if self.ip.is_unspecified else [_in_url(self.host), _in_url(str(self.ip))]
        return list(dict.fromkeys([*_LOOPBACK, *asked, *beyond]))

    def url(self, port: int) -> str:
        """An address of the server that a client on this machine can use."""
        here = "[::1]" if self.family == socket.AF_INET6 else "127.0.0.1"
        return f"http://{here if self.ip.is_unspecified else _in_url(self.host)}:{port}{PATH}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpBinding:
    """The HTTP address and its tokens; with `operators` the server also takes answers to approvals.

    With `oauth`, tokens of an authorization server are also accepted. With `unix_socket`, the peer is identified by its
    user id. `new_token` was created for this server.
    """

    host: str = "127.0.0.1"
    port: int = 0
    unix_socket: Path | None = None
    tokens: Tokens | None = None
    operators: Tokens | None = None
    oauth: OAuth | None = None
    allowed_hosts: Sequence[str] = ()
    new_token: str | None = field(default=None, repr=False)

    def listen(self) -> Listener:
        if self.unix_socket is not None:
            local = TransportSecuritySettings(allowed_hosts=["localhost"], allowed_origins=["http://localhost"])
            path = self.unix_socket.absolute()
            sock, made = bind_unix(path)
            return Listener(sock, local, f"http://localhost{PATH}", path, made)
        address = check_bind(self.host, self.tokens, oauth=self.oauth is not None)
        listener = bind(address, self.port)
        try:
            port = listener.getsockname()[1]
            return Listener(listener, guard(address, port, self.allowed_hosts), address.url(port))
        except BaseException:
            listener.close()
            raise


@dataclass(frozen=True, slots=True)
class Listener:
    sock: socket.socket
    known: TransportSecuritySettings
    url: str
    path: Path | None = None
    made: os.stat_result | None = None
    """The stat of the unix socket's file at `path` when it was created."""

    def close(self) -> None:
        """Closes the socket and removes its file, unless another server has replaced it."""
        if self.path is not None and self.made is not None:
            # Before the socket is closed: until then no other file can have its inode number.
            with suppress(FileNotFoundError):
                if os.path.samestat(self.path.lstat(), self.made):
                    self.path.unlink()
        self.sock.close()


def check_bind(host: str, tokens: Tokens | None, *, oauth: bool = False) -> BindAddress:
    """Refuses an address that other machines can reach unless a token or an authorization server exists."""
    address = resolve(host)
    made = tokens is not None and any(one.name != PAGE_NAME for one in tokens.holders())  # by a person
    if not address.is_loopback and not oauth and not made:
        lacking = "clients do not need a token" if tokens is None else "there is no token yet"
        raise InvalidArgument(
            f"other machines can reach {address.host}, and {lacking}; create one with `{advice('pursuit token')}`, "
            "or listen on 127.0.0.1",
            host=address.host,
        )
    return address


def resolve(host: str) -> BindAddress:
    """The address of a host: the first IPv4 address, else the first address."""
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, ValueError) as error:  # ValueError: no possible host name
        raise InvalidArgument(
            f"{host!r} is not an address or a known name of this machine; use 127.0.0.1 for this machine only, "
            "0.0.0.0 for all its addresses",
            host=host,
        ) from error
    family, _, _, _, name = min(found, key=lambda one: one[0] != socket.AF_INET)
    # A link-local address contains its interface after a %, which `ip_address` does not accept.
    ip = ipaddress.ip_address(str(name[0]).partition("%")[0])
    return BindAddress(host=host or str(ip), family=family, ip=ip)


def bind(address: BindAddress, port: int) -> socket.socket:
    """A listening socket; port 0 selects a free port."""
    if not 0 <= port <= _HIGHEST_PORT:
        raise InvalidArgument(f"{port} is not a port; use 1 to {_HIGHEST_PORT}, or 0 for any free one", port=port)
    try:
        listener = socket.create_server((str(address.ip), port), family=address.family, backlog=128)
        # Connections inherit this option. asyncio sets it only on its own sockets; without it a response takes 40 ms
        # longer (Nagle's algorithm waits for the delayed acknowledgement).
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        raise InvalidArgument(
            f"cannot listen on port {port} of {address.host}: {error.strerror or error}; choose another port or "
            "address, or port 0 for any free one",
            host=address.host,
            port=port,
        ) from error


def bind_unix(path: Path) -> tuple[socket.socket, os.stat_result]:
    """A listening unix socket that only this user can open, and its file; replaces the socket of a dead server."""
    if not hasattr(socket, "SO_PEERCRED"):
        raise InvalidArgument("a unix socket needs SO_PEERCRED, which this system lacks; use --http", socket=str(path))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _alone_at(path):
            _remove_dead(path)
            listener.bind(str(path))
            made = path.lstat()
            path.chmod(PRIVATE_FILE)  # before it listens: until then the kernel refuses connections
            listener.listen(128)
    except (OSError, InvalidArgument) as error:
        listener.close()
        if isinstance(error, InvalidArgument):
            raise
        reason = error.strerror or error  # a path that is too long has no number
        raise InvalidArgument(f"cannot listen on {path}: {reason}; name another file", socket=str(path)) from error
    return listener, made


@contextmanager
def _alone_at(path: Path) -> Generator[None]:
    """Locks out other servers: a socket that is bound but not yet listening looks like that of a dead server.

    The lock file stays: after its removal, two other servers could each lock a new file.
    """
    descriptor = open_private(path.with_name(f"{path.name}.lock"))
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(path) from None
        yield
    finally:
        os.close(descriptor)


def _remove_dead(path: Path) -> None:
    """Removes a socket that no process listens on; raises `InvalidArgument` for anything else."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise InvalidArgument(f"{path} exists and is not a socket; name another file", socket=str(path))
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise _in_use(path)


def _in_use(path: Path) -> InvalidArgument:
    return InvalidArgument(f"{path} is in use by another process; name another file", socket=str(path))


def peer_uid(connection: socket.socket) -> int:
    """The user id of a unix socket's peer, from the kernel (unix(7), SO_PEERCRED)."""
    form = "3i"
    _pid, uid, _gid = struct.unpack(
        form, connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(form))
    )
    return uid


def guard(address: BindAddress, port: int, allowed_hosts: Sequence[str]) -> TransportSecuritySettings:
    """The exact Host and Origin values that the server accepts, against DNS rebinding."""
    hosts = [f"{name}:{port}" for name in address.names()]
    if port in _DEFAULT_PORTS:
        hosts += address.names()  # clients omit the default port of their scheme
    origins = [f"http://{host}" for host in hosts]
    for given in allowed_hosts:
        found = AUTHORITY.fullmatch(given)
        if found is None:
            raise InvalidArgument(
                f"{given!r} is not a valid host: write a name or an address, with :PORT unless it is the default "
                "(no scheme, no path, no *)",
                host=given,
            )
        more = [given] if found["port"] else [given, f"{given}:{port}"]
        hosts += more
        # A TLS proxy may be in front of a named host.
        origins += [f"{scheme}://{host}" for scheme in ("http", "https") for host in more]
    return TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=origins)


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
