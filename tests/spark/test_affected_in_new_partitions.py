"""The rows of a partition that is new as a whole are affected; others are affected if their keys changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from pyspark.sql import DataFrame

from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.run_view import RunView
from tests.support.lake import Lake
from tests.support.memory_store import MemoryCursors, consume

TABLE = "lake.media.plays"
BEFORE = "(1, 'x', 'a'), (2, 'x', 'b'), (3, 'y', 'a'), (4, NULL, 'c')"


def view_after(lake: Lake, statements: Sequence[str], *, partitioned_by: str) -> RunView:
    lake.catalog.create_namespace("media")
    lake.sql(f"CREATE TABLE {TABLE} (id INT, day STRING, k STRING) USING iceberg PARTITIONED BY ({partitioned_by})")
    lake.sql("CREATE TABLE lake.media.target (x INT) USING iceberg")
    lake.sql(f"INSERT INTO {TABLE} VALUES {BEFORE}")
    store = MemoryCursors()

    def captured() -> RunView:
        request = CaptureRequest("consumer", [TrackedInput("plays", "media.plays")], target="media.target")
        (found,) = Capturer(lake.catalog, store).capture(request, run_id="run")
        return RunView(found, lake.session, "lake", storage=lake.catalog.storage)

    consume(store, lake.catalog, "media.target", [captured().captured])
    for statement in statements:
        lake.sql(statement.format(TABLE)).collect()
    return captured()


def has_join(frame: DataFrame) -> bool:
    return frame._explain_string(extended=True).partition("== Physical Plan ==")[2].count("Join") > 0


def ids(frame: DataFrame) -> Counter[int]:
    return Counter(row.id for row in frame.select("id").collect())


def changed(lake: Lake, view: RunView, keys: Sequence[str]) -> Counter[int]:
    """The live rows with keys of a changed row, found by comparing the table before and after."""
    before, after = (f"(SELECT * FROM {TABLE} VERSION AS OF {id_})" for id_ in _ends(view))
    net = f"SELECT * FROM {after} EXCEPT ALL SELECT * FROM {before}"
    gone = f"SELECT * FROM {before} EXCEPT ALL SELECT * FROM {after}"
    same = " AND ".join(f"t.{key} <=> c.{key}" for key in keys)
    return ids(lake.sql(f"SELECT t.id FROM {after} t LEFT SEMI JOIN (({net}) UNION ALL ({gone})) c ON {same}"))


def _ends(view: RunView) -> tuple[int, int]:
    capture = view.captured.capture
    assert capture.from_exclusive
    assert capture.to_inclusive
    return capture.from_exclusive.snapshot_id, capture.to_inclusive.snapshot_id


NEW = "INSERT INTO {} VALUES (5, 'z', 'a'), (6, 'z', 'a')"
LATE = "INSERT INTO {} VALUES (7, 'x', 'a'), (8, NULL, 'd')"


@pytest.mark.parametrize(
    ("statements", "by", "keys", "is_joined"),
    [
        ([NEW], "day", ["day", "k"], False),
        ([NEW, LATE], "day", ["day", "k"], True),
        ([NEW, "DELETE FROM {} WHERE id = 5"], "day", ["day", "k"], False),
        (["DELETE FROM {} WHERE day = 'y'", "INSERT INTO {} VALUES (9, 'y', 'b')"], "day", ["day", "k"], True),
        ([NEW, "UPDATE {} SET k = 'a' WHERE id = 2"], "day", ["day", "k"], True),
        ([NEW], "day", ["k"], True),
        ([NEW, LATE], "bucket(2, day)", ["day", "k"], True),
        (["INSERT INTO {} VALUES (5, 'z', 'a'), (7, 'z', 'd')"], "day, k", ["k", "day"], False),
        (["INSERT INTO {} VALUES (5, 'z', 'a'), (7, 'x', 'c')"], "day, k", ["k", "day"], True),
    ],
)
def test_affected_rows_of_new_and_of_older_partitions(
    lake: Lake, statements: Sequence[str], by: str, keys: Sequence[str], *, is_joined: bool
) -> None:
    view = view_after(lake, statements, partitioned_by=by)
    found = view.affected(*keys)
    assert ids(found) == changed(lake, view, keys)
    assert has_join(found) == is_joined
    view.release()
