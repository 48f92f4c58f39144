"""Where a process listens."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

_LISTENING = "0A"


def free_port() -> int:
    """One of 127.0.0.1 on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listening_ports(pid: int) -> set[int]:
    """The TCP ports on which the process ``pid`` listens, as Linux tells."""
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
