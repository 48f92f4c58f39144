"""Processes that outlive their starter: launched detached, recognized later, stopped by their own id."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# If Ctrl-C is ignored, as with nohup, Dagster makes its processes ignore SIGTERM as well, and so do those that they
# start. Python itself ignores the other two.
_WITH_DEFAULT_SIGNALS = """
import os, signal, sys
for each in (signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(each, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""


@dataclass(frozen=True)
class ProcessIdentity:
    """A process that can't be confused with a later one that has the same id: ``started`` is its start time."""

    pid: int
    started: str

    def is_alive(self) -> bool:
        """Whether exactly this process still runs. A dead process that its parent hasn't reaped (a zombie) doesn't.

        >>> own = identity_of(os.getpid())
        >>> own.is_alive(), ProcessIdentity(own.pid, "at another time").is_alive()
        (True, False)
        """
        return identity_of(self.pid) == self

    def stop(self, grace_seconds: float = 20.0) -> bool:
        """Ask the process to end, and kill it after ``grace_seconds``. Return whether it was alive."""
        if not self.is_alive():
            return False
        for order, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 10.0)):
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                # Sent again: a process that has just been launched may not handle it yet.
                try:
                    os.kill(self.pid, order)
                except ProcessLookupError:
                    return True
                if self._ends_within(min(1.0, seconds)):
                    return True
        return True

    def _ends_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.is_alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


def identity_of(pid: int) -> ProcessIdentity | None:
    """The process that has the id ``pid`` now; None if there is none, or only a zombie.

    >>> identity_of(os.getpid()).pid == os.getpid()
    True
    """
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            # The name in parentheses may contain anything, so fields are counted from its end. Of all fields, state is
            # the 3rd, and the start time, in clock ticks since boot, is the 22nd.
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else ProcessIdentity(pid, fields[19])
    listed = subprocess.run(
        ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)],
        env=os.environ | {"LC_ALL": "C"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    ).stdout
    state, _, started = listed.strip().partition(" ")
    return None if state.startswith("Z") or not started else ProcessIdentity(pid, started.strip())


def launch_detached(command: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path) -> ProcessIdentity:
    """Start ``command`` in a session of its own, with its output in ``log``, and not as a child of this process.

    A shell starts it in the background and ends at once, so the process survives the caller, and the caller never has
    to reap it. The returned id stays that of ``command`` as long as it ends in ``exec``, as Spark's scripts do. The
    process handles SIGTERM even if the caller ignores it.
    """
    started = subprocess.run(
        ["/bin/sh", "-c", '"$@" >"$LAUNCH_LOG" 2>&1 </dev/null & echo $!', "sh", *_with_default_signals(command)],
        env={**env, "LAUNCH_LOG": str(log)},
        cwd=cwd,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    pid = int(started.stdout)
    # If the command has failed already, the caller still gets a process: a dead one.
    return identity_of(pid) or ProcessIdentity(pid, "ended at once")


def _with_default_signals(command: Sequence[str]) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", _WITH_DEFAULT_SIGNALS, *command]
