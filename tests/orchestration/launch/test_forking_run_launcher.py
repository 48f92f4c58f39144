"""Runs that are forked from a process with its libraries imported are runs like any other."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.code_pointer import FileCodePointer
from dagster._core.definitions.reconstruct import ReconstructableRepository
from dagster._core.launcher import LaunchRunContext, WorkerStatus
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteRepositoryOrigin

from dagster_ips.orchestration.launch import ForkingRunLauncher
from dagster_ips.orchestration.launch.forking_run_launcher import PROCESS_TAG
from tests.support.backends import dagster_home

SETTINGS = """
run_launcher:
  module: dagster_ips.orchestration.launch
  class: ForkingRunLauncher
  config: {preload: [json.tool, not_installed_anywhere]}
"""
DEFINITIONS = """
import gc, os, pathlib, sys, time
import dagster as dg

@dg.op
def tell():
    pathlib.Path({told!r}).write_text(f"{{os.getpid()}} {{'pyspark.sql.connect.session' in sys.modules}} {word}")

@dg.op
def imports():
    new = {{id(each) for each in gc.get_objects()}}  # without those that the forker froze
    pathlib.Path({told!r}).write_text(" ".join(name for name, of in list(sys.modules.items()) if id(vars(of)) in new))

@dg.op
def draw():
    import numpy, random
    pathlib.Path({told!r}).write_text(f"{{random.random()}} {{numpy.random.random()}}")

@dg.op
def fail():
    raise dg.Failure("by itself")

@dg.op
def sleep():
    pathlib.Path({told!r}).write_text("asleep")
    time.sleep(600)

@dg.job(executor_def=dg.in_process_executor)
def telling(): tell()

@dg.job(executor_def=dg.in_process_executor)
def importing(): imports()

@dg.job(executor_def=dg.in_process_executor)
def drawing(): draw()

@dg.job(executor_def=dg.in_process_executor)
def failing(): fail()

@dg.job(executor_def=dg.in_process_executor)
def sleeping(): sleep()

defs = dg.Definitions(jobs=[telling, importing, drawing, failing, sleeping], executor=dg.in_process_executor)
"""
LONGEST_SECONDS = 120


class Launched:
    """An instance with the launcher, and a file of definitions that a run loads."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        self.told, self.file, self.instance = folder / "told", folder / "some_definitions.py", instance
        self.define("one")

    def define(self, word: str) -> None:
        self.file.write_text(DEFINITIONS.format(told=str(self.told), word=word))

    def launch(
        self,
        job: str,
        *,
        found_by_then: str | None = None,
        code_server: str = "localhost",
        python: str = sys.executable,
    ) -> str:
        pointer = FileCodePointer(str(self.file), "defs", str(self.file.parent))
        recon = ReconstructableRepository(pointer).get_reconstructable_job(job)
        origin, starting = recon.get_python_origin(), dg.DagsterRunStatus.STARTING
        there = origin.repository_origin._replace(executable_path=python)
        origin = origin._replace(repository_origin=there)
        location = GrpcServerCodeLocationOrigin(host=code_server, port=4000)
        run = self.instance.create_run_for_job(
            recon.get_definition(),
            job_code_origin=origin,
            remote_job_origin=RemoteRepositoryOrigin(location, "__repository__").get_job_origin(job),
            status=starting,
        )
        if found_by_then is not None:
            self.file.write_text(found_by_then)
        self.instance.run_launcher.launch_run(LaunchRunContext(run, None))
        return run.run_id

    def run(self, run_id: str) -> dg.DagsterRun:
        run = self.instance.get_run_by_id(run_id)
        assert run
        return run

    def ended(self, run_id: str) -> dg.DagsterRunStatus:
        self.wait(lambda: self.run(run_id).is_finished)
        return self.run(run_id).status

    def wait(self, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LONGEST_SECONDS
        while not until():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def said(self, run_id: str) -> str:
        return "\n".join(repr(entry) for entry in self.instance.all_logs(run_id))

    def process(self, run_id: str) -> int:
        return int(json.loads(self.run(run_id).tags[PROCESS_TAG])["pid"])


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    folder = tmp_path_factory.mktemp("launched")
    home = dagster_home(folder / "home", None)
    (Path(home) / "dagster.yaml").open("a").write(SETTINGS)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert isinstance(instance.run_launcher, ForkingRunLauncher)
        yield Launched(folder, instance)


def test_each_run_is_a_process_of_its_own_that_has_the_libraries_and_the_newest_definitions(launched: Launched) -> None:
    told = []
    for word in ("one", "two"):
        launched.define(word)
        run = launched.launch("telling")
        assert launched.ended(run) is dg.DagsterRunStatus.SUCCESS
        told.append(launched.told.read_text().split())
        assert told[-1][0] == str(launched.process(run))
    assert [each[1:] for each in told] == [["True", "one"], ["True", "two"]]
    assert len({os.getpid(), *(int(each[0]) for each in told)}) == 3


def test_a_run_imports_hardly_anything_but_its_definitions(launched: Launched) -> None:
    assert launched.ended(launched.launch("importing")) is dg.DagsterRunStatus.SUCCESS
    imported = set(launched.told.read_text().split())
    assert "some_definitions" in imported
    assert not {each.partition(".")[0] for each in imported} & {"alembic", "pyiceberg", "pyspark", "sqlalchemy"}
    assert len(imported) < 40


def test_runs_draw_different_random_numbers(launched: Launched) -> None:
    drawn = set()
    for _ in range(2):
        assert launched.ended(launched.launch("drawing")) is dg.DagsterRunStatus.SUCCESS
        drawn |= set(launched.told.read_text().split())
    assert len(drawn) == 4


def test_a_run_that_fails_reports_its_own_error(launched: Launched) -> None:
    run = launched.launch("failing")
    assert launched.ended(run) is dg.DagsterRunStatus.FAILURE
    assert "by itself" in launched.said(run)
    assert "ended with exit code" not in launched.said(run)


def test_a_run_can_be_canceled_even_under_nohup(launched: Launched) -> None:
    launched.instance.run_launcher.dispose()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run = asleep(launched)
    finally:
        signal.signal(signal.SIGINT, before)
    assert launched.instance.run_launcher.terminate(run)
    assert launched.ended(run) is dg.DagsterRunStatus.CANCELED
    assert not launched.instance.run_launcher.terminate(run)


def test_a_run_whose_process_is_killed_fails_and_says_how(launched: Launched) -> None:
    run = asleep(launched)
    health = launched.instance.run_launcher.check_run_worker_health
    assert health(launched.run(run)).status is WorkerStatus.RUNNING
    os.kill(launched.process(run), signal.SIGKILL)
    assert launched.ended(run) is dg.DagsterRunStatus.FAILURE
    assert "ended by SIGKILL" in launched.said(run)
    launched.wait(lambda: health(launched.run(run)).status is WorkerStatus.NOT_FOUND)


def test_definitions_that_do_not_load_fail_the_run(launched: Launched) -> None:
    good = launched.file.read_text()
    try:
        run = launched.launch("telling", found_by_then="raise RuntimeError('a mistake')")
        assert launched.ended(run) is dg.DagsterRunStatus.FAILURE
    finally:
        launched.file.write_text(good)
    assert "a mistake" in launched.said(run)


@pytest.mark.slow
def test_runs_continue_after_the_daemon_that_launched_them_has_ended(launched: Launched) -> None:
    run = asleep(launched)
    launched.instance.run_launcher.dispose()
    time.sleep(1)
    assert launched.run(run).status is dg.DagsterRunStatus.STARTED
    assert launched.instance.run_launcher.terminate(run)
    assert launched.ended(run) is dg.DagsterRunStatus.CANCELED
    assert launched.ended(launched.launch("telling")) is dg.DagsterRunStatus.SUCCESS


@pytest.mark.parametrize("host", ["localhost", "code-server"])
def test_a_run_whose_code_server_is_on_another_host_is_launched_there(
    launched: Launched, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_default = []
    monkeypatch.setattr(dg.DefaultRunLauncher, "launch_run", lambda _, context: by_default.append(context.dagster_run))
    launched.launch("telling", code_server=host)
    assert len(by_default) == (host == "code-server")


@pytest.mark.parametrize("is_there", [True, False])
def test_a_run_whose_python_lacks_the_library_is_launched_by_dagster(
    launched: Launched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_there: bool
) -> None:
    python, by_default = tmp_path / "python", []
    if is_there:
        python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
        python.chmod(0o755)
    monkeypatch.setattr(dg.DefaultRunLauncher, "launch_run", lambda _, context: by_default.append(context.dagster_run))
    run = launched.launch("telling", python=str(python))
    assert [each.run_id for each in by_default] == [run]
    assert "launched by Dagster's default launcher" in launched.said(run)


def test_the_process_of_a_run_says_nothing_about_its_re_execution(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = launched.launch("failing")
    launched.ended(first)
    monkeypatch.setattr(dg.DefaultRunLauncher, "launch_run", lambda *_: None)
    again = launched.launch("telling", code_server="code-server")
    launched.instance.add_run_tags(again, launched.run(first).tags)  # as Dagster copies them
    health = launched.instance.run_launcher.check_run_worker_health
    launched.wait(lambda: health(launched.run(first)).status is WorkerStatus.NOT_FOUND)
    assert health(launched.run(again)).status is WorkerStatus.RUNNING


def asleep(launched: Launched) -> str:
    """A run that does nothing for a long time."""
    launched.told.unlink(missing_ok=True)
    run = launched.launch("sleeping")
    launched.wait(launched.told.exists)
    return run
