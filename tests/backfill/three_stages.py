"""Three stages from an outside table: daily and partitioned, by account, weekly; a bug can be planted in the first."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
from click.testing import CliRunner, Result
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips.cli.main import main
from tests.support.lake import Event, Lake, events
from tests.support.lake_catalog import catalog_resource
from tests.support.partitioned import DAYS, FROM_DAYS, SENSOR, WEEKS, run

PARTITION_TAGS = ("partition", "asset_partition_range_start", "asset_partition_range_end")
DAYS_OF = {day: [10 * day + i for i in range(5)] for day in range(10)}


def three_stages(lake_folder: Path, spark_folder: Path, *, bug: bool) -> dg.Definitions:
    """The pipeline; with the bug, seconds of account a1 are counted twice."""

    @dg.asset(
        partitions_def=DAYS,
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
        sunday = F.expr("date_sub(event_date, dayofweek(event_date) - 1)").alias("week")
        return day.source.groupBy(sunday).agg(F.sum("seconds").alias("seconds"))

    @dg.asset
    def report(week: DataFrame) -> None:
        week.count()

    manager = ips.IcdcIOManager(
        catalog=catalog_resource(lake_folder),
        spark=ips.LocalSparkConnect(server_folder=str(spark_folder)),
        icdc_keep_last=1,
    )
    playback = ips.iceberg_asset("playback", table="media.playback")
    assets = [playback, day, by_account, week, report]
    return ips.with_incremental(dg.Definitions(assets=assets, resources={"io_manager": manager}))


class ThreeStages:
    """The pipeline on a lake of ten days with five events each, and ``dagster-ips`` on it."""

    TABLES = ("media.day", "media.by_account", "media.week")

    def __init__(self, lake: Lake, instance: dg.DagsterInstance, folder: Path) -> None:
        self.lake, self.instance, self.folder = lake, instance, folder
        self.events: list[Event] = []
        self.has_bug = True
        self._cursor: str | None = None

    def deploy(self, *, bug: bool) -> None:
        """Code with the bug, or without."""
        self.has_bug = bug

    @property
    def definitions(self) -> dg.Definitions:
        return three_stages(self.lake.folder, self.lake.spark_folder, bug=self.has_bug)

    @property
    def file(self) -> Path:
        path = self.folder / f"{'buggy' if self.has_bug else 'fixed'}_definitions.py"
        path.write_text(
            "from pathlib import Path\n\nfrom tests.backfill.three_stages import three_stages\n\n"
            f"defs = three_stages(Path({str(self.lake.folder)!r}), Path({str(self.lake.spark_folder)!r}), "
            f"bug={self.has_bug})\n"
        )
        return path

    def begin(self) -> None:
        """Ten days of events, computed by buggy code."""
        self.lake.create_playback()
        self.arrive(*[event for number, ids in DAYS_OF.items() for event in events(ids, day=number)])

    def arrive(self, *rows: Event) -> None:
        """Events from outside, followed through all stages."""
        self.land(*rows)
        self.follow()

    def land(self, *rows: Event) -> None:
        """Events from outside."""
        self.lake.append(list(rows))
        self.events += rows

    def follow(self) -> list[tuple[str, ...]]:
        """What automation does until nothing is pending."""
        definitions = self.definitions
        repository = definitions.get_repository_def()
        (sensor,) = [s for s in repository.sensor_defs if isinstance(s, dg.AutomationConditionSensorDefinition)]
        job, runs = definitions.resolve_implicit_global_asset_job_def(), []
        while True:
            context = dg.build_sensor_context(self.instance, cursor=self._cursor, repository_def=repository)
            data = sensor.evaluate_tick(context)
            self._cursor = data.cursor
            if not data.run_requests:
                return runs
            for request in data.run_requests:
                selected = list(request.asset_selection or ())
                job.execute_in_process(
                    instance=self.instance, asset_selection=selected, tags={**request.tags, **SENSOR}
                )
                keys = [request.tags.get(f"dagster/{tag}", "") for tag in PARTITION_TAGS]
                runs.append(("+".join(sorted(key.to_user_string() for key in selected)), *keys))

    def rows(self) -> dict[str, Counter[tuple[Any, ...]]]:
        return {table: self.lake.rows(table) for table in self.TABLES}

    def run(self, asset: str, first: str, last: str = "", **tags: str) -> None:
        run(self.definitions, self.instance, asset, first, last, **tags)

    def backfill(self, backfill_id: str) -> None:
        """What the daemon does of a backfill that was launched: one run of its partitions, and the end of it."""
        found = self.instance.get_backfill(backfill_id)
        assert found is not None
        assert found.asset_backfill_data is not None
        subset = found.asset_backfill_data.target_subset
        ((key, partitions),) = subset.partitions_subsets_by_asset_key.items()
        keys = sorted(partitions.get_partition_keys())
        assert keys == list(DAYS.get_partition_keys_in_range(dg.PartitionKeyRange(keys[0], keys[-1])))
        tags = {**found.tags, "dagster/backfill": backfill_id}
        self.run(key.to_user_string(), keys[0], keys[-1], **tags)
        self.instance.update_backfill(found.with_status(type(found.status).COMPLETED_SUCCESS))

    def stage(self, backfill_id: str, *assets: str) -> None:
        """What the daemon does of a backfill that is staged: one run of each asset; with the last it ends."""
        found = self.instance.get_backfill(backfill_id)
        assert found is not None
        assert found.asset_backfill_data is not None
        subset = found.asset_backfill_data.target_subset
        tags = {**found.tags, "dagster/backfill": backfill_id}
        for asset in assets:
            if dg.AssetKey(asset) in subset.non_partitioned_asset_keys:
                job = self.definitions.resolve_implicit_global_asset_job_def()
                job.execute_in_process(instance=self.instance, asset_selection=[dg.AssetKey(asset)], tags=tags)
                continue
            keys = sorted(subset.partitions_subsets_by_asset_key[dg.AssetKey(asset)].get_partition_keys())
            self.run(asset, keys[0], keys[-1], **tags)
        if "week" in assets:
            self.instance.update_backfill(found.with_status(type(found.status).COMPLETED_SUCCESS))

    def staged(self, *words: str) -> str:
        """The id of a backfill that is planned and staged, and not published."""
        plan = self.plan(*words)
        assert "main stays as it is" in self.says("launch", plan, "--staged", "--yes")
        self.stage(plan, "day", "by_account", "week")
        return plan

    def command(self, name: str, *words: str, answer: str = "") -> Result:
        return CliRunner().invoke(main, ["backfill", name, "-f", str(self.file), *words], input=answer)

    def says(self, name: str, *words: str, answer: str = "") -> str:
        """What a command prints that succeeds."""
        result = self.command(name, *words, answer=answer)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    def told(self, name: str, *words: str) -> dict[str, Any]:
        """What it prints as JSON."""
        found: dict[str, Any] = json.loads(self.says(name, *words, "--json"))
        return found

    def refuses(self, name: str, *words: str) -> str:
        """What a command prints that ends with an error of ours."""
        result = self.command(name, *words)
        assert result.exit_code in (1, 2), result.output
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.stderr

    def plan(self, *words: str) -> str:
        """The id of a plan."""
        plan: str = self.told("plan", *words)["id"]
        return plan

    def right(self, *, bug: bool) -> dict[str, Counter[tuple[Any, ...]]]:
        """What the tables must hold, computed without Spark, if all was made by such code."""
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
