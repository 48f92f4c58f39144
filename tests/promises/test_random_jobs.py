"""Random changes that jobs in another process follow: after each step, the table equals a recompute.

The jobs run in one Spark, started by spark-submit, that knows nothing but the value that each run gives it. Some of
them die after half of their work, and some runs are killed, also while their jobs go on.
"""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.exactly_once.effects import Effect
from dagster_ips.local_spark.process import identity_of
from tests.support import lasting_job
from tests.support.kinds import start_run
from tests.support.lake import Lake, events
from tests.support.pipeline import materialize, pipeline
from tests.support.quick_spark import INTERPRETED

SEED = 20_261
TABLE, SOURCE = "media.by_account", "lake.media.playback"
WITH_ITS_JOB = "with its job under way"
KILLS = (WITH_ITS_JOB, f"before:{Effect.CREATE_BRANCH}#2", f"after:{Effect.CREATE_BRANCH}#2", f"after:{Effect.PUBLISH}")
"""Where a run is killed; the second branch is what the work of its job is sealed on."""
SMALL = ("--master", "local[1]", "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=1")


class JobDiedError(Exception):
    """The job's process has ended without doing its work."""


class Jobs:
    """The process that does the jobs, and the folder by which it and the runs find each other."""

    def __init__(self, lake_folder: Path) -> None:
        self.folder = lake_folder.parent / "jobs"
        self.folder.mkdir(exist_ok=True)

    def ask(self, what: str) -> None:
        """Let the next run or job die."""
        (self.folder / what).touch()

    def do(self, icdc: ips.OwnSql) -> None:
        """Have a job done, as a client that submits it and waits."""
        if not self.is_alive():
            for old in self.folder.glob("*.json"):
                old.unlink()
            self._start(icdc)
        number = len([*self.folder.glob("*.json")])
        draft = self.folder / "draft"
        draft.write_text(json.dumps(icdc.job | {"dies": self._is_asked("job dies")}))
        draft.rename(self.folder / f"{number}.json")
        if self._is_asked("run dies"):
            os.kill(os.getpid(), signal.SIGKILL)
        done = self.folder / f"{number}.done"
        while not done.exists():
            if not self.is_alive():
                raise JobDiedError
            time.sleep(0.02)
        done.unlink()

    def is_alive(self) -> bool:
        pid = self.folder / "pid"
        return pid.exists() and identity_of(int(pid.read_text())) is not None

    def end(self) -> None:
        if self.is_alive():
            os.killpg(int((self.folder / "pid").read_text()), signal.SIGKILL)  # Java, and the Python that it started

    def _start(self, icdc: ips.OwnSql) -> None:
        for done in self.folder.glob("*.done"):
            done.unlink()
        command = icdc.spark_command("spark-submit", *SMALL, lasting_job.__file__, str(self.folder))
        quickly = ["env", f"JDK_JAVA_OPTIONS={INTERPRETED}", *command]
        with (self.folder / "log").open("ab") as log:
            started = subprocess.Popen(quickly, stdout=log, stderr=log, start_new_session=True)
        (self.folder / "pid").write_text(str(started.pid))

    def _is_asked(self, what: str) -> bool:
        flag = self.folder / what
        was_asked = flag.exists()
        flag.unlink(missing_ok=True)
        return was_asked


def with_jobs(lake_folder: Path, spark_folder: Path) -> dg.Definitions:
    @dg.asset(deps=[ips.incremental_dep("playback")], metadata=ips.table(TABLE))
    def by_account(context: dg.AssetExecutionContext) -> None:
        with ips.capture(context, columns="account STRING, plays BIGINT, seconds BIGINT") as icdc:
            Jobs(lake_folder).do(icdc)

    return pipeline(lake_folder, spark_folder, by_account)


def change(lake: Lake, chance: random.Random) -> str:
    """One random commit to the upstream; returns its name."""
    mode = chance.choice(["copy-on-write", "merge-on-read"])
    few = f"event_id % {chance.randint(2, 9)} = {chance.randint(0, 1)}"
    where = chance.choice([few, f"account = 'a{chance.randint(0, 3)}'", f"{few} AND event_date < DATE '2026-01-02'"])
    statements = {
        "append": "",
        "delete": f"DELETE FROM {SOURCE} WHERE {where}",
        "update": f"UPDATE {SOURCE} SET seconds = seconds + 1, account = 'a{chance.randint(0, 3)}' WHERE {where}",
        "same": f"UPDATE {SOURCE} SET seconds = seconds WHERE {where}",
        "drop a day": f"DELETE FROM {SOURCE} WHERE event_date = DATE '2026-01-0{chance.randint(1, 3)}'",
        "merge": f"MERGE INTO {SOURCE} t USING (SELECT event_id, event_date, account, max(seconds) AS seconds "
        f"FROM {SOURCE} WHERE {few} AND event_id < 40 GROUP BY event_id, event_date, account) s "
        "ON t.event_id = s.event_id AND t.account = s.account AND t.event_date = s.event_date AND s.event_id > 5 "
        "WHEN MATCHED AND t.seconds > 2 THEN DELETE WHEN NOT MATCHED THEN INSERT *",
        "overwrite": f"INSERT OVERWRITE {SOURCE} SELECT * FROM {SOURCE} WHERE NOT ({few})",
        "compact": "CALL lake.system.rewrite_data_files(table => 'media.playback', "
        "options => map('rewrite-all', 'true'))",
        "compact deletes": "CALL lake.system.rewrite_position_delete_files(table => 'media.playback', "
        "options => map('rewrite-all', 'true'))",
    }
    name = chance.choices([*statements], [6, 3, 3, 1, 1, 2, 1, 2, 1])[0]
    if name == "append":
        rows = events([chance.randint(0, 60) for _ in range(chance.randint(1, 6))], day=chance.randint(0, 2))
        values = ", ".join(
            f"({number}, DATE '{day}', '{account}', {seconds})" for number, day, account, seconds in rows
        )
        lake.sql(f"INSERT INTO {SOURCE} VALUES {values}")  # PyIceberg can't write format version 3.
        return name
    settings = ", ".join(f"'write.{each}.mode' = '{mode}'" for each in ("delete", "update", "merge"))
    lake.sql(f"ALTER TABLE {SOURCE} SET TBLPROPERTIES ({settings})")
    lake.sql(statements[name]).collect()
    return f"{name}, {mode}"


def recomputed(lake: Lake) -> list[tuple[object, ...]]:
    rows = lake.sql(f"SELECT account, count(*), sum(seconds) FROM {SOURCE} GROUP BY account").collect()
    return sorted(tuple(row) for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3])
def test_a_table_that_jobs_write_equals_a_recompute_through_random_changes_and_kills(
    lake: Lake, instance: dg.DagsterInstance, pytestconfig: pytest.Config, version: int
) -> None:
    chance, jobs, told = random.Random(SEED + version), Jobs(lake.folder), list[str]()
    definitions = with_jobs(lake.folder, lake.spark_folder)
    lake.session.conf.set("spark.sql.shuffle.partitions", "1")
    lake.create_playback(events(range(9)))
    lake.sql(f"ALTER TABLE {SOURCE} SET TBLPROPERTIES ('format-version' = '{version}')")
    before: list[tuple[object, ...]] = []
    try:
        for step in range(pytestconfig.option.captures):
            done = [change(lake, chance) for _ in range(chance.randint(0, 3))]
            fault = chance.choices(["", "job dies", *KILLS], [30, 2, 1, 1, 1, 1])[0] if step else ""
            told.append(f"{step}: {done} {fault}")
            (jobs.folder / "steps").write_text("\n".join(told))
            is_published = True
            if fault == "job dies":
                jobs.ask(fault)
                with pytest.raises(JobDiedError):
                    materialize(definitions, instance, "by_account")
                is_published = False
            elif fault:
                if fault == WITH_ITS_JOB:
                    jobs.ask("run dies")
                process = start_run(instance.root_directory, lake, "by_account", at=fault, of=with_jobs)
                process.join()
                assert process.exitcode in (0, -signal.SIGKILL)  # 0 if there was nothing to publish
                is_published = False
            else:
                materialize(definitions, instance, "by_account")
            found = sorted(lake.rows(TABLE).elements()) if step else before
            expected = recomputed(lake)
            assert found == expected if is_published and step else found in (before, expected), told
            before = found
        materialize(definitions, instance, "by_account")
        assert sorted(lake.rows(TABLE).elements()) == recomputed(lake), told
    finally:
        jobs.end()
