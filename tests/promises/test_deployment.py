"""The containers of the deployment are tried as processes: the same commands and settings, on PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from example_project.demo.pipeline import Pipeline
from example_project.events import Workload
from example_project.ingest import ingest
from example_project.lake import open_catalog
from tests.support.ports import free_port
from tests.support.postgres import Postgres

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs" / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
HOME = "/opt/dagster_home"
LONGEST_SECONDS = 400


@contextmanager
def running(name: str, replaced: Mapping[str, str], environment: Mapping[str, str], logs: Path) -> Iterator[None]:
    """The container ``name`` as a process of this machine, with ``replaced`` for what is another here."""
    command = COMPOSE["services"][name]["command"]
    for inside, here in replaced.items():
        command = [word.replace(inside, here) for word in command]
    with (logs / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / command[0]), *command[1:]],
            env=os.environ | environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def environment_of(name: str, changed: Mapping[str, str]) -> dict[str, str]:
    """The variables of the container, with the values that are another here."""
    declared: dict[str, Any] = COMPOSE["services"][name]["environment"]
    return {variable: changed.get(variable, str(value)) for variable, value in declared.items()}


def is_healthy(port: str) -> bool:
    """Whether the code server is, by the container's health check."""
    _, program, *words = COMPOSE["services"]["code"]["healthcheck"]["test"]
    words = [word.replace("4000", port) for word in words]
    return (
        subprocess.run([Path(sys.executable).parent / program, *words], check=False, capture_output=True).returncode
        == 0
    )


def wait(until: Any, logs: Path) -> None:  # noqa: ANN401  # any condition
    deadline = time.monotonic() + LONGEST_SECONDS
    while not until():
        ends = "\n".join(f"{log.name}:\n{log.read_text()[-3000:]}" for log in sorted(logs.glob("*.log")))
        assert time.monotonic() < deadline, ends
        time.sleep(1)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310  # the webserver's
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.slow
def test_the_services_of_the_compose_file_follow_late_rows(
    tmp_path: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, logs, lake = tmp_path / "home", tmp_path / "logs", tmp_path / "lake"
    for folder in (home, logs, lake):
        folder.mkdir()
    for settings in ("dagster.yaml", "workspace.yaml"):
        (home / settings).write_text((DEPLOY / settings).read_text())
    code, web = str(free_port()), str(free_port())
    changed = {
        "DAGSTER_POSTGRES_URL": postgres.new_database(),
        "CODE_HOST": "127.0.0.1",
        "CODE_PORT": code,
        "PLAYBACK_LAKE": str(lake),
    }
    own = {"DAGSTER_HOME": str(home), "PLAYBACK_SPARK": str(tmp_path / "spark")}
    replaced = {"0.0.0.0": "127.0.0.1", "4000": code, "3000": web, HOME: str(home)}  # noqa: S104  # what is replaced
    monkeypatch.setenv("DAGSTER_POSTGRES_URL", changed["DAGSTER_POSTGRES_URL"])
    ingest(lake, 2, Workload(500, 0.03))
    try:
        with ExitStack() as stack:
            for name in ("code", "daemon", "webserver"):
                stack.enter_context(running(name, replaced, environment_of(name, changed) | own, logs))
                if name == "code":
                    wait(lambda: is_healthy(code), logs)
            wait(lambda: answers(f"http://127.0.0.1:{web}/server_info"), logs)
            pipeline = Pipeline(home, lake)
            tables = ("playback_daily", "playback_daily_agg")
            wait(lambda: all(pipeline.materializations(table) for table in tables), logs)
            ingest(lake, 1, Workload(500, 0.3))
            wait(pipeline.is_caught_up, logs)
            rows = {
                name: open_catalog(lake).load_table(f"media.{name}").scan().to_arrow() for name in ("playback", *tables)
            }
            assert rows["playback_daily"].num_rows == rows["playback"].num_rows == 1500
            assert sum(rows["playback_daily_agg"]["plays"].to_pylist()) == 1500
    finally:
        stop = ["-m", "dagster_ips.local_spark.connect_server", "stop", "--folder", own["PLAYBACK_SPARK"]]
        subprocess.run([sys.executable, *stop], check=True, capture_output=True)


def test_what_the_image_is_built_from_is_there() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY")]
    assert [name for names in copied for name in names if not (ROOT / name).exists()] == []
    assert set(COMPOSE["services"]) == {"postgres", "code", "daemon", "webserver"}
