"""The backends of the ledger, each with what it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from ledger_backends import BACKENDS, SQLITE, Backend, on_postgres
from postgres_server import databases


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    version = BACKENDS[request.param]
    if version is None:
        yield SQLITE
        return
    servers: Callable[[int], str] = request.getfixturevalue("postgres_servers")
    with databases(servers(version), request) as new:
        yield on_postgres(request.param, new)
