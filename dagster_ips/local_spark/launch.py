"""What every start of a Spark process needs: where Spark and the cache are, its environment, a lock."""

import fcntl
import hashlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pyspark

from dagster_ips.local_spark.private_files import must_be_usable

_WAIT_SECONDS = 10
LEFT_OUT = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "PYSPARK_SUBMIT_ARGS", "SPARK_DAEMON_MEMORY")
"""Variables that would silently make a Spark process a different one.

The first two make it a client instead of a server; PySpark sets the second in any process that has a Connect session.
The last overrides the requested heap.
"""


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder for what can be downloaded or started again: Spark's jars and the local Connect server.

    ``DAGSTER_IPS_CACHE`` if it is set, else ``dagster_ips`` in the XDG cache home. The folder need not exist yet.

    >>> cache_folder({"DAGSTER_IPS_CACHE": "/data/cache"}).as_posix()
    '/data/cache'
    >>> cache_folder({"XDG_CACHE_HOME": "/home/ada/.cache"}).as_posix()
    '/home/ada/.cache/dagster_ips'
    """
    if chosen := environment.get("DAGSTER_IPS_CACHE"):
        return Path(chosen).absolute()
    xdg = environment.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache").absolute() / "dagster_ips"


def default_server_folder() -> Path:
    """The folder of this Python environment's Spark: one of another environment may have other packages."""
    environment = hashlib.blake2b(sys.prefix.encode(), digest_size=4).hexdigest()
    return cache_folder() / f"spark-connect-{environment}"


def spark_home() -> Path:
    """The Spark distribution to start processes from: ``SPARK_HOME``, else the one inside the pyspark package."""
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent).absolute()


def spark_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a process started with ``spark-submit``: this Python, this machine only.

    The caller's variables in ``LEFT_OUT`` are left out.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    return inherited | {
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",  # The UI has no other setting for the address that it binds.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        **(extra or {}),
    }


@contextmanager
def exclusive_lock(path: Path, *, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock file ``path`` (created if missing) against every other process and thread; waits for it.

    ``on_wait`` is called if it has to wait, and again every ten seconds while it does.

    The lock ends with its holder: a killed process leaves none behind, and child processes don't inherit it.

    Raises:
        SparkFolderUnusableError: its folder can't be created or written to.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, exclusive_lock(Path(folder) / "cache" / "lock"):
    ...     print("alone")
    alone
    """
    with must_be_usable(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("a")
    with lock:
        _acquire(lock, on_wait)
        yield


def _acquire(lock: TextIO, on_wait: Callable[[], None]) -> None:
    said = -math.inf
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if (now := time.monotonic()) - said >= _WAIT_SECONDS:
                said = now
                on_wait()
            time.sleep(0.1)
        else:
            return


def last_lines(text: str, count: int = 15) -> str:
    r"""The last ``count`` lines with content, indented for the end of an error message.

    Frames of Java stack traces are left out, so that the exception's own message is visible.

    >>> print(last_lines("one\n\ntwo\n\tat a.b.C(D.java:1)\nthree\n", 2))
      two
      three
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    return "\n".join(f"  {line}" for line in lines[-count:])
