"""What is recorded about a running server: ``server.json`` in its folder, which contains its token and is private."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dagster_ips.local_spark.private_files import require_own, write_private
from dagster_ips.local_spark.process import ProcessIdentity

RECORD_VERSION = 2
_WITHOUT_TOKEN = 1


@dataclass(frozen=True)
class ServerRecord:
    """The content of ``server.json``. A server that isn't ``ready`` is starting, or its starter was killed."""

    process: ProcessIdentity
    port: int
    token: str = field(repr=False)
    ui_port: int | None
    log: str
    configuration: Mapping[str, str] = field(repr=False)
    ready: bool = False
    version: int = RECORD_VERSION

    def unknown_version(self) -> str | None:
        """Why a server that another release of this library started can't be used; None if this release started it."""
        if self.version == _WITHOUT_TOKEN:
            return "an earlier release started it without a token: anyone who can reach its port can run code as you"
        if self.version != RECORD_VERSION:
            return f"another release started it (its record has version {self.version}, expected {RECORD_VERSION})"
        return None


def read_record(folder: Path) -> ServerRecord | None:
    """The record of the server in ``folder``; None if there is none. For other versions, only the process is known.

    A record that is no JSON counts as none: only a crash of the machine leaves one, and no server survives that.

    Raises:
        SparkFolderNotPrivateError: the folder belongs to somebody else, so its content isn't trusted.
    """
    require_own(folder)
    try:
        values = json.loads((folder / "server.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    process = ProcessIdentity(**values["process"])  # In every version, so that any of them can be stopped.
    if values["version"] != RECORD_VERSION:
        log = str(folder / "server.log")
        return ServerRecord(process, 0, "", None, log, {}, version=values["version"])
    return ServerRecord(**(values | {"process": process}))


def write_record(folder: Path, record: ServerRecord) -> None:
    """Write ``record`` into ``folder``."""
    write_private(folder / "server.json", json.dumps(asdict(record), indent=1))
