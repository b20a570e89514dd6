"""How a gateway is to serve.

Owns: the choices that its operator has on the command line. Knows nothing else, so that it costs nothing to import.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Spelling = Literal["dotted", "escaped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """`alone`: it has one client for all time (stdio). `search`: three tools stand for all the others.

    `reloads`: SIGHUP makes it read its configuration again, and does not mean that its terminal has gone. `info`: whose
    answers its own are. `hello_seconds`: for how long discovery waits for the only server.
    """

    alone: bool = False
    spelling: Spelling = "dotted"
    search: bool = False
    reloads: bool = True
    info: Mapping[str, Any] | None = None
    hello_seconds: float | None = None
