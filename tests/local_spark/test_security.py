"""Other users of the machine can't run code on the local Spark, learn its token or see what it does."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_ips.errors import IpsError
from dagster_ips.local_spark.connect_server import (
    WITH_UI,
    ConnectServer,
    SparkServerDiffersError,
    connect_server_problem,
    connect_server_status,
    ensure_connect_server,
    stop_connect_server,
)
from dagster_ips.local_spark.private_files import SparkFolderNotPrivateError, make_private
from dagster_ips.spark.session import connect_session
from tests.support.ports import listening_ports

MEMORY = "1g"
SECRET = "planted-secret-4711"  # noqa: S105  # the tests search for it
CONF = {"spark.sql.catalog.far.s3.secret-access-key": SECRET, "spark.sql.x.odd": "a=b:c #!\\d\te\u00e9\u20ac\U0001f600"}
NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """A folder that every user of the machine can enter and read."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def seen(open_folder: Path) -> Iterator[set[str]]:
    """Every command line on the machine while the server started."""
    found: set[str] = set()
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.01):
            found.update(command_lines())

    looking = threading.Thread(target=look)
    looking.start()
    ensure_connect_server(open_folder / "spark", driver_memory=MEMORY, conf=CONF)
    done.set()
    looking.join()
    yield found
    stop_connect_server(open_folder / "spark")


@pytest.fixture(scope="module")
def server(open_folder: Path, seen: set[str]) -> ConnectServer:
    assert seen
    server = connect_server_status(open_folder / "spark")
    assert server is not None
    return server


def command_lines() -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield process.read_text(errors="replace")


def attempt(address: str, token: str = "", *, user: int | None = None) -> str:
    """The output of PySpark's own client in another process, which becomes ``user`` once its code is loaded."""
    client = (
        "import os, sys; from pyspark.sql.connect.session import SparkSession;"
        "sys.argv[2:] and os.setuid(int(sys.argv[2]));"
        "print('rows:', SparkSession.builder.remote(sys.argv[1]).create().range(3).count())"
    )
    address += f"/;token={token}" if token else ""
    command = [sys.executable, "-c", client, address, *([] if user is None else [str(user)])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def read_as_nobody(file: Path) -> str:
    """The content of ``file`` if the user nobody can read it, else the error."""
    reading = "import os, sys; os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]));"
    reading += "print(open(sys.argv[1], 'rb').read())"
    command = [sys.executable, "-c", reading, str(file), str(NOBODY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_only_clients_with_the_token_are_answered(spark_server: ConnectServer) -> None:
    remote = spark_server.remote
    port = remote.rpartition(":")[2]
    assert spark_server.session().range(3).count() == 3
    assert "No authentication token provided" in attempt(remote)
    assert "Invalid authentication token" in attempt(f"sc://localhost:{port}", "guessed")
    assert "rows: 3" in attempt(f"sc://localhost:{port}", spark_server.token)
    with pytest.raises(Exception, match="Invalid authentication token"):
        connect_session(remote, {"spark.sql.ansi.enabled": "true"}, token="guessed")  # noqa: S106  # a wrong one


@pytest.mark.slow
@as_root
def test_another_user_can_neither_read_the_token_nor_connect(server: ConnectServer, open_folder: Path) -> None:
    assert "No authentication token provided" in attempt(server.remote, user=NOBODY)
    files = [each for each in (open_folder / "spark").rglob("*") if each.is_file()]
    assert {"server.json", "server.log", "spark.properties"} <= {each.name for each in files}
    for file in [*files, Path(f"/proc/{server.pid}/environ")]:
        assert "PermissionError" in read_as_nobody(file), file
    (open_folder / "anyone").write_text("readable")
    assert "readable" in read_as_nobody(open_folder / "anyone")


@pytest.mark.usefixtures("spark_server")
def test_pyspark_alone_finds_the_server_by_what_the_command_prints(spark_folder: Path) -> None:
    printed = 'eval "$("$0" -m dagster_ips.local_spark.connect_server environment --folder "$1")"'
    client = "from pyspark.sql import SparkSession; print(SparkSession.builder.getOrCreate().range(3).count())"
    command = ["/bin/sh", "-c", f'{printed}; "$0" -c "$2"', sys.executable, str(spark_folder), client]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "3\n"


@pytest.mark.slow
def test_neither_token_nor_passwords_are_on_a_command_line_or_in_the_log(server: ConnectServer, seen: set[str]) -> None:
    everything = "\n".join([*seen, *command_lines(), server.log.read_text(), repr(server), str(server)])
    assert "local_spark/driver.py" in everything
    assert server.token not in everything
    assert SECRET not in everything


@pytest.mark.usefixtures("spark_server")
def test_only_the_owner_can_read_the_servers_files(spark_folder: Path) -> None:
    assert stat.S_IMODE(spark_folder.stat().st_mode) == 0o700
    for name in ("server.json", "spark.properties"):
        assert stat.S_IMODE((spark_folder / name).stat().st_mode) == 0o600


@pytest.mark.slow
def test_the_token_is_in_one_file(server: ConnectServer, open_folder: Path) -> None:
    files = [each for each in (open_folder / "spark").rglob("*") if each.is_file()]
    assert [each.name for each in files if server.token in each.read_text(errors="replace")] == ["server.json"]


@pytest.mark.slow
def test_configured_values_arrive_unchanged(server: ConnectServer) -> None:
    session = server.session()
    assert session.conf.get("spark.sql.x.odd") == CONF["spark.sql.x.odd"]
    assert session.conf.get("spark.local.dir", "").endswith("scratch")


@pytest.mark.slow
def test_an_error_shows_no_value_that_a_user_configured(server: ConnectServer, open_folder: Path) -> None:
    other = CONF | {"spark.sql.catalog.far.s3.secret-access-key": f"{SECRET}-rotated"}
    with pytest.raises(SparkServerDiffersError, match=r"secret-access-key is a hidden value") as caught:
        ensure_connect_server(open_folder / "spark", driver_memory=MEMORY, conf=other)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value)
    assert SECRET not in str(connect_server_problem(open_folder / "spark", driver_memory=MEMORY, conf=other))
    assert server.pid == caught.value.pid


@pytest.mark.slow
def test_the_ports_between_sparks_own_parts_answer_nobody_without_their_secret(server: ConnectServer) -> None:
    inner = listening_ports(server.pid) - {int(server.remote.rpartition(":")[2])}
    assert len(inner) == 3  # the third is py4j's and requires the secret of Spark's own Python
    # A request of Spark's protocol: length, type, id, length of the body, body.
    body = b"\xac\xed\x00\x05"
    frame = struct.pack(">qbqi", 21 + len(body), 3, 1, len(body)) + body
    call = b"c\nz:java.lang.System\ngetProperty\nsuser.name\ne\n"
    for port in inner:
        for request in (frame + b"\n", call):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
                client.sendall(request)
                answer = client.recv(4000)
            refusals = (b"SaslMessage", b"Unknown command", b"Authentication error")
            assert answer == b"" or any(each in answer for each in refusals), answer


@pytest.mark.slow
def test_there_is_no_ui_unless_it_is_requested(server: ConnectServer, tmp_path: Path) -> None:
    assert server.ui is None
    folder = tmp_path / "spark"
    with_ui = ensure_connect_server(folder, driver_memory=MEMORY, conf=WITH_UI)
    try:
        with urllib.request.urlopen(f"{with_ui.ui}/api/v1/applications", timeout=10) as answer:  # noqa: S310  # ours
            assert [application["name"] for application in json.load(answer)] == ["dagster_ips"]
        assert ensure_connect_server(folder, driver_memory=MEMORY) == with_ui
        scratch = folder / "scratch"
        assert any(scratch.iterdir())
    finally:
        stop_connect_server(folder)
    assert not scratch.exists()


@pytest.mark.slow
def test_requesting_a_ui_from_a_server_without_one_is_refused(server: ConnectServer, open_folder: Path) -> None:
    with pytest.raises(SparkServerDiffersError, match=r"spark\.ui\.enabled is false, requested true"):
        ensure_connect_server(open_folder / "spark", driver_memory=MEMORY, conf=CONF | WITH_UI)
    assert connect_server_status(open_folder / "spark") == server


def test_an_open_folder_is_made_private_if_it_is_the_servers_own(tmp_path: Path) -> None:
    of_an_earlier_release = tmp_path / "spark"
    of_an_earlier_release.mkdir(mode=0o755)
    (of_an_earlier_release / "lock").touch()
    (of_an_earlier_release / "server.log").touch()
    make_private(of_an_earlier_release, markers=("lock",))
    assert stat.S_IMODE(of_an_earlier_release.stat().st_mode) == 0o700


def test_an_open_folder_with_other_files_is_refused_and_not_made_private(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    (data / "warehouse").mkdir()
    with pytest.raises(SparkFolderNotPrivateError, match=f"chmod 700 {data}"):
        ensure_connect_server(data, jars=[])
    assert stat.S_IMODE(data.stat().st_mode) == 0o755


@as_root
def test_a_folder_of_another_user_is_not_trusted(tmp_path: Path) -> None:
    folder = tmp_path / "spark"
    folder.mkdir(mode=0o700)
    (folder / "server.json").write_text("{}")
    os.chown(folder, NOBODY, NOBODY)
    for use in (ensure_connect_server, connect_server_status, stop_connect_server):
        with pytest.raises(IpsError, match=f"belongs to user {NOBODY}, but this process runs as user 0"):
            use(folder)  # type: ignore[operator]
    assert f"belongs to user {NOBODY}" in str(connect_server_problem(folder))
