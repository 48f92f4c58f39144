"""What changed in rewritten files: exact, and computed once without keeping it, or kept if it is needed again."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import DataFrame

from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.local_spark.connect_server import ConnectServer
from dagster_ips.run_view import RunView
from tests.support.lake import Lake
from tests.support.memory_store import MemoryCursors, consume
from tests.support.spark_requests import watched

ROWS = "(1, 1.5, 'a'), (1, 1.5, 'a'), (1, 1.5, 'a'), (2, NULL, 'b'), (3, double('NaN'), NULL), (4, -0.0, 'd')"
OTHERS = "(1, 1.5, 'a'), (2, NULL, 'c'), (3, double('NaN'), NULL), (3, double('NaN'), NULL), (5, 0.0, 'e')"


MERGE_ON_READ = ", ".join(f"'write.{each}.mode' = 'merge-on-read'" for each in ("delete", "update", "merge"))


class Rewritten:
    """The view of a table whose only file was replaced by one with partly the same rows, or changed by ``statements``.

    Before that, the row with the id 9 was deleted from the file.
    """

    def __init__(self, lake: Lake, *statements: str) -> None:
        self._lake, self._store = lake, MemoryCursors()
        lake.catalog.create_namespace("media")
        columns = "id BIGINT, v DOUBLE, s STRING"
        lake.sql(f"CREATE TABLE lake.media.values ({columns}) USING iceberg TBLPROPERTIES ({MERGE_ON_READ})")
        lake.sql("CREATE TABLE lake.media.target (x INT) USING iceberg")
        lake.sql(f"INSERT INTO lake.media.values SELECT /*+ COALESCE(1) */ * FROM VALUES {ROWS}, (9, 0.0, NULL)")
        lake.sql("DELETE FROM lake.media.values WHERE id = 9").collect()
        first = self._capture()
        consume(self._store, lake.catalog, "media.target", [first])
        for statement in statements or (f"INSERT OVERWRITE lake.media.values VALUES {OTHERS}",):
            lake.sql(statement).collect()
        self.view = RunView(self._capture(), lake.session, "lake", storage=lake.catalog.storage)

    def _capture(self) -> Any:  # noqa: ANN401  # a CapturedInput
        tracked = TrackedInput("values", "media.values")
        (captured,) = Capturer(self._lake.catalog, self._store).capture(
            CaptureRequest("consumer", [tracked], target="media.target"), run_id="run"
        )
        return captured

    def kept(self) -> set[int]:
        """The ids of what Spark has cached, on the page that it serves."""
        address = f"{self._lake.server.ui}/api/v1/applications"
        (application,) = json.load(urllib.request.urlopen(address, timeout=30))  # noqa: S310  # http, ours
        with urllib.request.urlopen(f"{address}/{application['id']}/storage/rdd", timeout=30) as answer:  # noqa: S310  # as above
            return {each["id"] for each in json.load(answer)}


@pytest.fixture
def rewritten(lake: Lake) -> Rewritten:
    return Rewritten(lake)


def rows(frame: DataFrame) -> Counter[str]:
    return Counter(str(tuple(row)) for row in frame.collect())


ADDED = Counter(["(2, None, 'c')", "(3, nan, None)", "(5, 0.0, 'e')"])
REMOVED = Counter({"(1, 1.5, 'a')": 2, "(2, None, 'b')": 1, "(4, -0.0, 'd')": 1})


def test_a_condition_on_rows_that_spark_has_cached_finds_nan(rewritten: Rewritten) -> None:
    """Spark leaves out parts of its cache by the least and greatest values, which don't count NaN."""
    view = rewritten.view
    assert rows(view.added) == ADDED
    assert view.removed.count() == REMOVED.total()
    assert rewritten.kept()
    assert rows(view.added.where("v > 2")) == Counter(["(3, nan, None)"])
    assert rows(view.changelog().where("NOT (v <= 2)").drop("_change_type")) == Counter(["(3, nan, None)"])
    view.release()


def in_log(rows: Counter[str], kind: str) -> Counter[str]:
    return Counter({row.replace(")", f", {kind!r})"): count for row, count in rows.items()})


def same_zero(found: Counter[str]) -> Counter[str]:
    """Where rows are compared, -0.0 may come out as 0.0."""
    return Counter({row.replace("-0.0", "0.0"): count for row, count in found.items()})


def test_a_single_changelog_is_exact_and_leaves_nothing_in_sparks_cache(rewritten: Rewritten) -> None:
    before = rewritten.kept()
    found = rows(rewritten.view.changelog())
    assert same_zero(found) == same_zero(in_log(ADDED, "insert") + in_log(REMOVED, "delete"))
    assert rewritten.kept() <= before


def test_a_change_that_several_frames_need_is_compared_once_and_kept_until_the_release(rewritten: Rewritten) -> None:
    before = rewritten.kept()
    added, removed = rewritten.view.added, rewritten.view.removed
    assert rows(added) == ADDED
    assert len(rewritten.kept() - before) == 1
    assert same_zero(rows(removed)) == same_zero(REMOVED)
    assert len(rewritten.kept() - before) == 1
    rewritten.view.release()
    assert rewritten.kept() <= before


def test_rewritten_rows_did_not_come_or_go(rewritten: Rewritten) -> None:
    view = rewritten.view
    assert (rows(view.came), same_zero(rows(view.went))) == (ADDED, same_zero(REMOVED))
    assert view.loses_rows(["id"])
    assert same_zero(rows(view.went)) == same_zero(REMOVED)


def test_rewritten_rows_that_differ_only_in_columns_nobody_needs_are_the_same(rewritten: Rewritten) -> None:
    view = rewritten.view
    assert view.loses_rows(["id"])
    assert rows(view.came) == Counter(["(3,)", "(5,)"])
    assert rows(view.went) == Counter({"(1,)": 2, "(4,)": 1})


def test_a_file_rewritten_in_a_column_nobody_needs_did_not_change(lake: Lake) -> None:
    other = f"INSERT OVERWRITE lake.media.values SELECT id, 7, s FROM VALUES {ROWS} AS t (id, v, s)"
    view = Rewritten(lake, other).view
    assert not view.loses_rows(["s", "id"])
    assert rows(view.came) == rows(view.went) == Counter()
    assert view.change.has_no_change()


def test_a_row_that_came_and_went_often_is_returned_as_often(lake: Lake) -> None:
    overwritten = "INSERT OVERWRITE lake.media.values SELECT id, 0, if(id < 20000, 'y', 'x') FROM range(30000)"
    view = Rewritten(lake, overwritten).view
    assert view.loses_rows(["s"])
    assert rows(view.came) == Counter({"('y',)": 20000, "('x',)": 10000})
    assert rows(view.went) == Counter({"('a',)": 3, "('b',)": 1, "(None,)": 1, "('d',)": 1})


def test_deleted_rows_went_and_updated_ones_came_again_even_unchanged(lake: Lake) -> None:
    update, delete = "UPDATE lake.media.values SET s = s WHERE id = 2", "DELETE FROM lake.media.values WHERE id = 3"
    view = Rewritten(lake, update, delete).view
    updated, deleted = "(2, None, 'b')", "(3, nan, None)"
    assert rows(view.came) == Counter([updated])
    assert rows(view.went) == Counter([updated, deleted])
    assert (rows(view.added), rows(view.removed)) == (Counter(), Counter([deleted]))
    assert view.kept is not None
    assert same_zero(rows(view.kept)) == Counter({"(1, 1.5, 'a')": 3, "(4, 0.0, 'd')": 1})
    assert view.loses_rows(["id", "s"], ["id", "s"])
    assert rows(view.went) == Counter(["(2, 'b')", "(3, None)"])
    assert view.came_within("id", "x") == "(`x` >= 2 AND `x` <= 2)"
    assert view.went_within("id", "x") == "(`x` >= 2 AND `x` <= 3)"
    assert view.went_within("s", "x") == "(`x` >= 'a' AND `x` <= 'd' OR `x` IS NULL)"
    view.release()


def test_it_is_unknown_which_rows_were_kept_if_a_file_is_gone(rewritten: Rewritten) -> None:
    assert rewritten.view.kept is None


def test_all_rows_were_kept_if_rows_only_came(lake: Lake) -> None:
    only_added = Rewritten(lake, "INSERT INTO lake.media.values VALUES (7, 0.0, 'g')").view
    assert only_added.kept is not None
    assert rows(only_added.kept) == rows(lake.sql("SELECT * FROM lake.media.values WHERE id <> 7"))


def test_updates_by_key_are_compared_once(rewritten: Rewritten) -> None:
    found = Counter(row["_change_type"] for row in rewritten.view.changelog(keys=["id"]).collect())
    assert found == {"update_before": 1, "update_after": 1, "insert": 2, "delete": 3}
    assert rewritten.kept()
    rewritten.view.release()


def test_a_changelog_asks_spark_only_for_its_rows(rewritten: Rewritten, spark_server: ConnectServer) -> None:
    with watched(spark_server) as requests:
        rewritten.view.changelog().collect()
    assert [each.kind for each in requests if each.kind != "config"] == ["execute"]
