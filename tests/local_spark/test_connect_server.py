import errno
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from pyspark.errors.exceptions.connect import SparkConnectException
from pyspark.sql.connect.session import SparkSession

from dagster_ips.local_spark import connect_server
from dagster_ips.local_spark.connect_server import (
    ConnectServer,
    SparkEndedError,
    SparkServerDiffersError,
    SparkStartError,
    connect_server_problem,
    connect_server_status,
    ensure_connect_server,
    stop_connect_server,
)
from dagster_ips.local_spark.launch import exclusive_lock
from dagster_ips.local_spark.process import ProcessIdentity, identity_of, launch_detached
from dagster_ips.local_spark.server_record import read_record
from dagster_ips.spark.session import connect_session
from tests.support.ports import listening_ports

MEMORY = "1g"


def sleeper(folder: Path) -> ProcessIdentity:
    return launch_detached(["sleep", "600"], env=os.environ, cwd=folder, log=folder / "sleeper.log")


def record(folder: Path, process: ProcessIdentity, *, ready: bool, version: int = 2) -> None:
    values = {
        "port": 1,
        "token": "t",
        "ui_port": None,
        "log": "",
        "configuration": {},
        "ready": ready,
        "version": version,
    }
    (folder / "server.json").write_text(json.dumps({"process": asdict(process)} | values))


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder for the server in a directory that other users can enter."""
    with tempfile.TemporaryDirectory() as open_to_all:
        Path(open_to_all).chmod(0o755)
        folder = Path(open_to_all, "spark-connect")
        folder.mkdir(mode=0o755)
        yield folder
        stop_connect_server(folder)


@pytest.fixture(scope="module")
def abandoned(folder: Path) -> ProcessIdentity:
    """The process that a starter leaves behind if it is killed before its server is ready."""
    process = sleeper(folder)
    record(folder, process, ready=False)
    return process


@pytest.fixture(scope="module")
def server(folder: Path, abandoned: ProcessIdentity) -> ConnectServer:
    assert abandoned.is_alive()
    return ensure_connect_server(folder, driver_memory=MEMORY)


def in_another_process(folder: Path) -> str:
    script = (
        "import sys; from pathlib import Path;"
        "from dagster_ips.local_spark.connect_server import ensure_connect_server;"
        "print(ensure_connect_server(Path(sys.argv[1]), driver_memory=sys.argv[2]).pid)"
    )
    command = [sys.executable, "-c", script, str(folder), MEMORY]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


@pytest.mark.slow
def test_a_process_that_a_killed_starter_left_behind_is_stopped(
    server: ConnectServer, abandoned: ProcessIdentity
) -> None:
    assert not abandoned.is_alive()
    assert server.pid != abandoned.pid


def test_the_server_process_is_the_jvm_itself(server: ConnectServer) -> None:
    listed = subprocess.run(
        ["/bin/ps", "-o", "comm=", "-p", str(server.pid)], stdout=subprocess.PIPE, text=True, check=True
    )
    assert Path(listed.stdout.strip()).name == "java"


def test_a_second_process_gets_the_same_server(server: ConnectServer, folder: Path) -> None:
    assert in_another_process(folder) == str(server.pid)
    assert connect_server_status(folder) == server


@pytest.mark.usefixtures("server")
def test_a_client_writes_and_reads_iceberg_in_utc(folder: Path, tmp_path: Path) -> None:
    client = """
import sys; from pathlib import Path
from dagster_ips.local_spark.connect_server import connect_server_status
spark = connect_server_status(Path(sys.argv[1])).session()
spark.conf.set("spark.sql.catalog.t", "org.apache.iceberg.spark.SparkCatalog")
spark.conf.set("spark.sql.catalog.t.type", "jdbc")
spark.conf.set("spark.sql.catalog.t.uri", f"jdbc:sqlite:{sys.argv[2]}/catalog.db")
spark.conf.set("spark.sql.catalog.t.warehouse", f"file://{sys.argv[2]}")
spark.conf.set("spark.sql.catalog.t.jdbc.schema-version", "V1")
spark.sql("CREATE NAMESPACE t.db")
spark.range(5).writeTo("t.db.five").create()
print(spark.table("t.db.five").count(), spark.conf.get("spark.sql.session.timeZone"))
"""
    command = [sys.executable, "-c", client, str(folder), str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "5 UTC\n"


def test_a_session_is_closed_when_its_process_ends(server: ConnectServer, folder: Path) -> None:
    client = """
import sys; from pathlib import Path
from dagster_ips.local_spark.connect_server import connect_server_status
session = connect_server_status(Path(sys.argv[1])).session()
session.range(5).collect()
print(session.session_id)
"""
    command = [sys.executable, "-c", client, str(folder)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    with pytest.raises(SparkConnectException, match="SESSION_CLOSED"):
        connect_session(f"{server.remote}/;session_id={ended}", {}, token=server.token)


def test_the_server_listens_only_on_the_loopback_address(server: ConnectServer) -> None:
    ports = listening_ports(server.pid)
    assert len(ports) == 4  # for clients, between Spark's parts, for blocks of data, for Spark's own Python
    for taken in ports:
        with socket.socket() as other:
            other.bind(("127.0.0.2", taken))  # would be refused if the server had bound every address


def test_another_configuration_is_refused_and_the_server_keeps_running(server: ConnectServer, folder: Path) -> None:
    with pytest.raises(SparkServerDiffersError, match="connect_server stop --folder") as caught:
        ensure_connect_server(folder, driver_memory="512m", conf={"spark.sql.ansi.enabled": "false"})
    assert caught.value.pid == server.pid
    assert caught.value.differences == (
        "spark.driver.memory is 1g, requested 512m",
        "spark.sql.ansi.enabled is unset, requested a hidden value",
    )
    assert connect_server_status(folder) == server
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_server_that_does_not_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SparkStartError, match="Master must either be yarn or start with") as caught:
        ensure_connect_server(tmp_path, conf={"spark.master": "nonsense"})
    assert connect_server_status(tmp_path) is None
    assert stop_connect_server(tmp_path) is False
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(("version", "why"), [(1, "without a token"), (3, "version 3, expected 2")])
def test_a_server_recorded_by_another_version_is_not_used_but_can_be_stopped(
    tmp_path: Path, version: int, why: str
) -> None:
    process = sleeper(tmp_path)
    record(tmp_path, process, ready=True, version=version)
    with pytest.raises(SparkServerDiffersError, match=why):
        ensure_connect_server(tmp_path)
    assert why in str(connect_server_problem(tmp_path))
    assert connect_server_status(tmp_path) is None
    assert process.is_alive()
    assert stop_connect_server(tmp_path) is True
    assert not process.is_alive()


@pytest.mark.parametrize("left", [b"", b"\0" * 400, b'{"version": 2, "pro'])
def test_what_a_crash_of_the_machine_left_of_a_record_counts_as_no_server(tmp_path: Path, left: bytes) -> None:
    (tmp_path / "server.json").write_bytes(left)
    assert read_record(tmp_path) is None
    assert connect_server_status(tmp_path) is None
    assert not stop_connect_server(tmp_path)


def test_status_distinguishes_a_starting_server_from_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert connect_server.main(["status", "--folder", str(tmp_path)]) == 1
    assert capsys.readouterr().out == "no server is running\n"
    process = sleeper(tmp_path)
    record(tmp_path, process, ready=False)
    assert connect_server.main(["status", "--folder", str(tmp_path)]) == 1
    assert f"a server is starting (process {process.pid}" in capsys.readouterr().out
    stop_connect_server(tmp_path)


def test_slow_steps_of_a_start_are_announced_as_they_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    launched = sleeper(tmp_path)
    monkeypatch.setattr(connect_server, "launch_detached", lambda *_, **__: launched)
    monkeypatch.setattr(connect_server, "_await_port", lambda *_: said.append("(waits for the port)"))
    monkeypatch.setattr(connect_server, "_warm_up", lambda *_: said.append("(warms)"))
    ensure_connect_server(tmp_path, jars=[], say=said.append)
    stop_connect_server(tmp_path)
    starting, port, answers, warms, warm = said
    assert (port, warms) == ("(waits for the port)", "(warms)")
    assert starting.startswith("Starting a Spark server")
    assert answers.startswith("Spark is up")
    assert warm.startswith("Spark is ready after")


def test_the_current_step_of_a_start_is_announced_again_while_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    launched = sleeper(tmp_path)
    answers = iter([False] * 3 + [True])
    monkeypatch.setattr(connect_server, "SAY_SECONDS", 0)
    monkeypatch.setattr(connect_server, "launch_detached", lambda *_, **__: launched)
    monkeypatch.setattr(connect_server, "_answers", lambda _: next(answers))
    client = tmp_path / "warm_up.py"
    client.write_text("import time; print('a first query', flush=True); time.sleep(1)")
    monkeypatch.setattr(connect_server, "__file__", str(tmp_path / "connect_server.py"))
    ensure_connect_server(tmp_path, jars=[], say=said.append)
    stop_connect_server(tmp_path)
    assert said.count("Spark's JVM is starting. (0 s)") == 3
    assert any(line.startswith("Spark is warming up: a first query.") for line in said)


def test_waiting_for_another_start_is_announced(tmp_path: Path) -> None:
    waits = threading.Event()
    with exclusive_lock(tmp_path / "lock"):
        waiting = threading.Thread(target=_hold, args=(tmp_path / "lock", waits.set))
        waiting.start()
        assert waits.wait(timeout=10)
    waiting.join()


def _hold(path: Path, on_wait: Callable[[], None]) -> None:
    with exclusive_lock(path, on_wait=on_wait):
        pass


@pytest.mark.slow
def test_a_server_that_cannot_be_written_down_is_not_left_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = sleeper(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(connect_server, "launch_detached", lambda *_, **__: launched)
    monkeypatch.setattr(connect_server, "write_record", fail)
    try:
        with pytest.raises(OSError, match="No space left on device"):
            ensure_connect_server(tmp_path / "spark", jars=[])
        assert not launched.is_alive()
    finally:
        launched.stop()


@pytest.mark.slow
def test_a_killed_server_is_replaced_and_a_taken_port_avoided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ensure_connect_server(tmp_path, driver_memory=MEMORY)
    identity, session = identity_of(first.pid), first.session()
    assert identity is not None
    os.kill(first.pid, signal.SIGKILL)
    while identity.is_alive():
        time.sleep(0.01)
    assert connect_server_status(tmp_path) is None
    with pytest.raises(SparkEndedError, match=str(first.pid)):
        session.range(1).collect()

    free_ports = connect_server._free_ports
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        choices = iter([[somebody.getsockname()[1], *free_ports(1)], free_ports(2)])
        monkeypatch.setattr(connect_server, "_free_ports", lambda _count: next(choices))
        second = ensure_connect_server(tmp_path, driver_memory=MEMORY)
    try:
        assert second.pid != first.pid
        assert connect_server_status(tmp_path) == second
        assert next(choices, None) is None
        assert second.session().range(3).count() == 3
        assert SparkSession.getActiveSession() is not session  # PySpark's functions use the active session
    finally:
        stop_connect_server(tmp_path)
