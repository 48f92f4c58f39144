"""Branches: a run's writes are prepared on a branch, and published by fast-forwarding ``main``.

The statements here are worded like this on purpose: ``AS OF VERSION`` because Spark's idea of the head may be old, and
the branch inside the table's name because ``writeTo`` silently ignores the write option ``branch``.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.ranges import literal, quoted
from dagster_ips.core.table_name import parts_of
from dagster_ips.spark.identifiers import identifier
from dagster_ips.spark.settings import change_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SNAPSHOT_PROPERTY = "spark.sql.iceberg.snapshot-property."
"""Prefix of the settings whose values Iceberg writes into the summary of each snapshot that a session commits."""
_DAY_MS = 86_400_000
_MOST_ATTEMPTS = 5
_OF_RUN = re.compile(r"ips_[0-9a-f]{8}_[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch of ``catalog``.``table``, by its name."""

    catalog: str
    table: str
    name: str

    @property
    def sql_name(self) -> str:
        """The branch as a table's name: what is written to it goes only to the branch."""
        return f"{self.table_sql_name}.{self.qualifier}"

    @property
    def qualifier(self) -> str:
        """What qualifies columns in ``mergeInto``, which gives its target no alias: the last part of ``sql_name``."""
        return quoted(f"branch_{self.name}")

    @property
    def table_sql_name(self) -> str:
        """The table's own name in Spark SQL."""
        return sql_name(self.catalog, self.table)

    def create(self, session: SparkSession, *, head: Snapshot | None) -> None:
        """Create the branch at ``head``; on a table without snapshots it starts empty.

        For the next day, no expiry drops it; Iceberg asks how old its head is. Once something is committed to it, it is
        kept for a day and as long again as ``head`` was old.
        """
        at = f" AS OF VERSION {head.snapshot_id}" if head is not None else ""
        age_ms = time.time_ns() // 1_000_000 - head.timestamp_ms if head is not None else 0
        retain = f" RETAIN {1 + max(0, -(-age_ms // _DAY_MS))} DAYS"
        _alter(session, f"{self.table_sql_name} CREATE BRANCH {quoted(self.name)}{at}{retain}")

    def head(self, session: SparkSession) -> int:
        """The snapshot that the branch is at; runs a job."""
        query = f"SELECT snapshot_id FROM {self.table_sql_name}.refs WHERE name = {literal(self.name)}"  # noqa: S608  # quoted
        (found,) = session.sql(query).collect()
        return int(found[0])

    def cut_for_days(self, session: SparkSession, *, head_snapshot_id: int, days: int) -> None:
        """Create the branch at ``head_snapshot_id``, or move it there; expiry keeps its snapshots for ``days``."""
        _alter(
            session,
            f"{self.table_sql_name} CREATE OR REPLACE BRANCH {quoted(self.name)} "
            f"AS OF VERSION {head_snapshot_id} RETAIN {days} DAYS WITH SNAPSHOT RETENTION {days} DAYS",
        )

    def drop(self, session: SparkSession) -> None:
        """Drop the branch if it exists."""
        _alter(session, f"{self.table_sql_name} DROP BRANCH IF EXISTS {quoted(self.name)}")


def tag_snapshot(  # noqa: PLR0913  # all are independent
    session: SparkSession, catalog: str, table: str, tag: str, *, snapshot_id: int, retain_days: int
) -> None:
    """Tag a snapshot, or move the tag to it; expiry keeps it until the snapshot is ``retain_days`` old."""
    _alter(
        session,
        f"{sql_name(catalog, table)} CREATE OR REPLACE TAG {quoted(tag)} "
        f"AS OF VERSION {snapshot_id} RETAIN {retain_days} DAYS",
    )


def drop_tag(session: SparkSession, catalog: str, table: str, tag: str) -> None:
    """Drop a tag if it exists."""
    _alter(session, f"{sql_name(catalog, table)} DROP TAG IF EXISTS {quoted(tag)}")


def _alter(session: SparkSession, change: str) -> None:
    """Alter a table's branches or tags; tried again if another commit to the table came in between.

    That is right whatever the other commit was: what is altered is no one else's, and its snapshot is given.
    """
    for attempt in range(1, _MOST_ATTEMPTS + 1):
        try:
            session.sql(f"ALTER TABLE {change}")
        except Exception as error:
            if not is_conflict(error) or attempt == _MOST_ATTEMPTS:
                raise
        else:
            return


def branch_of_run(catalog: str, table: str, run_id: str) -> Branch:
    """A branch with a name that only this run uses, and only once; it isn't created yet."""
    return Branch(catalog, table, f"ips_{run_id[:8]}_{uuid.uuid4().hex[:8]}")


def is_branch_of_run(name: str) -> bool:
    """Whether a branch has a name like those that runs give to their branches.

    Example:
        >>> is_branch_of_run("ips_3f2a91bc_0d5e7a12"), is_branch_of_run("ips_stable")
        (True, False)
    """
    return _OF_RUN.fullmatch(name) is not None


def is_conflict(error: Exception) -> bool:
    """Whether a statement failed because another commit to the table came in between: it may be tried again."""
    return "org.apache.iceberg.exceptions.CommitFailedException" in str(error)


def sql_name(catalog: str, table: str) -> str:
    """A table's full name in Spark SQL, every part quoted.

    Example:
        >>> sql_name("lake", "media.playback")
        '`lake`.`media`.`playback`'
    """
    return f"{quoted(catalog)}.{_quoted_parts(table)}"


def table_argument(table: str) -> str:
    """A table's name as an argument of one of Iceberg's procedures, which are called in the table's catalog.

    Example:
        >>> table_argument("media.playback")
        "'`media`.`playback`'"
    """
    return literal(_quoted_parts(table))


def _quoted_parts(table: str) -> str:
    return ".".join(identifier(part, table=table) for part in parts_of(table))


@contextlib.contextmanager
def stamped(session: SparkSession, properties: Mapping[str, str]) -> Iterator[None]:
    """Have every commit that this session makes inside carry ``properties`` in its snapshot's summary."""
    settings = {SNAPSHOT_PROPERTY + key: value for key, value in properties.items()}
    try:
        change_settings(session, settings)
        yield
    finally:
        change_settings(session, dict.fromkeys(settings))
