"""What two stages of playback cost by change and by lookback: ``python -m benchmarks.playback --rows 1000000``.

A window of days is there; then day after day arrives in small commits, and each way takes it in, in turns. The first
of these days warms up, the others' median counts. In the end every table is compared with a recompute.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from pyspark.sql import DataFrame

from benchmarks.playback import stages
from benchmarks.playback.source import MEMORY, Source, Workload
from benchmarks.playback.ways import NAMESPACE, ByChange, ByChangelogView, ByScan, Copy, Lookback, Way
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.spark.connect_server import ensure_connect_server, stop_connect_server
from dagster_ips.spark.session import connect_session
from example_project.spark_meter import Read, SparkMeter

PARTS = ("stage 1", "stage 2", "both")
BASE = "lookback"
Costs = dict[str, dict[str, dict[str, float]]]
"""Medians by way, part and measure."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="a day's")
    parser.add_argument("--late", type=float, default=0.03, help="share of them that is of the days before")
    parser.add_argument("--window", type=int, default=14, help="days that late rows may be of, which lookback rewrites")
    parser.add_argument("--rounds", type=int, default=3, help="days that are measured, after one that warms up")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    given = parser.parse_args()
    workload = Workload(given.rows, given.late, given.window)
    with tempfile.TemporaryDirectory() as folder:
        spark = Path(folder) / "spark"
        server = ensure_connect_server(spark, driver_memory=MEMORY, say=said)
        try:
            lake = LakeCatalog.embedded("lake", Path(folder) / "lake")
            for namespace in ("db", "ips"):
                lake.create_namespace(namespace)
            session = connect_session(server.remote, lake.spark_configuration())
            meter = SparkMeter(str(server.ui), server.pid)
            source = Source(session, NAMESPACE, workload)
            found = measure(source, ways(source, Path(folder)), meter, given.rounds)
        finally:
            stop_connect_server(spark)
    load = os.getloadavg()[0]
    print(report(found, workload, given.rounds, load))
    if given.json:
        given.json.write_text(json.dumps({"workload": asdict(workload), "load": load, "costs": found}, indent=1) + "\n")


def ways(source: Source, folder: Path) -> list[Way]:
    return [
        Lookback(source, "lookback", source.workload.window),
        ByChange(folder, "by change, combined", ("sums_daily", "sums_by_account")),
        ByChange(folder, "by change, affected keys", ("keys_daily", "keys_by_account")),
        Lookback(source, "short", 3),
        ByScan(source, "scan"),
        ByChangelogView(source, "changelog"),
        Copy(source, "copy"),
    ]


def measure(source: Source, ways: Sequence[Way], meter: SparkMeter, rounds: int) -> Costs:
    source.create()
    source.past(source.workload.window)
    said(f"{source.workload.window} days of {source.workload.rows:,} events are there")
    for way in ways:
        way.create()
        said(f"{way.name}: tables are made")
    taken: dict[str, list[dict[str, dict[str, float]]]] = {way.name: [] for way in ways}
    for day in range(rounds + 1):
        source.arrive()
        for way in [*ways[day % len(ways) :], *ways[: day % len(ways)]]:
            spans = way.update()
            parts = [measures(meter.read_between(*span)) for span in spans]
            parts[-1]["own cpu"] = way.own_cpu
            taken[way.name].append(dict(zip(PARTS, parts, strict=True)))
            said(f"day {source.days}, {way.name}: {parts[-1]['seconds']:.1f} s")
    check(source, ways)
    return {name: medians(found[1:]) for name, found in taken.items()}


def measures(read: Read) -> dict[str, float]:
    return {
        "seconds": read.seconds,
        "cpu": read.cpu_seconds,
        "rows": read.rows,
        "read": read.size_bytes,
        "written": read.written_bytes,
    }


def medians(rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    return {
        part: {name: statistics.median(each[part][name] for each in rounds) for name in rounds[0][part]}
        for part in PARTS
    }


def check(source: Source, ways: Sequence[Way]) -> None:
    """Raises: a table isn't what a recompute makes of the source."""
    table = source.session.table
    daily = stages.enriched(table(f"{NAMESPACE}.playback"), table(f"{NAMESPACE}.title"))
    right = [checksum(daily), checksum(stages.per_account(daily))]
    for way in ways:
        if not way.is_right:
            continue
        for part, name, wanted in zip(PARTS, way.tables, right, strict=False):
            if (found := checksum(table(name))) != wanted:
                raise RuntimeError(way.name, part, found, "instead of", wanted)
        said(f"{way.name}: both tables equal a recompute")


def checksum(rows: DataFrame) -> tuple[int, ...]:
    columns = ", ".join(sorted(column for column in rows.columns if not column.startswith("_ips_")))
    hashed = rows.selectExpr(f"xxhash64({columns}) AS h").selectExpr("count(*)", "bit_xor(h)", "sum(h % 1000003)")
    return tuple(hashed.collect()[0])


MEASURES = (
    ("seconds", 1, "s"),
    ("cpu", 1, "Spark's CPU s"),
    ("rows", 1_000, "thousand rows read"),
    ("read", 10**6, "MB read"),
)


def report(costs: Costs, workload: Workload, rounds: int, load: float) -> str:
    said_of = f"{workload.rows:,} rows a day, {workload.late:.0%} of them late, a window of {workload.window} days"
    lines = [f"{said_of}; median of {rounds} days on {os.cpu_count()} cores, load {load:.1f} at the end.\n"]
    for part in PARTS:
        lines += [f"### {part.capitalize()}\n", *table(costs, part), ""]
    return "\n".join(lines)


def table(costs: Costs, part: str) -> Iterator[str]:
    yield f"| | {' | '.join(title for _, _, title in MEASURES)} | MB written | of its own process, CPU s |"
    yield f"| --- |{' ---: |' * (len(MEASURES) + 2)}"
    base = costs[BASE][part]
    for name, parts in costs.items():
        found = parts[part]
        cells = [f"{found[key] / unit:,.1f} ({found[key] / base[key]:.2f})" for key, unit, _ in MEASURES]
        own = f"{found['own cpu']:.1f}" if found.get("own cpu") else ""
        yield f"| {name} | {' | '.join(cells)} | {found['written'] / 10**6:,.0f} | {own} |"


def said(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
