"""What three systems report for the same histories: Iceberg's incremental scan, its changelog view, and dagster_ips.

    python -m benchmarks.histories > docs/histories.md

Spark applies each history to a real table; the true changes come from time travel (EXCEPT ALL in both directions).
"""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.lake import Consumer, temporary_lake
from dagster_ips.core.policy import InputPolicies, OnRollback
from dagster_ips.errors import IpsError
from dagster_ips.iceberg.catalog import LakeCatalog

Rows = Counter[tuple[Any, ...]]

COW, MOR = "copy-on-write", "merge-on-read"
LANDED = "INSERT INTO {t} SELECT id, concat('p', id % 3), 'v' FROM range(40, 45)"
COMPACT = "CALL lake.system.rewrite_data_files(table => '{n}', options => map('rewrite-all', 'true'))"


@dataclass(frozen=True)
class History:
    what: str
    statements: tuple[str, ...]
    version: int = 2
    mode: str = COW


def both(what: str, *statements: str) -> list[History]:
    """The same history with changes that rewrite files, write position deletes, and write deletion vectors."""
    kinds = ((2, COW, "copy-on-write"), (2, MOR, "position deletes"), (3, MOR, "deletion vectors"))
    return [History(f"{what} ({kind})", statements, version, mode) for version, mode, kind in kinds]


HISTORIES = [
    History("append", (LANDED,)),
    History("append, manifests merged", (LANDED, LANDED.replace("40, 45", "50, 52"))),
    *both("DELETE of rows, then append", "DELETE FROM {t} WHERE id IN (3, 14)", LANDED),
    *both("UPDATE of rows", "UPDATE {t} SET v = 'u' WHERE id IN (6, 9)"),
    *both("UPDATE that changes no value", "UPDATE {t} SET v = v WHERE id = 6"),
    *both(
        "MERGE that updates and inserts",
        "MERGE INTO {t} t USING (SELECT id FROM VALUES (6), (70) AS s(id)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET v = 'm' WHEN NOT MATCHED THEN INSERT (id, p, v) VALUES (s.id, 'p0', 'n')",
    ),
    History("append only, on a table with older position deletes", (LANDED,), mode=MOR),
    History("INSERT OVERWRITE of a partition", ("INSERT OVERWRITE {t} PARTITION (p = 'p0') SELECT 0, 'o'",)),
    History("DELETE of a whole partition", ("DELETE FROM {t} WHERE p = 'p1'",)),
    History("TRUNCATE, then append", ("TRUNCATE TABLE {t}", LANDED)),
    History("compaction", (COMPACT,)),
    History("append, then compaction of old and new files", (LANDED, COMPACT)),
    *both("DELETE, then compaction", "DELETE FROM {t} WHERE id IN (3, 14)", COMPACT),
    History("rewrite of manifests", (LANDED, "CALL lake.system.rewrite_manifests('{n}')")),
    History("rollback behind what was consumed", ("CALL lake.system.rollback_to_snapshot('{n}', {before})",)),
    History("rollback, then append", ("CALL lake.system.rollback_to_snapshot('{n}', {before})", LANDED)),
    History(
        "what was consumed is expired", (LANDED, "CALL lake.system.expire_snapshots('{n}', TIMESTAMP '2100-01-01')")
    ),
    History(
        "compaction, then what was consumed is expired, then append",
        (COMPACT, "CALL lake.system.expire_snapshots('{n}', TIMESTAMP '2100-01-01')", LANDED),
    ),
    History(
        "DELETE, then what was consumed is expired",
        ("DELETE FROM {t} WHERE id = 3", LANDED, "CALL lake.system.expire_snapshots('{n}', TIMESTAMP '2100-01-01')"),
    ),
    History("a column renamed, then append", ("ALTER TABLE {t} RENAME COLUMN v TO w", LANDED)),
    History(
        "a column dropped and added again",
        ("ALTER TABLE {t} DROP COLUMN v", "ALTER TABLE {t} ADD COLUMN v STRING", LANDED),
    ),
    History(
        "partition spec changed, then UPDATE",
        ("ALTER TABLE {t} DROP PARTITION FIELD p", "UPDATE {t} SET v = 'u' WHERE id = 6"),
    ),
    History(
        "CREATE OR REPLACE",
        ("CREATE OR REPLACE TABLE {t} USING iceberg PARTITIONED BY (p) AS SELECT * FROM {t} WHERE id < 5",),
    ),
]


class Comparison:
    """One table with a history, and what each system reports as changed since the table was consumed."""

    def __init__(self, session: SparkSession, lake: LakeCatalog, history: History, number: int) -> None:
        self.session, self.lake = session, lake
        self.name = f"db.h{number}"
        self.table = f"lake.{self.name}"
        modes = ", ".join(f"'write.{change}.mode' = '{history.mode}'" for change in ("delete", "update", "merge"))
        session.sql(
            f"CREATE TABLE {self.table} (id BIGINT, p STRING, v STRING) USING iceberg PARTITIONED BY (p) "
            f"TBLPROPERTIES ('format-version' = '{history.version}', {modes})"
        )
        for start in (0, 12, 24):
            session.sql(
                f"INSERT INTO {self.table} SELECT id, concat('p', id % 3), 'v' FROM range({start}, {start + 12})"
            )
        before = self.head()
        session.sql(f"DELETE FROM {self.table} WHERE id = 2").collect()
        self.consumer = Consumer(lake, session, self.name, InputPolicies(on_rollback=OnRollback.CONTINUE))
        self.consumer.consume()
        self.consumed = self.head()
        self.old = self._rows(session.table(self.table))
        for statement in history.statements:
            session.sql(statement.format(t=self.table, n=self.name, before=before)).collect()
        new = self._rows(session.table(self.table))
        self.added, self.removed = new - self._as_now(self.old), self._as_now(self.old) - new

    def truth(self) -> str:
        return f"+{self.added.total()} -{self.removed.total()}"

    def incremental_scan(self) -> str:
        reader = self.session.read.option("start-snapshot-id", self.consumed).option("end-snapshot-id", self.head())
        return self._judged(lambda: (self._rows(reader.table(self.table)), Counter()))

    def changelog_view(self) -> str:
        def read() -> tuple[Rows, Rows]:
            view = f"v_{self.name.replace('.', '_')}"
            self.session.sql(
                f"CALL lake.system.create_changelog_view(table => '{self.name}', changelog_view => '{view}', "
                f"options => map('start-snapshot-id', '{self.consumed}', 'end-snapshot-id', '{self.head()}'))"
            ).collect()
            rows = self.session.table(view)
            data = [c for c in rows.columns if not c.startswith(("_change", "_commit"))]
            kinds = {k: self._rows(rows.where(f"_change_type = '{k}'").select(*data)) for k in ("INSERT", "DELETE")}
            return kinds["INSERT"], kinds["DELETE"]

        return self._judged(read)

    def dagster_ips(self) -> str:
        def read() -> tuple[Rows, Rows]:
            view = self.consumer.view()
            return self._rows(view.added), self._rows(view.removed)

        return self._judged(read)

    def head(self) -> int:
        found = self.lake.load(self.name, asset="benchmark").head_snapshot_id()
        return found or 0

    def _judged(self, read: Callable[[], tuple[Rows, Rows]]) -> str:
        try:
            added, removed = read()
        except IpsError as error:
            return f"error that says so ({type(error).__name__})"
        except Exception as error:  # noqa: BLE001  # the error, whatever it is, is the finding
            return f"fails: `{_first_line(error)}`"
        if (added, removed) == (self.added, self.removed):
            return "right"
        if (added - removed, removed - added) == (self.added, self.removed):
            return f"right in sum, but +{added.total()} -{removed.total()}"
        lost = (self.added - added).total(), (self.removed - removed).total()
        wrong = (added - self.added).total() + (removed - self.removed).total()
        parts = [f"misses {lost[0]} added"] * bool(lost[0]) + [f"misses {lost[1]} removed"] * bool(lost[1])
        return "**" + ", ".join([*parts, *[f"{wrong} that didn't change"] * bool(wrong)]) + "**"

    def _as_now(self, rows: Rows) -> Rows:
        """Earlier rows with the table's current columns; the values of a dropped column are gone."""
        now = self.session.table(self.table).columns
        by_id = {f["id"]: f["name"] for f in self.lake.load(self.name, asset="benchmark").raw["schemas"][0]["fields"]}
        current = self.lake.load(self.name, asset="benchmark")
        places = [
            list(by_id).index(current.columns[c].field_id) if current.columns[c].field_id in by_id else None
            for c in now
        ]
        return Counter({tuple(None if p is None else row[p] for p in places): count for row, count in rows.items()})

    def _rows(self, frame: DataFrame) -> Rows:
        return Counter(tuple(row) for row in frame.collect())


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip().replace("|", "\\|")[:110] if lines else type(error).__name__


def main() -> None:
    with temporary_lake() as (lake, session):
        session.sql("CREATE TABLE lake.db.target (x INT) USING iceberg")
        print(_HEAD)
        for number, history in enumerate(HISTORIES):
            found = Comparison(session, lake, history, number)
            cells = (history.what, found.truth(), found.incremental_scan(), found.changelog_view(), found.dagster_ips())
            print(f"| {' | '.join(cells)} |", flush=True)
            print(f"{number + 1} of {len(HISTORIES)}", file=sys.stderr, flush=True)


_HEAD = """# Kinds of changes, as three systems see them

Written by `python -m benchmarks.histories`, which applies every history to a real table (Spark 4.1, Iceberg 1.11) and
asks three systems what has changed since the table was last consumed: Spark's incremental scan (`start-snapshot-id`,
`end-snapshot-id`), Iceberg's `create_changelog_view`, and this library's `added` and `removed`. The reference is time
travel: EXCEPT ALL between the tables before and after, in both directions. "right" means exactly those rows.

| history | truth | incremental scan | `create_changelog_view` | `dagster_ips` |
| --- | --- | --- | --- | --- |"""

if __name__ == "__main__":
    main()
