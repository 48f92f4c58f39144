"""What it costs to find which rows changed, compared with the alternatives, and what a run asks of Spark.

    python -m benchmarks.cost

Every figure is the best of several rounds, in which all ways take turns on the same tables, after as many rounds as
the JVM's compiler needs: Spark has usually been running for long.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from benchmarks import jobs
from benchmarks.lake import Consumer, temporary_lake
from benchmarks.report import Report, best, require_same, said, table
from dagster_ips.iceberg.catalog import LakeCatalog

PARTITIONS, ROWS, WARM_UP, ROUNDS = 40, 2_000_000, 15, 5


def changelogs(lake: LakeCatalog, session: SparkSession) -> dict[str, dict[str, float]]:
    """Seconds that each way takes, by change. Each change is in one of many partitions."""
    found = {}
    changes = {
        "append of 1,000 rows": "INSERT INTO {t} SELECT -id, 3, 'new', 1 FROM range(1000)",
        "UPDATE of 1,000 rows": "UPDATE {t} SET seconds = seconds + 1 WHERE p = 7 AND id < 40000",
        "DELETE of a partition": "DELETE FROM {t} WHERE p = 5",
    }
    for mode in ("copy-on-write", "merge-on-read"):
        for what, statement in changes.items():
            name = f"db.wide_{len(found)}"
            in_spark = f"lake.{name}"
            session.sql(
                f"CREATE TABLE {in_spark} (id BIGINT, p BIGINT, account STRING, seconds BIGINT) USING iceberg "
                f"PARTITIONED BY (p) TBLPROPERTIES ('write.update.mode' = '{mode}', 'write.delete.mode' = '{mode}')"
            )
            session.sql(
                f"INSERT INTO {in_spark} SELECT id, id % {PARTITIONS}, concat('account ', id % 9973), id % 3600 "
                f"FROM range({ROWS})"
            )
            consumer = Consumer(lake, session, name)
            consumer.consume()
            start = lake.load(name, asset="benchmark").head_snapshot_id()
            session.sql(statement.format(t=in_spark)).collect()
            end = lake.load(name, asset="benchmark").head_snapshot_id()
            ways = Ways(session, consumer, in_spark, start, end)
            found[f"{what} ({mode})"] = ways.seconds()
            session.sql(f"DROP TABLE {in_spark} PURGE")
            said(f"{what} {mode}")
    return found


@dataclass
class Ways:
    """Three ways to find the rows that changed; each returns how many were added and removed."""

    session: SparkSession
    consumer: Consumer
    table: str
    start: int | None
    end: int | None

    def ours(self) -> tuple[int, int]:
        view = self.consumer.view()
        try:
            return counted(view.changelog().groupBy("_change_type").count(), "insert", "delete")
        finally:
            view.release()

    def changelog_view(self) -> tuple[int, int]:
        self.session.sql(
            f"CALL lake.system.create_changelog_view(table => '{self.consumer.table}', changelog_view => 'changed', "
            f"options => map('start-snapshot-id', '{self.start}', 'end-snapshot-id', '{self.end}'))"
        ).collect()
        return counted(self.session.sql("SELECT _change_type, count(*) FROM changed GROUP BY 1"), "INSERT", "DELETE")

    def time_travel(self) -> tuple[int, int]:
        before, after = self._as_of(self.start), self._as_of(self.end)
        return after.exceptAll(before).count(), before.exceptAll(after).count()

    def _as_of(self, snapshot_id: int | None) -> DataFrame:
        return self.session.sql(f"SELECT * FROM {self.table} VERSION AS OF {snapshot_id}")

    def seconds(self) -> dict[str, float]:
        """Seconds of each way that supports the table.

        Raises:
            Differs: a way finds another number of rows than time travel.
        """
        expected = self.time_travel()
        ways: dict[str, Callable[[], object]] = {OURS: self.ours, TIME_TRAVEL: self.time_travel}
        require_same(self.ours(), expected, of=f"{self.table}: rows added and removed")
        try:
            require_same(self.changelog_view(), expected, of=f"{self.table}: rows by create_changelog_view")
            ways[VIEW] = self.changelog_view
        except Exception as error:
            if "Delete files are currently not supported" not in str(error):
                raise
        best({name: way for name, way in ways.items() if name != TIME_TRAVEL}, WARM_UP)
        return {name: each.wall_ms / 1000 for name, each in best(ways, ROUNDS).items()}


def counted(by_type: DataFrame, added: str, removed: str) -> tuple[int, int]:
    counts = {row[0]: row[1] for row in by_type.collect()}
    return counts.get(added, 0), counts.get(removed, 0)


def cells(seconds: dict[str, float]) -> list[str]:
    others = [
        f"{seconds[name]:.2f} s, {seconds[name] / seconds[OURS]:.1f} times ours" if name in seconds else "refuses"
        for name in (VIEW, TIME_TRAVEL)
    ]
    return [f"{seconds[OURS]:.2f} s", *others]


def main() -> None:
    report = Report.from_arguments("cost", __doc__)
    with temporary_lake() as (lake, session):
        session.sql("CREATE TABLE lake.db.target (x INT) USING iceberg")
        found = changelogs(lake, session)
    heads = ["change", "`changelog`", "`create_changelog_view`", "before and after, EXCEPT ALL"]
    lines = [[what, *cells(seconds)] for what, seconds in found.items()]
    queries = jobs.section()
    head = HEAD.format(conditions=report.conditions())
    report.publish(f"{head}\n\n{table(heads, lines)}\n\n{queries}", found)


OURS, VIEW, TIME_TRAVEL = "changelog", "create_changelog_view", "EXCEPT ALL"
HEAD = f"""# Which rows changed, and what a run asks of Spark

Written by `python -m benchmarks.cost`. For the cost of finding the changed files see [capture.md](capture.md), and for
the other costs of a run see [fixed-cost.md](fixed-cost.md).

{{conditions}}

## Which rows changed

The time to count, in one query, the rows that a single change added to and removed from a table of {ROWS:,} rows in
{PARTITIONS} partitions. `changelog` is this library's and includes the capture and the ICDC table.
`create_changelog_view` includes the call that creates the view. Each figure is the best of {ROUNDS}, after {WARM_UP} to
warm up; the approaches took turns on the same table, and found the same rows."""

if __name__ == "__main__":
    main()
