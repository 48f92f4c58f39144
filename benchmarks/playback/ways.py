"""The ways to keep both tables up to date, each with its own tables."""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import dagster as dg
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.definitions.reconstruct import ReconstructableJob, ReconstructableRepository
from dagster._core.launcher import LaunchRunContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the usual name

from benchmarks.playback.source import FIRST_DAY, Source
from benchmarks.playback.stages import Stages

NAMESPACE = "lake.db"
Span = tuple[float, float]
"""When something began and ended, in seconds since the epoch."""
STAGES = ("stage 1", "stage 2")


class Way(ABC):
    """Keeps ``tables`` (stage 1's and stage 2's) up to date.

    ``is_right`` says whether they must equal a recompute. ``own_cpu`` is the CPU seconds that a process other than
    Spark's took in the last update.
    """

    name: str
    tables: tuple[str, str]
    is_right = True
    own_cpu = 0.0

    @abstractmethod
    def create(self) -> None:
        """Create both tables from the current source."""

    @abstractmethod
    def update(self) -> tuple[Span, Span, Span]:
        """Process what has arrived since; returns when each stage worked, and the time of both together."""


@dataclass
class Handwritten(Way):
    """A way that you would write by hand in Spark; its tables are named after it."""

    source: Source
    name: str

    def __post_init__(self) -> None:
        self.tables = (f"{NAMESPACE}.{self.name}_daily", f"{NAMESPACE}.{self.name}_by_account")

    def create(self) -> None:
        stage_1 = self._stages.enriched(self._playback, self._title)
        _make(stage_1, self.tables[0])
        _make(self._stages.per_account(self.source.session.table(self.tables[0])), self.tables[1])

    @property
    def _stages(self) -> Stages:
        return self.source.workload.stages

    @property
    def _playback(self) -> DataFrame:
        return self.source.session.table(f"{NAMESPACE}.playback")

    @property
    def _title(self) -> DataFrame:
        return self.source.session.table(f"{NAMESPACE}.title")

    def update(self) -> tuple[Span, Span, Span]:
        started = time.time()
        self.stage_1()
        between = time.time()
        self.stage_2()
        ended = time.time()
        return (started, between), (between, ended), (started, ended)

    @abstractmethod
    def stage_1(self) -> None:
        """Update stage 1's table."""

    @abstractmethod
    def stage_2(self) -> None:
        """Update stage 2's table."""


@dataclass
class Lookback(Handwritten):
    """Rewrite the last ``window`` days of both tables."""

    window: int = 14

    def __post_init__(self) -> None:
        super().__post_init__()
        self.is_right = self.name == "lookback"

    def stage_1(self) -> None:
        _overwrite(self._stages.enriched(self._since(self._playback), self._title), self.tables[0])

    def stage_2(self) -> None:
        _overwrite(self._stages.per_account(self._since(self.source.session.table(self.tables[0]))), self.tables[1])

    def _since(self, rows: DataFrame) -> DataFrame:
        return rows.where(F.expr(f"event_date >= date_add({FIRST_DAY}, {self.source.days - self.window})"))


@dataclass
class ByScan(Handwritten):
    """Append what an incremental scan finds, and MERGE its totals into the groups: right while rows are only added."""

    def create(self) -> None:
        super().create()
        self._seen = self._heads()

    def update(self) -> tuple[Span, Span, Span]:
        spans = super().update()
        self._seen = self._heads()
        return spans

    def stage_1(self) -> None:
        self._stages.enriched(self._new(0), self._title).writeTo(self.tables[0]).append()

    def stage_2(self) -> None:
        self._stages.per_account(self._new(1)).createOrReplaceTempView("new_totals")
        sums = ", ".join(_added_up(name, sql) for name, sql in self._stages.sums.items())
        self.source.session.sql(
            f"MERGE INTO {self.tables[1]} t USING new_totals c "
            "ON t.event_date = c.event_date AND t.account_id = c.account_id WHEN MATCHED THEN UPDATE SET "
            f"{sums} "
            "WHEN NOT MATCHED THEN INSERT *"
        ).collect()

    def _sources(self) -> tuple[str, str]:
        return f"{NAMESPACE}.playback", self.tables[0]

    def _heads(self) -> list[int]:
        return [
            self.source.session.sql(f"SELECT snapshot_id FROM {table}.refs WHERE name = 'main'").collect()[0][0]
            for table in self._sources()
        ]

    def _new(self, stage: int) -> DataFrame:
        options = {"start-snapshot-id": str(self._seen[stage])}
        return self.source.session.read.format("iceberg").options(**options).load(self._sources()[stage])


@dataclass
class ByChangelogView(ByScan):
    """Like ``ByScan``, with the rows that ``create_changelog_view`` reports as inserted."""

    def _new(self, stage: int) -> DataFrame:
        table = self._sources()[stage]
        self.source.session.sql(
            f"CALL lake.system.create_changelog_view(table => '{table.removeprefix('lake.')}', "
            f"options => map('start-snapshot-id', '{self._seen[stage]}'), changelog_view => 'changelog_{stage}')"
        ).collect()
        return self.source.session.table(f"changelog_{stage}").where("_change_type = 'INSERT'")


@dataclass
class Copy(ByScan):
    """A lower bound for stage 1: it copies the changed rows unchanged; there is no stage 2."""

    is_right = False

    def create(self) -> None:
        _make(self._playback, self.tables[0])
        self._seen = self._heads()

    def stage_1(self) -> None:
        self._new(0).writeTo(self.tables[0]).append()

    def stage_2(self) -> None:
        pass


def _added_up(name: str, sql: str) -> str:
    """How a MERGE adds the aggregate ``sql`` of new rows ``c`` to what the target ``t`` has."""
    extreme = {"max": "greatest", "min": "least"}.get(sql.partition("(")[0])
    return f"{name} = {extreme}(t.{name}, c.{name})" if extreme else f"{name} = t.{name} + c.{name}"


SETTINGS = """
telemetry: {enabled: false}
run_launcher: {module: dagster_ips.orchestration.launch, class: ForkingRunLauncher}
"""


@dataclass
class ByChange(Way):
    """This library in normal use: Dagster runs both stages in one run, in a process of its own."""

    folder: Path
    name: str
    assets: tuple[str, str]

    def __post_init__(self) -> None:
        self.tables = (f"{NAMESPACE}.{self.assets[0]}", f"{NAMESPACE}.{self.assets[1]}")
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        (home / "dagster.yaml").write_text(SETTINGS)

    def create(self) -> None:
        self.update()

    def update(self) -> tuple[Span, Span, Span]:
        instance, job = loaded(self.folder)
        before, started = _cpu_of_runs(), time.time()
        run = instance.create_run_for_job(
            job.get_definition(),
            job_code_origin=job.get_python_origin(),
            asset_selection=frozenset(map(dg.AssetKey, self.assets)),
            status=dg.DagsterRunStatus.STARTING,
        )
        instance.run_launcher.launch_run(LaunchRunContext(run, None))
        while not (found := instance.get_run_by_id(run.run_id)) or not found.is_finished:
            time.sleep(0.01)
        ended = time.time()
        if not found.is_success:
            raise RuntimeError(run.run_id, "failed", instance.all_logs(run.run_id)[-1])
        # A process's CPU time is known to its parent once it has ended.
        while (after := _cpu_of_runs()) == before:
            time.sleep(0.01)
        self.own_cpu = after - before
        stage_1, stage_2 = self._steps(instance, run.run_id)
        return stage_1, stage_2, (started, ended)

    def _steps(self, instance: dg.DagsterInstance, run_id: str) -> Iterator[Span]:
        times = {step.step_key: step for step in instance.get_run_step_stats(run_id)}
        for asset in self.assets:
            step = times[asset]
            if step.start_time is None or step.end_time is None:
                raise RuntimeError(asset, "has not run")
            yield step.start_time, step.end_time


@cache
def loaded(folder: Path) -> tuple[dg.DagsterInstance, ReconstructableJob]:
    """Dagster, and the job of all assets, as a daemon has them at hand."""
    os.environ["PLAYBACK_BENCHMARK"] = str(folder)
    pointer = ModuleCodePointer("benchmarks.playback.definitions", "defs", str(Path.cwd()))
    job = ReconstructableRepository(pointer).get_reconstructable_job("__ASSET_JOB")
    return dg.DagsterInstance.from_config(str(folder / "home")), job


def _cpu_of_runs() -> float:
    """The CPU seconds of all runs' processes that have ended: of the ended children of this process's children."""
    ticks = 0
    for child in Path("/proc/self/task").glob("*/children"):
        for pid in child.read_text().split():
            if "run_forker" in Path(f"/proc/{pid}/cmdline").read_text():
                *_, last = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
                ticks += sum(map(int, last.split()[13:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _make(rows: DataFrame, table: str) -> None:
    # With copy-on-write, a MERGE would be several times more expensive.
    writer = rows.writeTo(table).using("iceberg").tableProperty("write.merge.mode", "merge-on-read")
    writer.partitionedBy(F.col("event_date")).createOrReplace()


def _overwrite(rows: DataFrame, table: str) -> None:
    rows.writeTo(table).overwritePartitions()
