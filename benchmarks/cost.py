"""What a capture and a changelog cost, and how that grows, beside what one would use instead.

    python -m benchmarks.cost > docs/cost.md

Every figure is the best of three, all ways to get it taking turns on the same tables.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField
from pyspark.sql import DataFrame, SparkSession

from benchmarks import jobs
from benchmarks.lake import Consumer, temporary_lake
from dagster_ips.iceberg.catalog import LakeCatalog

ROUNDS = 3
OLD_FILES = (100, 1_000, 10_000)
SNAPSHOTS = (10, 100, 300)
PARTITIONS, ROWS = 40, 2_000_000


def best(ways: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds of each, the best of several rounds in which they take turns; a first one warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - started)
    return {name: min(found[1:]) for name, found in seconds.items()}


@dataclass
class ManyFiles:
    """A table partitioned by ``p``, with one file of one row in each partition."""

    lake: LakeCatalog
    name: str
    files: int

    def __post_init__(self) -> None:
        schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "p", LongType()))
        spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))
        table = self.lake.client.create_table(self.name, schema, partition_spec=spec)
        folder = Path(urlsplit(table.location()).path) / "data"
        folder.mkdir(parents=True)
        paths = [self._file(folder, number) for number in range(self.files)]
        for start in range(0, len(paths), 1000):
            table.add_files(paths[start : start + 1000], check_duplicate_files=False)

    def _file(self, folder: Path, number: int) -> str:
        path = folder / f"{number:06d}.parquet"
        pq.write_table(pa.table({"id": [number], "p": [number]}), path)
        return f"file://{path}"

    @property
    def table(self) -> Table:
        return self.lake.client.load_table(self.name)

    def append(self, number: int) -> None:
        self.table.append(pa.table({"id": [number], "p": [number]}))


def old_files(lake: LakeCatalog, session: SparkSession) -> str:
    """Does a capture get slower as the table grows? One new file, and one deleted row, behind ever more old files."""
    lines = ["| old files | capture of an append | capture of a DELETE | listing the table's files by PyIceberg |"]
    lines.append("| ---: | ---: | ---: | ---: |")
    for files in OLD_FILES:
        many = ManyFiles(lake, f"db.files_{files}", files)
        appended = Consumer(lake, session, many.name)
        appended.consume()
        many.append(files)
        deleted = Consumer(lake, session, many.name)
        deleted.consume()
        many.table.delete(f"p = {files // 2}")
        followed = Consumer(lake, session, many.name)
        followed.consume()
        ways = {"delete": deleted.capture, "list": lambda many=many: list(many.table.scan().plan_files())}
        found = best(ways)
        # The append again, without the DELETE behind it.
        many.append(files)
        found |= best({"append": followed.capture})
        cells = [f"{files:,}", *[f"{found[name] * 1000:,.0f} ms" for name in ("append", "delete", "list")]]
        lines.append(f"| {' | '.join(cells)} |")
        said(f"{files} files")
    return "\n".join(lines)


def snapshots(lake: LakeCatalog, session: SparkSession) -> str:
    """Many commits in one interval, half appends and half deletes."""
    lines = ["| snapshots in the interval | capture | per snapshot |", "| ---: | ---: | ---: |"]
    for count in SNAPSHOTS:
        many = ManyFiles(lake, f"db.snapshots_{count}", 1)
        consumer = Consumer(lake, session, many.name)
        consumer.consume()
        with many.table.transaction() as transaction:
            for number in range(1, count // 2 + 1):
                transaction.append(pa.table({"id": [number], "p": [number]}))
                transaction.delete(f"p = {number - 1}")
        seconds = best({"capture": consumer.capture})["capture"]
        lines.append(f"| {count:,} | {seconds * 1000:,.0f} ms | {seconds / count * 1000:.2f} ms |")
        said(f"{count} snapshots")
    return "\n".join(lines)


def changelogs(lake: LakeCatalog, session: SparkSession) -> str:
    """One partition of many changes. What was added and removed, by this library and by what one would use instead."""
    lines = ["| change | `added` and `removed` | `create_changelog_view` | before and after, EXCEPT ALL |"]
    lines.append("| --- | ---: | ---: | ---: |")
    changes = {
        "append of 1,000 rows": "INSERT INTO {t} SELECT -id, 3, 'new', 1 FROM range(1000)",
        "UPDATE of 1,000 rows": "UPDATE {t} SET seconds = seconds + 1 WHERE p = 7 AND id < 40000",
        "DELETE of a partition": "DELETE FROM {t} WHERE p = 5",
    }
    for mode in ("copy-on-write", "merge-on-read"):
        for what, statement in changes.items():
            name = f"db.wide_{len(lines)}"
            table = f"lake.{name}"
            session.sql(
                f"CREATE TABLE {table} (id BIGINT, p BIGINT, account STRING, seconds BIGINT) USING iceberg "
                f"PARTITIONED BY (p) TBLPROPERTIES ('write.update.mode' = '{mode}', 'write.delete.mode' = '{mode}')"
            )
            session.sql(
                f"INSERT INTO {table} SELECT id, id % {PARTITIONS}, concat('account ', id % 9973), id % 3600 "
                f"FROM range({ROWS})"
            )
            consumer = Consumer(lake, session, name)
            consumer.consume()
            start = lake.load(name, asset="benchmark").head_snapshot_id()
            session.sql(statement.format(t=table)).collect()
            end = lake.load(name, asset="benchmark").head_snapshot_id()
            ways = Ways(session, consumer, table, start, end)
            lines.append(ways.line(f"{what} ({mode})"))
            session.sql(f"DROP TABLE {table} PURGE")
            said(f"{what} {mode}")
    return "\n".join(lines)


@dataclass
class Ways:
    """Three ways to the rows that changed; each returns how many were added and removed."""

    session: SparkSession
    consumer: Consumer
    table: str
    start: int | None
    end: int | None

    def dagster_ips(self) -> tuple[int, int]:
        view = self.consumer.view()
        try:
            return view.added.count(), view.removed.count()
        finally:
            view.release()

    def changelog_view(self) -> tuple[int, int]:
        self.session.sql(
            f"CALL lake.system.create_changelog_view(table => '{self.consumer.table}', changelog_view => 'changed', "
            f"options => map('start-snapshot-id', '{self.start}', 'end-snapshot-id', '{self.end}'))"
        ).collect()
        found = self.session.sql("SELECT _change_type, count(*) FROM changed GROUP BY 1").collect()
        counts = {row[0]: row[1] for row in found}
        return counts.get("INSERT", 0), counts.get("DELETE", 0)

    def time_travel(self) -> tuple[int, int]:
        before, after = self._as_of(self.start), self._as_of(self.end)
        return after.exceptAll(before).count(), before.exceptAll(after).count()

    def _as_of(self, snapshot_id: int | None) -> DataFrame:
        return self.session.sql(f"SELECT * FROM {self.table} VERSION AS OF {snapshot_id}")

    def line(self, what: str) -> str:
        ways: dict[str, Callable[[], object]] = {"ours": self.dagster_ips, "time travel": self.time_travel}
        expected = self.time_travel()
        right = {"ours": self.dagster_ips() == expected, "time travel": True}
        try:
            right["view"] = self.changelog_view() == expected
            ways["view"] = self.changelog_view
        except Exception as error:
            if "Delete files are currently not supported" not in str(error):
                raise
        found = best(ways)
        cells = [what, f"{found['ours']:.2f} s" + " **wrong**" * (not right["ours"])]
        for name in ("view", "time travel"):
            ratio = f"{found[name]:.2f} s, {found[name] / found['ours']:.1f} times ours" if name in found else "refuses"
            cells.append(ratio + " **wrong**" * (not right.get(name, True)))
        return f"| {' | '.join(cells)} |"


def said(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def main() -> None:
    parts: Sequence[tuple[str, Callable[[LakeCatalog, SparkSession], str]]] = (
        (_OLD_FILES, old_files),
        (_SNAPSHOTS, snapshots),
        (_CHANGELOGS, changelogs),
    )
    with temporary_lake() as (lake, session):
        session.sql("CREATE TABLE lake.db.target (x INT) USING iceberg")
        print(_HEAD)
        for head, part in parts:
            print(f"\n{head}\n\n{part(lake, session)}", flush=True)
    print(f"\n{jobs.section()}")


_HEAD = """# What a capture costs

Written by `python -m benchmarks.cost` on 4 cores. Each figure is the best of three; in a line, all ways took turns on
the same table."""
_OLD_FILES = """## As the table grows

One changed file behind ever more files that were consumed long ago. A capture opens the manifests that changed, and no
data file."""
_SNAPSHOTS = """## As the interval grows

Commits between two captures, half of them appends and half deletes."""
_CHANGELOGS = f"""## Which rows changed

One change to a table of {ROWS:,} rows in {PARTITIONS} partitions: the rows that were added and removed, counted."""

if __name__ == "__main__":
    main()
