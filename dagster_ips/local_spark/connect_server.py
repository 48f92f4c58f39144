"""The local Spark that stays warm between runs: one Spark Connect server on this machine, shared by all processes.

Each Dagster run is a process of its own, and starting a JVM and reading a first Iceberg table would cost each of them
ten seconds or more. The first process that needs the server starts it, warms it up and records it in ``server.json``,
where the next ones find it. It listens only on 127.0.0.1, answers only requests with its token, and keeps running until
it is stopped:

    python -m dagster_ips.local_spark.connect_server start|stop|status [--folder FOLDER]
    eval "$(python -m dagster_ips.local_spark.connect_server environment)"   # for PySpark in this shell

Anyone who can send it a query can run code as its owner. The token changes with each start. It is kept in
``server.json``, which only the owner can read, and is passed to the server through its environment, because everyone
can read a command line.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

import pyspark

from dagster_ips.errors import IpsError
from dagster_ips.local_spark.jars import EXTRAS, jar_paths, spark_jars
from dagster_ips.local_spark.launch import (
    default_server_folder,
    exclusive_lock,
    last_lines,
    spark_environment,
    spark_home,
)
from dagster_ips.local_spark.private_files import SparkFolderNotPrivateError, make_private, require_own, write_private
from dagster_ips.local_spark.process import ProcessIdentity, launch_detached
from dagster_ips.local_spark.properties_file import properties_text
from dagster_ips.local_spark.server_record import ServerRecord, read_record, write_record
from dagster_ips.spark.session import EXTENSIONS, REDACTED, connect_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_SECONDS = 120
WARM_UP_SECONDS = 180
SAY_SECONDS = 5
PORT_ATTEMPTS = 3
NO_CONF: Mapping[str, str] = MappingProxyType({})
WITH_UI: Mapping[str, str] = MappingProxyType({"spark.ui.enabled": "true"})
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  # the name that Spark gives it
_SHOWN = frozenset(
    {"python", "pyspark", "SPARK_HOME", "spark.driver.memory", "spark.jars", "spark.master", "spark.ui.enabled"}
)


@dataclass(frozen=True)
class ConnectServer:
    """A running server at ``remote`` (``sc://127.0.0.1:port``) that answers clients that have its ``token``.

    ``ui`` serves Spark's page and REST API, to everyone on this machine; None if it wasn't requested.
    """

    remote: str
    process: ProcessIdentity
    log: Path
    ui: str | None
    token: str = field(repr=False)

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self.process.pid

    def session(self, configuration: Mapping[str, str] = NO_CONF) -> SparkSession:
        """A separate session on the server. If the server has ended, using the session raises a `SparkEndedError`."""
        return connect_session(self.remote, configuration, token=self.token, ended=self._ended)

    def _ended(self) -> SparkEndedError | None:
        return None if self.process.is_alive() else SparkEndedError(self.pid, str(self.log))

    def environment(self) -> dict[str, str]:
        """The variables by which a process that has only PySpark, without this library, finds the server.

        PySpark insists on the name ``localhost``. If that is also ``::1``, and the machine has other users, they could
        listen there and receive the token: on such machines use ``session``, which connects to 127.0.0.1.
        """
        return {"SPARK_REMOTE": self.remote.replace("127.0.0.1", "localhost"), TOKEN_VARIABLE: self.token}


@dataclass(eq=False)
class SparkStartError(IpsError):
    """The local Spark Connect server did not come up."""

    problem: str
    log: str
    output: str

    def __str__(self) -> str:
        return (
            f"The local Spark Connect server {self.problem}. No data was touched. Check memory, disk and the Java in "
            "JAVA_HOME or on the PATH (17 or later, with the module jdk.incubator.vector), then run again. The full "
            f"log is {self.log}; it ends with:\n{last_lines(self.output)}"
        )


@dataclass(eq=False)
class SparkEndedError(IpsError):
    """The local Spark Connect server ended while it was in use."""

    pid: int
    log: str

    def __str__(self) -> str:
        return (
            f"The local Spark (process {self.pid}) ended while it was in use: someone stopped it, or the machine ran "
            "out of memory. Anything not yet published isn't visible and doesn't count as consumed. Run again: that "
            f"starts a new Spark. If it ended by itself, its log says why: {self.log}, or server.previous.log next to "
            "it once a new one has started. If the kernel's log (dmesg) says that it was killed for lack of memory, "
            "add memory or run less at the same time."
        )


@dataclass(eq=False)
class SparkServerDiffersError(IpsError):
    """A server with another configuration runs in the folder, perhaps for another process."""

    folder: str
    pid: int
    differences: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"A Spark Connect server runs in {self.folder} (process {self.pid}) with a different configuration than "
            f"requested: {'; '.join(self.differences)}. Using it could give different results, and someone else may be "
            "using it, so it was left running. Stop it with\n  python -m dagster_ips.local_spark.connect_server stop "
            f"--folder {shlex.quote(self.folder)}\nor use another folder: LocalSparkConnect(server_folder=...)."
        )


def ensure_connect_server(  # noqa: PLR0913  # all are independent
    folder: Path | None = None,
    *,
    driver_memory: str = "2g",
    cores: int | None = None,
    conf: Mapping[str, str] = NO_CONF,
    jars: Sequence[Path] | None = None,
    extra_jars: Collection[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> ConnectServer:
    """The server of ``folder``: the one that runs there, otherwise a new one, started and warmed up.

    A start takes about 20 seconds, and minutes on a machine that is busy or has to download Spark's jars.

    Processes that ask at the same time get the same server. A server that died or doesn't answer is replaced.

    Args:
        folder: Holds ``server.json``, the lock and the log; `default_server_folder` if None.
        driver_memory: The JVM's heap, as Spark writes sizes (``"2g"``). Local Spark has no other memory.
        cores: Threads for tasks; every core of the machine if None.
        conf: Spark configuration that is set last. ``spark.jars`` and ``spark.plugins`` are added to the needed ones.
        jars: What Spark loads from the start; `spark_jars` if None.
        extra_jars: Names in `EXTRAS`, which are loaded as well; ignored if ``jars`` are given.
        say: Called with a sentence about each thing that takes long; not called if the server runs already.

    Example:
        >>> import tempfile
        >>> connect_server_status(Path(tempfile.mkdtemp())) is None
        True

    Raises:
        SparkServerDiffersError: a live server there was started with other arguments, another Python or another Spark.
        SparkFolderUnusableError: the folder can't be created or written to.
        SparkFolderNotPrivateError: the folder is somebody else's, or holds other things and is open to others.
        SparkStartError: a new server did not come up. Nothing is left running.
    """
    folder = _folder(folder)
    make_private(folder, markers=("lock", "server.json"))
    jars = spark_jars(extras=extra_jars, say=say) if jars is None else jars
    configuration = _configuration(folder, driver_memory=driver_memory, cores=cores, conf=conf, jars=jars)
    with exclusive_lock(folder / "lock", on_wait=lambda: say(f"Another process is starting Spark in {folder}.")):
        if record := read_record(folder):
            if (difference := record.unknown_version()) and record.process.is_alive():
                raise SparkServerDiffersError(str(folder), record.process.pid, (difference,))
            if record.ready and record.process.is_alive() and _answers(record.port):
                if differences := _differences(record.configuration, configuration):
                    raise SparkServerDiffersError(str(folder), record.process.pid, differences)
                return _server(record)
            _stop(folder, record)
        return _start(folder, configuration, say)


def connect_server_status(folder: Path | None = None) -> ConnectServer | None:
    """The server that runs in ``folder`` and answers, or None. Starts nothing and waits for nobody.

    >>> import tempfile
    >>> connect_server_status(Path(tempfile.mkdtemp())) is None
    True
    """
    record = read_record(_folder(folder))
    if record and record.ready and not record.unknown_version() and record.process.is_alive() and _answers(record.port):
        return _server(record)
    return None


def connect_server_problem(
    folder: Path | None = None,
    *,
    driver_memory: str = "2g",
    cores: int | None = None,
    conf: Mapping[str, str] = NO_CONF,
    extra_jars: Collection[str] = (),
) -> str | None:
    """Why a run couldn't use the server that runs in ``folder``; None if it could, or if none runs there.

    Starts nothing, downloads nothing and waits for nobody. A server that is starting is no problem.
    """
    folder = _folder(folder)
    try:
        record = read_record(folder)
    except SparkFolderNotPrivateError as error:
        return f"it {error.problem}."
    if record is None or not record.process.is_alive():
        return None
    if difference := record.unknown_version():
        return f"process {record.process.pid}: {difference}."
    if record.ready and not _answers(record.port):
        return f"process {record.process.pid} runs but doesn't answer. Its log: {record.log}"
    jars = jar_paths(extras=extra_jars)
    wanted = _configuration(folder, driver_memory=driver_memory, cores=cores, conf=conf, jars=jars)
    if differences := _differences(record.configuration, wanted):
        return f"process {record.process.pid} has a different configuration: {'; '.join(differences)}."
    return None


def stop_connect_server(folder: Path | None = None) -> bool:
    """Stop the server of ``folder``, with whatever it is running. Return whether there was one alive.

    >>> import tempfile
    >>> stop_connect_server(Path(tempfile.mkdtemp()))
    False
    """
    folder = _folder(folder)
    require_own(folder)
    if not (folder / "server.json").exists():
        return False
    with exclusive_lock(folder / "lock"):
        record = read_record(folder)
        return record is not None and _stop(folder, record)


def _folder(folder: Path | None) -> Path:
    return (folder or default_server_folder()).absolute()


def _configuration(
    folder: Path, *, driver_memory: str, cores: int | None, conf: Mapping[str, str], jars: Sequence[Path]
) -> dict[str, str]:
    """Everything that defines this server, except its ports, which differ from start to start."""

    def with_more(key: str, *own: str) -> str:
        return ",".join([*own, *filter(None, [conf.get(key)])])

    return {
        "spark.master": f"local[{cores or '*'}]",
        "spark.driver.memory": driver_memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        # The UI shows queries to everyone on this machine, and would let them end jobs.
        "spark.ui.enabled": "false",
        "spark.ui.killEnabled": "false",
        # For the ports by which Spark's parts talk to each other. In local mode, Spark generates the secret.
        "spark.authenticate": "true",
        # Rows of shuffles and uploaded code: in the machine's default folder, every user could read them.
        "spark.local.dir": str(folder / "scratch"),
        # By default, the JVM collects its whole heap several times while it loads Spark's classes.
        "spark.driver.defaultJavaOptions": f'"-Djava.io.tmpdir={folder / "scratch"}" -XX:+ExplicitGCInvokesConcurrent '
        "-XX:MetaspaceSize=256m",
        # If a port was taken in the meantime, Spark must fail, and not move to a port that nobody knows.
        "spark.port.maxRetries": "0",
        # Runs of the same assets use the same generated code; Spark's default of 100 is enough for few assets only.
        "spark.sql.codegen.cache.maxEntries": "1000",
        # A run's session ends with the run. What it held, such as a connection to the catalog's database, is freed by
        # the next collection, once Spark's threads that the run started have ended, which they do after a minute.
        "spark.cleaner.periodicGC.interval": "1min",
        "spark.sql.extensions": EXTENSIONS,
        "spark.sql.session.timeZone": "UTC",
        # Spark's default of 200 is for clusters: on one machine most of a small shuffle's time goes into its files.
        "spark.sql.shuffle.partitions": str(2 * (cores or os.cpu_count() or 1)),
        "spark.sql.warehouse.dir": (folder / "spark-warehouse").as_uri(),
        "spark.redaction.regex": REDACTED,
        # At INFO the log of a server that runs for weeks grows by megabytes a day.
        "spark.log.level": "WARN",
        **conf,
        "spark.jars": with_more("spark.jars", *map(str, jars)),
        "spark.plugins": with_more("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin"),
        # Not Spark's settings, but a server that differs in them runs user functions elsewhere or in another Spark.
        "python": sys.prefix,
        "pyspark": pyspark.__version__,
        "SPARK_HOME": str(spark_home()),
    }


def _differences(running: Mapping[str, str], wanted: Mapping[str, str]) -> tuple[str, ...]:
    """What keeps a server from being used. A server with a UI or more jars also serves those who asked for none."""
    return tuple(
        f"{key} is {_shown(key, running)}, requested {_shown(key, wanted)}"
        for key in sorted(running.keys() | wanted.keys())
        if running.get(key) != wanted.get(key)
        and (key, wanted.get(key)) != ("spark.ui.enabled", "false")
        and not (key == "spark.jars" and _has_more_extras(running.get(key, ""), wanted.get(key, "")))
    )


def _has_more_extras(running: str, wanted: str) -> bool:
    extras, asked = {package.file_name for package in EXTRAS.values()}, wanted.split(",")
    return [jar for jar in running.split(",") if jar in asked or Path(jar).name not in extras] == asked


def _shown(key: str, configuration: Mapping[str, str]) -> str:
    """A value as errors may show it: any other value that a user configures may contain a password."""
    if key not in configuration:
        return "unset"
    return configuration[key] if key in _SHOWN else "a hidden value"


def _start(folder: Path, configuration: Mapping[str, str], say: Callable[[str], None]) -> ConnectServer:
    """Start and warm up a server; the caller holds the lock. Other ports are tried if someone took the chosen ones."""
    started = time.monotonic()
    for attempt in range(1, PORT_ATTEMPTS + 1):
        record = _launch(folder, configuration)
        say(
            "Starting a Spark server, which later runs reuse (about 20 seconds, longer on a busy machine; log: "
            f"{record.log})."
        )
        try:
            _await_port(record, say)
            say("Spark is up. Warming it up with a first query.")
            _warm_up(record, say)
        except SparkStartError as error:
            _stop(folder, record)
            if attempt == PORT_ATTEMPTS or "BindException" not in error.output:
                raise
        except BaseException:  # An interrupted start leaves nothing running.
            _stop(folder, record)
            raise
        else:
            ready = replace(record, ready=True)
            write_record(folder, ready)
            say(f"Spark is ready after {time.monotonic() - started:.0f} seconds (process {record.process.pid}).")
            return _server(ready)
    raise AssertionError  # The last attempt returns or raises.


def _launch(folder: Path, configuration: Mapping[str, str]) -> ServerRecord:
    log = folder / "server.log"
    if log.exists():
        log.replace(folder / "server.previous.log")
    port, free_ui_port = _free_ports(2)
    ui_port = free_ui_port if configuration["spark.ui.enabled"] == "true" else None
    spark_conf = {key: value for key, value in configuration.items() if key.startswith("spark.")} | {
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.port": str(free_ui_port),
    }
    properties = folder / "spark.properties"
    write_private(properties, properties_text(spark_conf))
    (folder / "scratch").mkdir(exist_ok=True)
    command = [
        str(spark_home() / "bin" / "spark-submit"),
        *("--name", "dagster_ips"),
        *("--properties-file", str(properties), "--load-spark-defaults"),
        str(Path(__file__).with_name("driver.py")),
    ]
    token = secrets.token_urlsafe(32)
    # This package's file names must not shadow those of others.
    environment = spark_environment({TOKEN_VARIABLE: token, "PYTHONSAFEPATH": "1"})
    process = launch_detached(command, env=environment, cwd=folder, log=log)
    record = ServerRecord(process, port, token, ui_port, str(log), configuration)
    try:
        write_record(folder, record)
    except BaseException:  # Nobody would know the server, or stop it: the disk may be full.
        process.stop()
        raise
    return record


def _free_ports(count: int) -> list[int]:
    """Ports that are free now, all held until the last is found so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for held in sockets:
            held.bind(("127.0.0.1", 0))
        return [int(held.getsockname()[1]) for held in sockets]
    finally:
        for held in sockets:
            held.close()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError:
        return False
    return True


def _every_few_seconds(say: Callable[[str], None]) -> Callable[[str], None]:
    """A function that reports what it is given, and for how long it has lasted, but only every ``SAY_SECONDS``."""
    started = said = time.monotonic()

    def say_so(what: str) -> None:
        nonlocal said
        if (now := time.monotonic()) - said >= SAY_SECONDS:
            said = now
            say(f"{what} ({now - started:.0f} s)")

    return say_so


def _await_port(record: ServerRecord, say: Callable[[str], None]) -> None:
    deadline, still = time.monotonic() + START_SECONDS, _every_few_seconds(say)
    while not _answers(record.port):
        still("Spark's JVM is starting.")
        if not record.process.is_alive():
            _fail("ended before it answered", record)
        if time.monotonic() > deadline:
            _fail(f"did not answer within {START_SECONDS} seconds", record)
        time.sleep(0.1)


def _warm_up(record: ServerRecord, say: Callable[[str], None]) -> None:
    """Run a first client in a separate process, so that this one's Spark sessions and environment stay untouched.

    The server is watched meanwhile: if someone else got the port first, the client talks to them while this server
    ends.
    """
    script = Path(__file__).with_name("warm_up.py")
    inherited = {name: value for name, value in os.environ.items() if name not in {"SPARK_REMOTE", "SPARK_HOME"}}
    environment = inherited | {TOKEN_VARIABLE: record.token, "PYTHONPATH": _python_path()}
    deadline, still = time.monotonic() + WARM_UP_SECONDS, _every_few_seconds(say)
    with tempfile.NamedTemporaryFile("w+", errors="replace") as output:
        client = subprocess.Popen(
            [sys.executable, "-P", str(script), _remote(record)],  # -P: file names here must not shadow others.
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            while client.poll() is None:
                still(f"Spark is warming up: {_last_line(Path(output.name)) or 'starting its client'}.")
                if not record.process.is_alive():
                    _fail("ended during warm-up", record)
                if time.monotonic() > deadline:
                    _fail(f"did not run a first query within {WARM_UP_SECONDS} seconds", record)
                time.sleep(0.1)
        finally:
            client.kill()
            client.wait()
        if client.returncode != 0:
            output.seek(0)
            _fail("did not run a first query", record, client=output.read())


def _python_path() -> str:
    """Where a process that starts with ``-P`` finds this package, and what else the caller's PYTHONPATH names."""
    return os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))


def _last_line(log: Path) -> str:
    return (log.read_text(errors="replace").splitlines() or [""])[-1]


def _fail(problem: str, record: ServerRecord, client: str = "") -> NoReturn:
    log = Path(record.log)
    output = log.read_text(errors="replace") if log.exists() else ""
    raise SparkStartError(problem, record.log, output + client)


def _remote(record: ServerRecord) -> str:
    return f"sc://127.0.0.1:{record.port}"


def _server(record: ServerRecord) -> ConnectServer:
    return ConnectServer(
        remote=_remote(record),
        process=record.process,
        log=Path(record.log),
        ui=None if record.ui_port is None else f"http://127.0.0.1:{record.ui_port}",
        token=record.token,
    )


def _stop(folder: Path, record: ServerRecord) -> bool:
    was_alive = record.process.stop()
    shutil.rmtree(folder / "scratch", ignore_errors=True)
    (folder / "server.json").unlink(missing_ok=True)
    return was_alive


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: starts, stops or shows the server of a folder, or prints what lets a shell use it."""
    parser = argparse.ArgumentParser(
        prog="python -m dagster_ips.local_spark.connect_server",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,  # It shows commands, each on its line.
    )
    parser.add_argument("action", choices=["start", "stop", "status", "environment"])
    parser.add_argument("--folder", type=Path, help="default: one in the cache folder for each Python environment")
    parser.add_argument(
        "--ui", action="store_true", help="start it with Spark's UI, which everyone on this machine can see"
    )
    parser.add_argument(
        "--extra-jars",
        nargs="+",
        default=(),
        choices=EXTRAS,
        help="the jars that LocalSparkConnect(extra_jars=…) names",
    )
    given = parser.parse_args(arguments)
    try:
        if given.action == "stop":
            print("stopped" if stop_connect_server(given.folder) else "no server was running")
            return 0
        server = _start_aloud(given) if given.action == "start" else connect_server_status(given.folder)
    except IpsError as error:
        print(error, file=sys.stderr)
        return 1
    if server is None:
        print(_why_none(_folder(given.folder)))
        return 1
    if given.action == "environment":
        print("\n".join(f"export {name}={value}" for name, value in server.environment().items()))
        return 0
    print(f"{server.remote}  process {server.pid}  {server.ui or 'no UI'}  {server.log}")
    return 0


def _start_aloud(given: argparse.Namespace) -> ConnectServer:
    conf = WITH_UI if given.ui else NO_CONF

    def say(said: str) -> None:
        print(said, file=sys.stderr, flush=True)

    return ensure_connect_server(given.folder, conf=conf, extra_jars=given.extra_jars, say=say)


def _why_none(folder: Path) -> str:
    record = read_record(folder)
    if record is None or not record.process.is_alive():
        return "no server is running"
    if difference := record.unknown_version():
        return f"a server is running (process {record.process.pid}), but it can't be used: {difference}"
    doing = "runs but doesn't answer" if record.ready else "is starting"
    return f"a server {doing} (process {record.process.pid}, log: {record.log})"


if __name__ == "__main__":
    raise SystemExit(main())
