"""Two frames are compared row by row: missing, extra and different rows are counted and shown by examples."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame

from dagster_ips.core.sampling import Sample
from dagster_ips.spark.comparison import Comparison, alike, compare, hashable, rows_among
from tests.support.lake import Lake

COLUMNS = "k INT, v STRING, x DOUBLE, m MAP<STRING, INT>"


def frame(lake: Lake, *rows: str, columns: str = COLUMNS) -> DataFrame:
    parts = [f"SELECT {row}" for row in rows] or [
        f"SELECT {', '.join(['NULL'] * (columns.count(',') + 1))} WHERE FALSE"
    ]
    return lake.session.createDataFrame([], columns).unionAll(lake.sql(" UNION ALL ".join(parts)))


def counts(found: Comparison) -> tuple[int, int, int]:
    return found.missing, found.extra, found.different


def test_rows_are_compared_by_key_and_by_value(lake: Lake) -> None:
    same = "1, 'a', 0.1D, map('p', 1, 'q', 2)"
    expected = frame(lake, same, "2, 'b', 1.0D, NULL", "3, 'c', NULL, NULL", "NULL, 'n', double('NaN'), NULL")
    actual = frame(
        lake,
        "1, 'a', 0.1D, map('q', 2, 'p', 1)",
        "2, 'B', 1.0D, NULL",
        "4, 'd', 0.0D, NULL",
        "NULL, 'n', double('NaN'), NULL",
    )
    found = compare(expected, actual, keys=["k"])
    assert counts(found) == (1, 1, 1)
    assert (found.expected, found.actual) == (4, 4)
    shown = {each.kind: each for each in found.examples}
    assert (shown["different"].key, shown["different"].column) == ("k=2", "v")
    assert (shown["different"].expected, shown["different"].actual) == ("b", "B")
    assert shown["missing"].key == "k=3"
    assert shown["extra"].actual == "v=d, x=0.0, m=None"

    found = compare(expected, actual, keys=[])
    assert counts(found) == (2, 2, 0)


def test_a_duplicate_on_one_side_is_one_extra_or_missing_row(lake: Lake) -> None:
    row = "1, 'a', 0.1D, NULL"
    for keys in ([], ["k"]):
        assert counts(compare(frame(lake, row), frame(lake, row, row), keys=keys)) == (0, 1, 0)
        assert counts(compare(frame(lake, row, row), frame(lake, row), keys=keys)) == (1, 0, 0)
        assert counts(compare(frame(lake, row, row), frame(lake, row, row), keys=keys)) == (0, 0, 0)


def test_sums_added_in_another_order_are_equal_and_other_sums_are_not(lake: Lake) -> None:
    one = frame(lake, "1, 'a', 0.1D + 0.2D + 0.3D, NULL", "2, 'b', 1e300, NULL", "2, 'b', double('inf'), NULL")
    for keys in ([], ["k"]):
        other = frame(lake, "1, 'a', 0.3D + 0.2D + 0.1D, NULL", "2, 'b', 1e300, NULL", "2, 'b', double('inf'), NULL")
        assert counts(compare(one, other, keys=keys)) == (0, 0, 0)
        other = frame(lake, "1, 'a', 0.6001D, NULL", "2, 'b', 1e300, NULL", "2, 'b', double('-inf'), NULL")
        assert counts(compare(one, other, keys=keys)) == (0, 0, 2)


@pytest.mark.slow
@pytest.mark.everywhere
def test_any_one_row_of_a_key_is_right_also_of_a_null(lake: Lake) -> None:
    expected = frame(lake, "1, 'a', 0D, NULL", "1, 'b', 0D, NULL", "NULL, 'n', 0D, NULL", "NULL, 'n', 0D, NULL")

    def found(*rows: str) -> tuple[int, int, int]:
        return counts(compare(expected, frame(lake, *rows), keys=["k"], any_row_of_key=True))

    null = "NULL, 'n', 0D, NULL"
    assert found("1, 'a', 0D, NULL", null) == (0, 0, 0)
    assert found("1, 'b', 0D, NULL", null) == (0, 0, 0)
    assert found("1, 'c', 0D, NULL", null) == (0, 0, 1)
    assert found("1, 'a', 0D, NULL", "1, 'b', 0D, NULL", null) == (0, 1, 0)
    assert found(null) == (1, 0, 0)
    assert found("1, 'a', 0D, NULL") == (1, 0, 0)
    assert found("1, 'a', 0D, NULL", null, null) == (0, 1, 0)


def test_a_column_that_one_side_lacks_is_null_there(lake: Lake) -> None:
    expected = frame(lake, "1, 5L, 'new'", columns="K INT, v BIGINT, added STRING")
    actual = frame(lake, "1, 5, 'old'", columns="k INT, v INT, gone STRING")
    found = compare(*alike(expected, actual), keys=["k"])
    assert counts(found) == (0, 0, 1)
    assert set(found.examples[0].column.split(", ")) == {"added", "gone"}
    ignored = [each.drop("Added", "GONE") for each in (expected, actual)]
    assert counts(compare(*alike(*ignored), keys=["k"])) == (0, 0, 0)


def test_equal_keys_are_sampled_alike_whatever_their_form(lake: Lake) -> None:
    rows = lake.sql("SELECT id AS k, CAST(id AS STRING) AS v, -0.0D AS x FROM range(10000)")
    others = lake.sql("SELECT id AS k, CAST(id AS STRING) AS v, 0.0D AS x FROM range(10000)")
    sample = Sample(0.05, seed=3)
    assert hashable([rows, others], ["k", "x"]) == hashable([rows, others.drop("v")], []) == ["k"]
    ((eleven,),) = lake.sql("SELECT xxhash64(3, 11L)").collect()
    taken = [rows_among(frame, ["k"], sample, recent=[eleven]) for frame in (rows, others)]
    assert 350 < taken[0].count() < 650
    assert taken[0].where("k = 11").count() == 1
    assert counts(compare(*taken, keys=["k"])) == (0, 0, 0)
    assert rows_among(rows, ["k"], Sample(1.0, 3)).count() == 10000
    assert rows_among(rows, ["k"], Sample(1.0, 3), columns=["v"], partitions=[("7",), (None,)]).count() == 1
