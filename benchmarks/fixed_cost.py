"""What a run costs, however little has changed: ``python -m benchmarks.fixed_cost``.

An append and a merge by affected keys process changes of 1, 1,000 and 100,000 rows. The library itself reports when
each part begins and ends, at every durable effect of a run. The tables are compared with a recompute.
"""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the usual name

import dagster_ips as ips
from benchmarks.dagster_lake import DagsterLake, dagster_lake
from benchmarks.report import Report, require_same, said, table
from dagster_ips.exactly_once import effects
from dagster_ips.exactly_once.effects import Effect

CHANGES = (1, 1_000, 100_000)
ROUNDS, FULL_ROUNDS = 3, 7
DAYS, ACCOUNTS = 30, 50_000
ROWS, FULL_ROWS = 1_000_000, 10_000_000

PARTS = {
    "capture": "find what changed: read both tables' metadata and the manifests that changed",
    "ICDC files": "write the metadata of the ICDC table",
    "register": "register that table in the catalog",
    "plan": "open the Spark session, call the asset function, and inspect its result's plan",
    "branch": "create the branch",
    "Spark jobs": "compute the result and write it to the branch, including Iceberg's commits",
    "check": "inspect the branch, and run audits",
    "publish": "the commit that moves main and the tag, and drops the branch",
    "copy": "copy the table's progress to Dagster's database",
    "metadata": "collect what the run shows in Dagster; drop old ICDC tables",
}
"""Parts of a step, in order; each ends where the next begins."""


@dg.asset(ins={"events": ips.incremental()}, metadata=ips.append() | ips.table("db.plays", partition_by=["day"]))
def plays(events: ips.IcdcView) -> DataFrame:
    return events.added.withColumn("minutes", F.floor(F.col("seconds") / 60))


@dg.asset(
    ins={"events": ips.incremental()},
    metadata=ips.merge(on=["day", "account"]) | ips.table("db.totals", partition_by=["day"]),
)
def totals(events: ips.IcdcView) -> DataFrame:
    rows = events.affected("day", "account")
    return rows.groupBy("day", "account").agg(F.count("*").alias("plays"), F.sum("seconds").alias("seconds"))


ASSETS = {"plays": "append", "totals": "merge by affected keys"}
RECOMPUTED = {
    "plays": "SELECT id, day, account, seconds, floor(seconds / 60) AS minutes FROM lake.db.events",
    "totals": "SELECT day, account, count(*) AS plays, sum(seconds) AS seconds FROM lake.db.events GROUP BY ALL",
}


@dataclass(frozen=True)
class Moment:
    effect: Effect
    when: str
    at: float


class Watch:
    """Records when each effect of a run begins and ends."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []

    def __call__(self, effect: Effect, when: str) -> None:
        self.moments.append(Moment(effect, when, time.time()))

    def __enter__(self) -> Self:
        effects.observers.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        effects.observers.remove(self)

    def first(self, effect: Effect, when: str) -> float:
        return next(each.at for each in self.moments if (each.effect, each.when) == (effect, when))

    def last(self, effect: Effect, when: str) -> float:
        return next(each.at for each in reversed(self.moments) if (each.effect, each.when) == (effect, when))


def parts(watch: Watch, began: float, ended: float) -> dict[str, float]:
    """The milliseconds of each of ``PARTS``, which together are the whole step."""
    ends = {
        "capture": watch.first(Effect.WRITE_ICDC_FILES, "before"),
        "ICDC files": watch.last(Effect.WRITE_ICDC_FILES, "after"),
        "register": watch.last(Effect.REGISTER_ICDC_TABLE, "after"),
        "plan": watch.first(Effect.CREATE_BRANCH, "before"),
        "branch": watch.last(Effect.CREATE_BRANCH, "after"),
        "Spark jobs": watch.last(Effect.WRITE_BRANCH, "after"),
        "check": watch.first(Effect.PUBLISH, "before"),
        "publish": watch.last(Effect.PUBLISH, "after"),
        "copy": watch.last(Effect.COPY_PROGRESS, "after"),
        "metadata": ended,
    }
    starts = [began, *ends.values()]
    return {name: (end - start) * 1000 for (name, end), start in zip(ends.items(), starts, strict=False)}


def take_in(lake: DagsterLake, asset: str) -> dict[str, float]:
    """Run an asset once; returns the milliseconds of the run's parts."""
    with Watch() as watch:
        run_id = lake.run(asset)
    (step,) = [each for each in lake.instance.get_run_step_stats(run_id) if each.step_key == asset]
    if step.start_time is None or step.end_time is None:
        raise RuntimeError(asset, "has no times")
    return parts(watch, step.start_time, step.end_time)


def insert(lake: DagsterLake, first: int, count: int, *, days: str) -> None:
    lake.session.sql(
        f"INSERT INTO lake.db.events SELECT id, date_add(DATE '2026-01-01', CAST({days} AS INT)) AS day, "
        f"pmod(xxhash64(id), {ACCOUNTS}) AS account, id % 600 AS seconds FROM range({first}, {first + count}, 1, 2)"
    ).collect()


def measure(rows: int, rounds: int) -> dict[str, dict[int, dict[str, float]]]:
    """The median milliseconds of each part, by asset and number of rows changed."""
    taken: dict[str, dict[int, list[dict[str, float]]]] = {name: {count: [] for count in CHANGES} for name in ASSETS}
    with dagster_lake([plays, totals]) as lake:
        lake.session.sql(
            "CREATE TABLE lake.db.events (id BIGINT, day DATE, account BIGINT, seconds BIGINT) USING iceberg "
            "PARTITIONED BY (day) TBLPROPERTIES ('write.distribution-mode' = 'hash')"
        )
        insert(lake, 0, rows, days=f"id % {DAYS}")
        for name in ASSETS:
            lake.run(name)
        first = rows
        for number in range(rounds + 1):
            for count in CHANGES:
                insert(lake, first, count, days=str(DAYS - 1))
                first += count
                for name in ASSETS:
                    found = take_in(lake, name)
                    said(f"{name}, {count:,} rows: {sum(found.values()):,.0f} ms")
                    if number:  # The first round warms up.
                        taken[name][count].append(found)
        for name, sql in RECOMPUTED.items():
            columns = "day, account, plays, seconds" if name == "totals" else "id, day, account, seconds, minutes"
            sums = f"SELECT count(*), bit_xor(xxhash64({columns})) FROM"
            require_same(lake.rows(f"{sums} lake.db.{name}"), lake.rows(f"{sums} ({sql})"), of=name)
    return {name: {count: medians(found) for count, found in by.items()} for name, by in taken.items()}


def medians(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {part: statistics.median(each[part] for each in found) for part in PARTS}


def lines(found: Mapping[str, Mapping[int, Mapping[str, float]]]) -> Iterator[list[str]]:
    for name, by_count in found.items():
        for count, ms in by_count.items():
            yield [ASSETS[name], f"{count:,}", *[f"{ms[part]:,.0f}" for part in PARTS], f"{sum(ms.values()):,.0f}"]


def main() -> None:
    report = Report.from_arguments("fixed-cost", __doc__)
    rows, rounds = (FULL_ROWS, FULL_ROUNDS) if report.is_full else (ROWS, ROUNDS)
    found = measure(rows, rounds)
    explained = "\n".join(f"- {part}: {text}" for part, text in PARTS.items())
    report.publish(
        f"""# The fixed cost of a run

Written by `python -m benchmarks.fixed_cost`. A run of one asset processes an increasing number of new rows of one day;
the table that it reads has {rows:,} rows of {DAYS} days. The figures are milliseconds, the median of {rounds} runs,
with the local Spark warm. They don't include starting the run's process or waiting in Dagster's queue; for these see
[latency.md](latency.md). Both tables were compared with a recompute at the end.

{report.conditions()}

{table(["run", "rows changed", *PARTS, "sum"], list(lines(found)))}

{explained}""",
        found,
    )


if __name__ == "__main__":
    main()
