"""Three stages over an outside table: daily partitions, by account, weekly. The first one can have a bug.

The same three can be written by statements of their own.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips._compat import knowing_partitions
from dagster_ips.exactly_once.capture.partitioned_input import look_at
from dagster_ips.orchestration.backfill.desk import BackfillDesk
from tests.backfill.backfilled_pipeline import BackfilledPipeline
from tests.support.lake import Lake, events
from tests.support.lake_definitions import manager_on
from tests.support.partitioned import DAYS, FROM_DAYS, WEEKS

DAYS_OF = {day: [10 * day + i for i in range(5)] for day in range(10)}


SUNDAY = "date_sub(event_date, dayofweek(event_date) - 1)"


def three_stages_of_statements(lake_folder: Path, spark_folder: Path, *, bug: bool) -> dg.Definitions:
    """The pipeline in which each stage writes by statements of its own."""

    @dg.asset(
        partitions_def=DAYS,
        code_version="buggy" if bug else "fixed",
        deps=[ips.incremental_dep("playback")],
        metadata=ips.table("media.day", partition_by=["event_date"]) | {"partition_expr": "event_date"},
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def day(context):  # noqa: ANN001, ANN202  # Dagster reads annotations at run time, and here they are strings
        columns = "event_id BIGINT, event_date DATE, account STRING, seconds BIGINT"
        with ips.capture(context, columns=columns) as icdc:
            icdc.sql("""MERGE INTO {target} t USING {removed} r
                ON t.event_date = r.event_date AND t.event_id = r.event_id WHEN MATCHED THEN DELETE""")
            seconds = "if(account = 'a1', seconds * 2, seconds)" if bug else "seconds"
            icdc.sql(f"INSERT INTO {{target}} SELECT event_id, event_date, account, {seconds} FROM {{added}}")

    @dg.asset(code_version="1", deps=[ips.incremental_dep("day")], metadata=ips.table("media.by_account"))
    def by_account(context):  # noqa: ANN001, ANN202  # as above
        with ips.capture(context, columns="account STRING, plays BIGINT, seconds BIGINT") as icdc:
            changed = "(SELECT account FROM {added} UNION SELECT account FROM {removed})"
            icdc.sql(f"DELETE FROM {{target}} WHERE account IN {changed}")
            icdc.sql(f"""INSERT INTO {{target}} SELECT account, count(*), sum(seconds) FROM {{source}}
                WHERE account IN {changed} GROUP BY account""")

    @dg.asset(
        partitions_def=WEEKS,
        code_version="1",
        deps=[ips.incremental_dep("day", partition_mapping=FROM_DAYS)],
        metadata=ips.table("media.week", partition_by=["week"]) | {"partition_expr": "week"},
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def week(context):  # noqa: ANN001, ANN202  # as above
        with ips.capture(context, columns="week DATE, seconds BIGINT") as icdc:
            changed = f"(SELECT {SUNDAY} FROM {{added}} UNION SELECT {SUNDAY} FROM {{removed}})"
            icdc.sql(f"DELETE FROM {{target}} WHERE week IN {changed}")
            icdc.sql(f"""INSERT INTO {{target}} SELECT {SUNDAY}, sum(seconds) FROM {{source}}
                WHERE {SUNDAY} IN {changed} GROUP BY 1""")

    manager = manager_on(lake_folder, spark_folder, icdc_keep_last=1)
    playback = ips.iceberg_asset("playback", table="media.playback")
    assets = [playback, day, by_account, week]
    return ips.with_incremental(dg.Definitions(assets=assets, resources={"io_manager": manager}))


def three_stages(lake_folder: Path, spark_folder: Path, *, bug: bool, by_week: bool = False) -> dg.Definitions:
    """The pipeline; with the bug, it doubles the seconds of account a1. The first stage can have weekly partitions."""

    @dg.asset(
        partitions_def=WEEKS if by_week else DAYS,
        code_version="buggy" if bug else "fixed",
        ins={"playback": ips.incremental()},
        metadata=ips.merge(on=["event_date", "event_id"])
        | ips.table("media.day", partition_by=["event_date"])
        | {"partition_expr": "event_date"},
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def day(playback: ips.IcdcView) -> DataFrame:
        wrong = F.when(F.col("account") == "a1", F.col("seconds") * 2).otherwise(F.col("seconds"))
        return playback.added.withColumn("seconds", wrong if bug else F.col("seconds"))

    @dg.asset(
        code_version="1",
        ins={"day": ips.incremental()},
        metadata=ips.merge(on=["account"]) | ips.table("media.by_account"),
    )
    def by_account(day: ips.IcdcView) -> DataFrame:
        whole = day.affected("account").groupBy("account")
        return whole.agg(F.count("*").alias("plays"), F.sum("seconds").alias("seconds"))

    @dg.asset(
        partitions_def=WEEKS,
        code_version="1",
        ins={"day": ips.incremental(partition_mapping=FROM_DAYS)},
        metadata=ips.replace() | ips.table("media.week", partition_by=["week"]) | {"partition_expr": "week"},
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def week(day: ips.IcdcView) -> DataFrame:
        sunday = F.expr(SUNDAY).alias("week")
        return day.source.groupBy(sunday).agg(F.sum("seconds").alias("seconds"))

    @dg.asset
    def report(week: DataFrame) -> None:
        week.count()

    manager = manager_on(lake_folder, spark_folder, icdc_keep_last=1)
    playback = ips.iceberg_asset("playback", table="media.playback")
    assets = [playback, day, by_account, week, report]
    return ips.with_incremental(dg.Definitions(assets=assets, resources={"io_manager": manager}))


class ThreeStages(BackfilledPipeline):
    """The pipeline on a lake of ten days with five events each."""

    TABLES = ("media.day", "media.by_account", "media.week")
    LAST = "week"

    def __init__(self, lake: Lake, instance: dg.DagsterInstance, folder: Path) -> None:
        super().__init__(lake, instance, folder)
        self.has_bug, self.is_by_week, self.is_of_statements = True, False, False

    def deploy(self, *, bug: bool, by_week: bool = False) -> None:
        """Deploy code with or without the bug, and with daily or weekly partitions of the first stage."""
        self.has_bug, self.is_by_week = bug, by_week

    @property
    def definitions(self) -> dg.Definitions:
        if self.is_of_statements:
            return three_stages_of_statements(self.lake.folder, self.lake.spark_folder, bug=self.has_bug)
        return three_stages(self.lake.folder, self.lake.spark_folder, bug=self.has_bug, by_week=self.is_by_week)

    @property
    def file(self) -> Path:
        path = self.folder / f"{'buggy' if self.has_bug else 'fixed'}_{'weeks' if self.is_by_week else 'days'}.py"
        made_by = "three_stages_of_statements" if self.is_of_statements else "three_stages"
        more = "" if self.is_of_statements else f", by_week={self.is_by_week}"
        path.write_text(
            f"from pathlib import Path\n\nfrom tests.backfill.three_stages import {made_by}\n\n"
            f"defs = {made_by}(Path({str(self.lake.folder)!r}), Path({str(self.lake.spark_folder)!r}), "
            f"bug={self.has_bug}{more})\n"
        )
        return path

    def begin(self) -> None:
        """Append ten days of events, and compute them with the buggy code."""
        self.lake.create_playback()
        self.arrive(*[event for number, ids in DAYS_OF.items() for event in events(ids, day=number)])

    def staged(self, *words: str) -> str:
        """The id of a backfill that is planned and staged but not published."""
        plan = self.plan(*words)
        assert "main doesn't change" in self.says("launch", plan, "--staged", "--yes")
        self.stage(plan, "day", "by_account", "week")
        return plan

    def pending_days(self) -> set[str]:
        """The partitions of the first stage that have something to consume."""
        lineage = BackfillDesk.of([self.definitions], self.instance).lineage
        known, source = lineage.known("day", lineage.metadata("day")), lineage.metadata("playback")
        assert source is not None
        with knowing_partitions(self.instance):
            (tracked,) = lineage.inputs("day").values()
            return set(look_at(self.lake.catalog.storage, source, tracked, known, "day").pending)

    def right(self, *, bug: bool) -> dict[str, Counter[tuple[Any, ...]]]:
        """What the tables must hold, computed without Spark, if this code made everything."""
        day = [(i, d, a, s * (2 if bug and a == "a1" else 1)) for i, d, a, s in self.events]
        accounts: dict[str, list[int]] = {}
        weeks: Counter[dt.date] = Counter()
        for _, date, account, seconds in day:
            accounts.setdefault(account, []).append(seconds)
            weeks[date - dt.timedelta(days=(date.weekday() + 1) % 7)] += seconds
        return {
            "media.day": Counter(day),
            "media.by_account": Counter((a, len(each), sum(each)) for a, each in accounts.items()),
            "media.week": Counter(weeks.items()),
        }
