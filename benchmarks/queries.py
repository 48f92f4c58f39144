"""What it costs Spark to maintain a query's table, compared with recomputing it: ``python -m benchmarks.queries``.

Each of TPC-H's queries is two assets on the same tables: one is maintained incrementally, and one computes everything.
CPU time is that of Spark's process, which includes its executor, so the machine may be busy with other things.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

import dagster as dg

from benchmarks.report import Differs, Report, said, table
from dagster_ips.core.aggregates import HIDDEN
from dagster_ips.orchestration.declare.past_refreshes import MOST_SHARE, SHARE, SHARE_OF_KEYS
from dagster_ips.query.maintenance_plan import Strategy
from dagster_ips.query.refresh_choice import MOST_OF_KEYS
from tests.query.maintained_tables import MaintainedTables, strategy_of, temporary_lake
from tests.query.tpch_on_spark import made
from tests.support.lake import Lake

SCALE, SHARES = 20, (0.1, 0.1, 0.1, 1, 10)
"""The scale of TPC-H, and the percentages of rows that change, in this order. Of equal ones, the medians are shown."""
MEMORY, SPARK = "8g", {"spark.sql.shuffle.partitions": "16"}
ORDERED = {"orders": "o_orderkey", "lineitem": "l_orderkey"}
"""The tables that change, and the columns that they are sorted by."""
FILE_BYTES = 32 * 2**20
"""How large the files are, so that orders and lineitem have dozens of them, sorted by the order's key."""
WARM_UP = (0.1,) * 4
"""The percentages of rows that change in incremental runs before anything is measured: the JVM compiles its code."""
FEW = (1, 3, 4, 6, 12, 13, 14, 17, 18)
"""The queries that are measured without ``--full``: some of each kind."""


@dataclass(frozen=True)
class Cost:
    """What one run took: its CPU seconds, its strategy, and whether ``refresh="auto"`` would choose it at first."""

    cpu_seconds: float
    strategy: str
    is_chosen: bool


@dataclass(frozen=True)
class Pair:
    """The tables of the queries, maintained incrementally and recomputed."""

    incremental: MaintainedTables
    full: MaintainedTables

    def costs(self, pid: int, name: str) -> tuple[Cost, Cost]:
        """The costs of one run of each; both tables must end with the same rows.

        Raises:
            Differs: they don't.
        """
        costs = _cost(self.incremental, pid, name), _cost(self.full, pid, f"{name}_full")
        lake = self.full.lake
        kept = lake.sql(f"SELECT * FROM lake.media.{name}_full").columns
        columns = ", ".join(f"`{column}`" for column in kept if not column.startswith(HIDDEN))
        one, other = (lake.sql(f"SELECT {columns} FROM lake.media.{each}") for each in (name, f"{name}_full"))
        if one.exceptAll(other).count() or other.exceptAll(one).count():
            message = f"{name}: by {costs[0].strategy} it has other rows than the query gives"
            raise Differs(message)
        return costs


def _cost(tables: MaintainedTables, pid: int, name: str) -> Cost:
    job = tables.definitions().resolve_implicit_global_asset_job_def()
    before = _cpu_seconds(pid)
    result = job.execute_in_process(instance=tables.instance, asset_selection=[dg.AssetKey(name)])
    took = _cpu_seconds(pid) - before
    (event,) = [e for e in result.get_asset_materialization_events() if e.asset_key == dg.AssetKey(name)]
    told = event.materialization.metadata
    numbers = {name: float(str(told[name].value)) for name in (SHARE, MOST_SHARE, SHARE_OF_KEYS) if name in told}
    is_chosen = MOST_SHARE not in numbers or numbers[SHARE] < numbers[MOST_SHARE]
    is_chosen = is_chosen and numbers.get(SHARE_OF_KEYS, 0) < MOST_OF_KEYS
    return Cost(took, strategy_of(result, name), is_chosen)


def refresh(lake: Lake, share: float, seed: int) -> None:
    """Insert ``share`` percent of new orders, with their items, and delete as many of the oldest.

    Rows are inserted in the tables' order. Otherwise every task that reads some of the copied rows would write a file.
    """
    oldest = f"percentile_approx(o_orderkey, {share / 100}, 100000)"
    first, last = lake.sql(f"SELECT {oldest}, max(o_orderkey) FROM lake.media.orders").collect()[0]
    for source, key in ORDERED.items():
        name = f"lake.media.{source}"
        columns = [f"{key} + {last}" if each == key else each for each in lake.sql(f"SELECT * FROM {name}").columns]
        some = f"pmod(xxhash64({key}, {seed}), 1000) < {round(share * 10)}"
        lake.sql(f"INSERT INTO {name} SELECT {', '.join(columns)} FROM {name} WHERE {some} ORDER BY {key}")
        lake.sql(f"DELETE FROM {name} WHERE {key} <= {first}")


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(*, is_full: bool) -> dict[str, dict[str, dict[str, object]]]:
    """The figures by query and by the percentage of rows that changed."""
    found: dict[str, dict[str, list[tuple[Cost, Cost]]]] = {}
    with temporary_lake(quick=False, driver_memory=MEMORY) as (lake, instance):
        tables = made(lake, instance, SCALE, Random(1), file_bytes=FILE_BYTES)
        tables.spark_config, tables.driver_memory = SPARK, MEMORY
        for name in ORDERED:  # Deletes only mark rows.
            lake.sql(f"ALTER TABLE lake.media.{name} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
        chosen = {name: text for name, text in tables.texts.items() if is_full or int(name[1:]) in FEW}
        tables.texts = chosen
        again = {f"{name}_full": text for name, text in chosen.items()}
        everything = MaintainedTables(
            lake, instance, again, tables.sources, "full", spark_config=SPARK, driver_memory=MEMORY
        )
        pair, pid = Pair(tables, everything), lake.server.pid
        for name in chosen:
            pair.costs(pid, name)
            found[name] = {}
            said(f"{name} made")
        for number, share in enumerate([*WARM_UP, *SHARES]):
            refresh(lake, share, seed=number)
            for name in chosen:
                if number < len(WARM_UP):
                    said(f"{name}, warming up: {_cost(tables, pid, name).cpu_seconds:.1f} s")
                    continue
                one, other = pair.costs(pid, name)
                if one.strategy == Strategy.NOTHING:
                    continue
                found[name].setdefault(str(share), []).append((one, other))
                said(f"{name} at {share} %: {medians([(one, other)])}")
    return {name: {share: medians(costs) for share, costs in each.items()} for name, each in found.items()}


def medians(costs: list[tuple[Cost, Cost]]) -> dict[str, object]:
    """The medians of rounds with equal changes."""
    first, _ = costs[0]
    return {
        "strategy": first.strategy,
        "incremental CPU seconds": round(median(one.cpu_seconds for one, _ in costs), 2),
        "full CPU seconds": round(median(other.cpu_seconds for _, other in costs), 2),
        "auto without past runs": first.strategy if all(one.is_chosen for one, _ in costs) else "full",
    }


def cell(figures: dict[str, object]) -> str:
    """The ratio, and a note if ``refresh="auto"`` would recompute everything without earlier runs to judge by."""
    ratio = float(str(figures["incremental CPU seconds"])) / float(str(figures["full CPU seconds"]))
    return f"{ratio:.2f}" + (" (auto: full)" if figures["auto without past runs"] == "full" else "")


def main() -> None:
    report = Report.from_arguments("queries", __doc__)
    found = measured(is_full=report.is_full)
    shares = list(dict.fromkeys(SHARES))
    heads = ["query", "strategy", *(f"{share} %" for share in shares), "CPU seconds of everything"]
    lines = [
        [
            name,
            next(iter(by_share.values()))["strategy"],
            *(cell(by_share[str(share)]) if str(share) in by_share else "" for share in shares),
            by_share[str(shares[0])]["full CPU seconds"],
        ]
        for name, by_share in found.items()
        if by_share
    ]
    report.publish(f"{HEAD.format(conditions=report.conditions())}\n\n{table(heads, lines, words=2)}", found)


HEAD = f"""# What a SQL asset costs, compared with a full refresh

Written by `python -m benchmarks.queries`: TPC-H at scale {SCALE} on Spark and Iceberg, as assets that Dagster
materializes. As in TPC-H's refresh functions, a share of new orders is inserted with their items, and as many of the
oldest are deleted. Both tables have dozens of files, sorted by the order's key, as new rows are, and deletes only mark
rows. Each query is two assets, one with `refresh="incremental"` and one with `refresh="full"`, which run one after the
other over the same change and end with the same rows. Before the measured changes, {len(WARM_UP)} small ones warmed
Spark up.

The cells are the CPU time of the incremental run as a fraction of the full one's, for the whole Spark process,
including planning, commits and the JVM's compiler. At {SHARES[0]} %, they compare the medians of
{SHARES.count(SHARES[0])} changes. "auto: full" marks where `refresh="auto"` would recompute everything, if no earlier
runs decide.

{{conditions}}"""

if __name__ == "__main__":
    main()
