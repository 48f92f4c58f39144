"""Jobs in processes of their own that go wrong: nothing of them is published, and the next run finishes the work.

``test_launched_jobs`` has more ways, tried in a session that stands for another process.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from itertools import pairwise

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.errors import (
    DirectWriteError,
    IdleJobError,
    IpsError,
    RemovedRowsError,
    UnstampedCommitError,
)
from dagster_ips.spark.branches import SNAPSHOT_PROPERTY
from tests.promises.test_launched_jobs import ADD_UP, COLUMNS, SMALL, TABLE, expected
from tests.support.lake import Lake, events
from tests.support.pipeline import materialize, pipeline
from tests.support.quick_spark import INTERPRETED

SLEEPS = "reflect('java.lang.Thread', 'sleep', {}L)"
Command = list[str]


def command(icdc: ips.OwnSql, lake: Lake, *statements: str) -> Command:
    """``spark-sql -f`` with a file of ``statements``, which get what they need from Spark's settings."""
    text = ";\n".join(statements).replace("{", "${spark.icdc.") + ";\n"
    (lake.folder / "job.sql").write_text(text)
    in_memory = ("--conf", "spark.sql.catalogImplementation=in-memory")
    found = icdc.spark_command("spark-sql", *SMALL, *in_memory, "-f", str(lake.folder / "job.sql"))
    return ["env", f"JDK_JAVA_OPTIONS={INTERPRETED}", *found]


def asset(launch: Callable[[ips.OwnSql], object]) -> dg.AssetsDefinition:
    @dg.asset(name="by_account", deps=[ips.incremental_dep("playback")], metadata=ips.table(TABLE))
    def made(context: dg.AssetExecutionContext) -> None:
        with ips.capture(context, columns=COLUMNS) as icdc:
            launch(icdc)

    return made


def submitted(lake: Lake, *statements: str) -> dg.AssetsDefinition:
    return asset(lambda icdc: subprocess.run(command(icdc, lake, *statements), check=True))


def run(lake: Lake, instance: dg.DagsterInstance, made: dg.AssetsDefinition) -> None:
    materialize(pipeline(lake.folder, lake.spark_folder, made), instance, "by_account")


def by_itself() -> dg.AssetsDefinition:
    """The same asset, which writes in the run's own session."""
    return asset(lambda icdc: icdc.sql(ADD_UP))


@pytest.fixture
def summed(lake: Lake, instance: dg.DagsterInstance) -> Lake:
    """A lake whose table was summed up once, with a change that only added rows since."""
    lake.create_playback(events(range(5)))
    run(lake, instance, by_itself())
    lake.append(events([7]))
    return lake


def finished(lake: Lake, instance: dg.DagsterInstance) -> bool:
    """Whether nothing was published or consumed since ``summed``, and the next run does what is left."""
    was = lake.rows(TABLE) == expected(events(range(5)))
    run(lake, instance, by_itself())
    return was and lake.rows(TABLE) == expected(events([*range(5), 7])) and lake.branches(TABLE) == {"main"}


def without_stamp(found: Command) -> Command:
    dropped = {place for place, (_, other) in enumerate(pairwise(found)) if other.startswith(SNAPSHOT_PROPERTY)}
    return [part for place, part in enumerate(found) if place not in dropped and place - 1 not in dropped]


def wait_for_commit(lake: Lake, branch: str) -> None:
    begun = lake.catalog.load(TABLE, asset="test").head_snapshot_id()
    while lake.catalog.load(TABLE, asset="test").head_snapshot_id(branch) == begun:
        time.sleep(0.2)


@pytest.mark.slow
def test_a_process_that_does_not_stamp_its_commits_publishes_nothing(
    summed: Lake, instance: dg.DagsterInstance
) -> None:
    launch = asset(lambda icdc: subprocess.run(without_stamp(command(icdc, summed, ADD_UP)), check=True))
    with pytest.raises(UnstampedCommitError, match=rf"{SNAPSHOT_PROPERTY}dagster-ips\.attempt=ips_"):
        run(summed, instance, launch)
    assert finished(summed, instance)


@pytest.mark.slow
def test_a_process_that_commits_to_main_is_named_with_the_statement_that_undoes_it(
    summed: Lake, instance: dg.DagsterInstance
) -> None:
    with pytest.raises(DirectWriteError) as raised:
        run(summed, instance, submitted(summed, f"INSERT INTO lake.{TABLE} VALUES ('direct', 1)"))
    assert summed.rows(TABLE)["direct", 1] == 1
    summed.sql(raised.value.undo).collect()
    assert finished(summed, instance)


@pytest.mark.slow
def test_a_process_that_dies_after_a_commit_publishes_nothing(summed: Lake, instance: dg.DagsterInstance) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run(summed, instance, submitted(summed, ADD_UP, "SELECT raise_error('it dies')"))
    assert finished(summed, instance)


@pytest.mark.slow
def test_a_process_that_is_killed_after_a_commit_publishes_nothing(summed: Lake, instance: dg.DagsterInstance) -> None:
    def launch(icdc: ips.OwnSql) -> None:
        arguments = command(icdc, summed, ADD_UP, f"SELECT {SLEEPS.format(600_000)}")
        job = subprocess.Popen(arguments, start_new_session=True)
        wait_for_commit(summed, icdc.target.rpartition("branch_")[2].strip("`"))
        os.killpg(job.pid, signal.SIGKILL)
        if job.wait():
            raise ConnectionError

    with pytest.raises(ConnectionError):
        run(summed, instance, asset(launch))
    assert finished(summed, instance)


@pytest.mark.slow
def test_a_process_that_lives_on_after_its_run_and_writes_again_never_reaches_the_table(
    summed: Lake, instance: dg.DagsterInstance
) -> None:
    jobs: list[subprocess.Popen[bytes]] = []

    def launch(icdc: ips.OwnSql) -> None:
        again = (
            f"INSERT INTO {{target}} SELECT 'late' AS account, 1L FROM {{added}} WHERE {SLEEPS.format(15_000)} <> ''"
        )
        jobs.append(subprocess.Popen(command(icdc, summed, ADD_UP, again)))
        wait_for_commit(summed, icdc.target.rpartition("branch_")[2].strip("`"))
        time.sleep(5)  # its next statement has begun

    run(summed, instance, asset(launch))
    done = summed.rows(TABLE)
    assert done == expected(events([*range(5), 7]))
    jobs[0].wait()
    assert summed.rows(TABLE) == done
    summed.append(events([8]))
    run(summed, instance, by_itself())
    assert summed.rows(TABLE) == expected(events([*range(5), 7, 8]))
    assert summed.branches(TABLE) == {"main"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "error"),
    [("SELECT count(*) FROM {added}", IdleJobError), ("INSERT INTO {target} VALUES ('constant', 1)", RemovedRowsError)],
)
def test_a_process_that_does_nothing_with_the_change_is_refused(
    summed: Lake, instance: dg.DagsterInstance, work: str, error: type[IpsError]
) -> None:
    summed.sql("UPDATE lake.media.playback SET seconds = seconds + 1 WHERE event_id = 7")
    summed.sql("DELETE FROM lake.media.playback WHERE event_id = 3")
    with pytest.raises(error):
        run(summed, instance, submitted(summed, work))
    assert summed.rows(TABLE) == expected(events(range(5)))
    assert summed.branches(TABLE) == {"main"}
    run(summed, instance, by_itself())
    left = [row for row in events([*range(5), 7]) if row[0] != 3]
    assert +summed.rows(TABLE) == expected(left)
