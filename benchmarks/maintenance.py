"""What a month of daily merges leaves behind, and how maintenance helps: ``python -m benchmarks.maintenance``.

Each day brings rows of that day and late rows of the days before, which an asset merges. Reads are timed before the
merges, after them, and after the job ``ips_hygiene``. The table is compared with a recompute, and a consumer that
follows it must see no change in what the job did.
"""

import time
from collections.abc import Callable
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the usual name

import dagster_ips as ips
from benchmarks.dagster_lake import DagsterLake, dagster_lake
from benchmarks.lake import Consumer
from benchmarks.report import Best, Report, best, require_same, said, table

MERGES = 30
WINDOW = 14
ROWS, FULL_ROWS = 20_000, 300_000
LATE = 0.05


@dg.asset(
    ins={"events": ips.incremental()},
    metadata=ips.merge(on=["day", "account"]) | ips.table("db.totals", partition_by=["day"]),
)
def totals(events: ips.IcdcView) -> DataFrame:
    rows = events.affected("day", "account")
    return rows.groupBy("day", "account").agg(F.count("*").alias("plays"), F.sum("seconds").alias("seconds"))


RECOMPUTED = "SELECT day, account, count(*) AS plays, sum(seconds) AS seconds FROM lake.db.events GROUP BY day, account"
SUMS = "SELECT count(*), bit_xor(xxhash64(day, account, plays, seconds)) FROM"


def insert(lake: DagsterLake, number: int, rows: int) -> None:
    """Insert the rows that arrive on day ``number``, of which some are late."""
    late = f"pmod(xxhash64(id, 5), 1000) < {1000 * LATE}"
    days = f"{number} - CASE WHEN {late} THEN 1 + pmod(xxhash64(id, 6), {WINDOW - 1}) ELSE 0 END"
    lake.session.sql(
        f"INSERT INTO lake.db.events SELECT date_add(DATE '2026-01-01', CAST({days} AS INT)) AS day, "
        f"pmod(xxhash64(id), {rows // 2}) AS account, id % 600 AS seconds "
        f"FROM range({number * rows}, {(number + 1) * rows}, 1, 1)"
    ).collect()


def readers(lake: DagsterLake) -> dict[str, Callable[[], object]]:
    """The queries that are timed: over the whole table, over 14 days, and for one account of one day."""
    since = f"day >= date_add(DATE '2026-01-01', {WINDOW + MERGES - WINDOW})"
    one = f"day = date_add(DATE '2026-01-01', {WINDOW + MERGES - 3}) AND account = 7"
    conditions = {"everything": "TRUE", "14 days": since, "one account of a day": one}
    return {
        what: lambda condition=condition: lake.rows(
            f"SELECT sum(plays), max(seconds) FROM lake.db.totals WHERE {condition}"
        )
        for what, condition in conditions.items()
    }


def state(lake: DagsterLake) -> dict[str, Any]:
    """How many files and partitions the table has."""
    (files,) = lake.rows(
        "SELECT count_if(content = 0), count_if(content > 0), count(DISTINCT partition) FROM lake.db.totals.files"
    )
    return dict(zip(("data files", "delete files", "partitions"), files, strict=True))


def measure(rows: int) -> tuple[list[tuple[str, dict[str, Any], dict[str, Best]]], float]:
    """For each point in time its name, the table's files and the readers' times; and the seconds of the job."""
    with dagster_lake([totals]) as lake:
        lake.session.sql(
            "CREATE TABLE lake.db.events (day DATE, account BIGINT, seconds BIGINT) USING iceberg "
            "PARTITIONED BY (day) TBLPROPERTIES ('write.distribution-mode' = 'hash')"
        )
        for number in range(WINDOW):
            insert(lake, number, rows)
        lake.run("totals")
        found = [("after the first run", state(lake), best(readers(lake), rounds=3))]
        for number in range(WINDOW, WINDOW + MERGES):
            insert(lake, number, rows)
            lake.run("totals")
            said(f"merge {number - WINDOW + 1} of {MERGES}")
        right = lake.rows(f"{SUMS} ({RECOMPUTED})")
        require_same(lake.rows(f"{SUMS} lake.db.totals"), right, of="the merged table")
        follower = Consumer(lake.lake, lake.session, "db.totals")
        follower.skip_to_head()
        found.append((f"after {MERGES} merges", state(lake), best(readers(lake), rounds=3)))
        started = time.perf_counter()
        lake.run_job("ips_hygiene", {"ops": {"tidy_up": {"config": {"keep_days": 0, "min_input_files": 2}}}})
        seconds = time.perf_counter() - started
        require_same(lake.rows(f"{SUMS} lake.db.totals"), right, of="the table that was tidied up")
        require_same(follower.capture().files.changes.is_empty, True, of="no change for who follows the table")  # noqa: FBT003
        found.append(("after `ips_hygiene`", state(lake), best(readers(lake), rounds=3)))
        return found, seconds


def main() -> None:
    report = Report.from_arguments("maintenance", __doc__)
    rows = FULL_ROWS if report.is_full else ROWS
    found, seconds = measure(rows)
    heads = ["", *found[0][1], *found[0][2]]
    lines = [[when, *[f"{count:,}" for count in files.values()], *map(str, ms.values())] for when, files, ms in found]
    report.publish(
        f"""# What daily merges leave behind

Written by `python -m benchmarks.maintenance`. {MERGES} days of {rows:,} rows each arrive, {LATE:.0%} of them late
within {WINDOW} days, and an asset merges their totals by day and account. The table shows how long readers take (the
best of three) before and after the job `ips_hygiene`, which took {seconds:.1f} s for the whole table. Before and after
it, the table equalled a recompute, and a consumer of the table saw no change.

{report.conditions()}

{table(heads, lines)}""",
        {
            "hygiene seconds": seconds,
            "points": [[when, files, {k: vars(v) for k, v in ms.items()}] for when, files, ms in found],
        },
    )


if __name__ == "__main__":
    main()
