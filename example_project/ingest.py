"""The job that lands playback events in ``media.playback``. It is another team's job, outside Dagster, without Spark.

It also writes ``media.account_plan``, the plan that each account has from a given day; some plans change once a week,
and some changes arrive late.

    python -m example_project.ingest --days 3 --rows-per-day 300000 --late 0.03

Each day lands in six commits of small files, one for every four hours. The job reads from the table's own history how
far it is, so it continues where it ended, was stopped or was killed.
"""

import argparse
import datetime as dt
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, IntegerType, LongType, NestedField, StringType, TimestamptzType

from example_project.events import BATCHES_PER_DAY, FIRST_DAY, Workload, landing_batches, plan_changes, titles
from example_project.lake import lake_folder, open_catalog

PLAYBACK = "media.playback"
ACCOUNT_PLAN = "media.account_plan"
TITLE = "media.title"

_DAY_LANDED = "ingest.day"
_BATCHES_LANDED = "ingest.batches"
_EVENT_DATE = NestedField(8, "event_date", DateType())
_PLAYBACK_SCHEMA = Schema(
    NestedField(1, "event_id", LongType()),
    NestedField(2, "account_id", LongType()),
    NestedField(3, "title_id", IntegerType()),
    NestedField(4, "device", StringType()),
    NestedField(5, "country", StringType()),
    NestedField(6, "play_seconds", IntegerType()),
    NestedField(7, "event_ts", TimestamptzType()),
    _EVENT_DATE,
    NestedField(9, "ingested_at", TimestamptzType()),
)
_BY_DATE = PartitionSpec(PartitionField(_EVENT_DATE.field_id, 1000, IdentityTransform(), _EVENT_DATE.name))
_PLAN_SCHEMA = Schema(
    NestedField(1, "change_id", LongType()),
    NestedField(2, "account_id", LongType()),
    NestedField(3, "plan", StringType()),
    NestedField(4, "valid_on", DateType()),
)
_TITLE_SCHEMA = Schema(
    NestedField(1, "title_id", IntegerType()),
    NestedField(2, "title_name", StringType()),
    NestedField(3, "genre", StringType()),
    NestedField(4, "runtime_seconds", IntegerType()),
)


@dataclass(frozen=True)
class Landed:
    """How far the job is: the table has every batch before number ``batches`` of day number ``day``."""

    day: int
    batches: int


def ingest(folder: Path, days: int, workload: Workload) -> None:
    """Land ``days`` more days in the lake in ``folder``. A day that was begun is completed first, and counts as one."""
    playback, plans = _create_tables(open_catalog(folder))
    for _ in range(days):
        start = landed(playback)
        _land_plan_changes(plans, start.day, workload)
        _land_day(playback, start, workload)


def landed(table: Table) -> Landed:
    """How far the job is, according to its newest commit. Other jobs' commits, such as compactions, are skipped."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        properties = snapshot.summary.additional_properties if snapshot.summary else {}
        if _DAY_LANDED in properties:
            day, batches = int(properties[_DAY_LANDED]), int(properties[_BATCHES_LANDED])
            return Landed(day + 1, 0) if batches == BATCHES_PER_DAY else Landed(day, batches)
        snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id else None
    return Landed(0, 0)


def _create_tables(catalog: Catalog) -> tuple[Table, Table]:
    catalog.create_namespace_if_not_exists("media")
    properties = {"format-version": "2"}
    # The title table is a separate asset. It is created in one commit, so that nobody sees it without its rows.
    if not catalog.table_exists(TITLE):
        with catalog.create_table_transaction(TITLE, _TITLE_SCHEMA, properties=properties) as creation:
            creation.append(titles())
    plans = catalog.create_table_if_not_exists(ACCOUNT_PLAN, _PLAN_SCHEMA, properties=properties)
    playback = catalog.create_table_if_not_exists(
        PLAYBACK, _PLAYBACK_SCHEMA, partition_spec=_BY_DATE, properties=properties
    )
    return playback, plans


def _land_plan_changes(plans: Table, up_to_day: int, workload: Workload) -> None:
    for day in range(landed(plans).day, up_to_day + 1):
        changes = plan_changes(day, workload)
        if changes.num_rows:
            plans.append(changes, snapshot_properties={_DAY_LANDED: str(day), _BATCHES_LANDED: str(BATCHES_PER_DAY)})


def _land_day(table: Table, start: Landed, workload: Workload) -> None:
    started = time.monotonic()
    batches = landing_batches(start.day, workload)
    files_before = _total_files(table)
    for number in range(start.batches, BATCHES_PER_DAY):
        done = {_DAY_LANDED: str(start.day), _BATCHES_LANDED: str(number + 1)}
        table.append(batches[number], snapshot_properties=done)
    rows = sum(batch.num_rows for batch in batches[start.batches :])
    files = _total_files(table) - files_before
    day = FIRST_DAY + dt.timedelta(days=start.day)
    print(f"{day}  {rows:,} rows in {files} files  {time.monotonic() - started:.1f} s", flush=True)


def _total_files(table: Table) -> int:
    snapshot = table.current_snapshot()
    properties = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
    return int(properties.get("total-data-files", 0))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    defaults = Workload()
    parser = argparse.ArgumentParser(
        prog="python -m example_project.ingest", description="Write days of playback events to the lake."
    )
    parser.add_argument("--days", type=int, required=True)
    parser.add_argument("--rows-per-day", type=int, default=defaults.rows_per_day)
    parser.add_argument("--late", type=float, default=defaults.late, help="fraction of rows from the previous 13 days")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument(
        "--lake", type=Path, default=None, help="the lake's folder (default: $PLAYBACK_LAKE or .local/lake)"
    )
    given = parser.parse_args(arguments)
    folder = given.lake.absolute() if given.lake else lake_folder()
    ingest(folder, given.days, Workload(given.rows_per_day, given.late, given.seed))


if __name__ == "__main__":
    main()
