"""The ports on which a process listens, and the processes that it has started."""

from __future__ import annotations

import contextlib
import socket
from itertools import chain
from pathlib import Path

_LISTENING = "0A"


def listening_ports(pid: int) -> set[int]:
    """The TCP ports on which the process ``pid`` listens, according to Linux."""
    sockets = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(str(each.readlink()))
    rows = [
        row.split() for table in ("tcp", "tcp6") for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()
    ]
    return {
        int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == _LISTENING and f"socket:[{row[9]}]" in sockets
    }


def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def descendants(pid: int) -> list[int]:
    """The processes that ``pid`` started, directly or indirectly."""
    # Each of its threads has the children that it started.
    listed = [each.read_text().split() for each in Path(f"/proc/{pid}/task").glob("*/children")]
    return [found for child in map(int, chain.from_iterable(listed)) for found in (child, *descendants(child))]
