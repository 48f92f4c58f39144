"""A condition for deleting or replacing rows means what it means in SQL's WHERE, however Iceberg interprets it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it
from pyspark.sql.connect import functions as connect_functions

from dagster_ips.core.ranges import equals
from dagster_ips.spark import frames
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.writes import partition_filter
from dagster_ips.spark.writes.overwrite_where import delete_where, replace_where
from dagster_ips.spark.writes.partition_filter import among, collected, exactly
from tests.spark import conditions as some
from tests.support.lake import Lake
from tests.support.variants import mostly_slow

ALL = {"id": "int"} | some.PARTITIONS | some.OTHERS | {"s": "struct<f: double, c: string>"}
AT_ONCE = settings(
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


class Table:
    """A table with ``rows``, in one file per partition, and the same rows in memory, where SQL says which match."""

    def __init__(
        self, lake: Lake, name: str, columns: dict[str, str], partition_by: Sequence[str], rows: Sequence[str]
    ) -> None:
        self.lake = lake
        self.name = f"t.{name}"
        self.partition_by = tuple(partition_by)
        # in memory, so that no condition on them goes through Iceberg
        typed = ", ".join(f"CAST(c{i} AS {kind}) AS {column}" for i, (column, kind) in enumerate(columns.items()))
        names = ", ".join(f"c{i}" for i in range(len(columns)))
        self.plain = lake.sql(f"SELECT {typed} FROM VALUES {', '.join(rows)} AS v({names})")
        lake.catalog.create_namespace("t")
        lake.sql(f"DROP TABLE IF EXISTS lake.{self.name}")
        of = ", ".join(f"{column} {kind}" for column, kind in columns.items())
        by = f" PARTITIONED BY ({', '.join(partition_by)})" if partition_by else ""
        lake.sql(f"CREATE TABLE lake.{self.name} ({of}) USING iceberg{by}")
        self.plain.writeTo(f"lake.{self.name}").append()

    def branch(self, name: str) -> Branch:
        branch = Branch("lake", self.name, name)
        branch.create(self.lake.session, head=None)
        return branch

    def ids(self, branch: Branch) -> list[int]:
        return sorted(row[0] for row in self.lake.session.table(branch.sql_name).select("id").collect())

    def matching(self, conditions: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """The ids of the rows that match each condition, and of those that don't."""
        kept = [F.sort_array(F.collect_list(F.when(F.expr(c), F.col("id")))) for c in conditions]
        found = self.plain.agg(*[ids.alias(f"c{i}") for i, ids in enumerate(kept)], F.collect_list("id")).collect()[0]
        return [(ids, sorted(set(found[-1]) - set(ids))) for ids in found[:-1]]


def check(table: Table, conditions: Sequence[str]) -> None:
    """Each condition deletes and replaces exactly the rows that match it."""
    for number, (condition, (matching, rest)) in enumerate(zip(conditions, table.matching(conditions), strict=True)):
        frame = table.plain.where(F.col("id").isin(matching)).withColumn("id", F.col("id") + 100)
        branch = table.branch(f"replaced{number}")
        replace_where(frame, branch, where=condition, whole_file_columns=table.partition_by)
        assert table.ids(branch) == rest + [one + 100 for one in matching], f"replaced where {condition}"
        if number % 3 == 0:
            branch = table.branch(f"deleted{number}")
            delete_where(condition, branch, table.lake.session)
            assert table.ids(branch) == rest, f"deleted where {condition}"


def of_one_column(lake: Lake, kind: str, *, partitioned: bool) -> Table:
    rows = [f"({i}, {value}, 'k')" for i, value in enumerate([*some.VALUES[kind], "NULL"])]
    columns = {"id": "int", "c": kind, "other": "string"}
    return Table(lake, "one", columns, ["c", "other"] if partitioned else [], rows)


@pytest.mark.everywhere
@pytest.mark.parametrize(
    ("kind", "condition"),
    mostly_slow(
        [
            ("string", "c <> 'x'"),
            ("string", "NOT (c = 'x') OR other = 'z'"),
            ("string", "c NOT IN ('x', 'z')"),
            ("string", "c NOT LIKE 'x%'"),
            ("string", "NOT (c >= 'x')"),
            ("boolean", "NOT c"),
            ("double", "c >= 0.0D"),
            ("double", "c > 1.5D"),
        ]
    ),
)
def test_a_condition_on_a_partition_column_replaces_what_a_select_finds(lake: Lake, kind: str, condition: str) -> None:
    check(of_one_column(lake, kind, partitioned=True), [condition])


@pytest.mark.everywhere
@pytest.mark.parametrize("kind", mostly_slow(["string", "double", "boolean"]))
def test_a_condition_on_any_other_column_replaces_what_a_select_finds(lake: Lake, kind: str) -> None:
    one = some.VALUES[kind][0]
    check(of_one_column(lake, kind, partitioned=False), [f"c <> {one}", f"NOT (c < {one})", f"c NOT IN ({one}, NULL)"])


def test_random_conditions_on_partition_columns_replace_what_a_select_finds(lake: Lake) -> None:
    (rows,) = some.drawn(some.rows(), 1, seed=1)
    conditions = some.drawn(some.conditions(some.PARTITIONS), 6, seed=1)
    check(Table(lake, "many", ALL, list(some.PARTITIONS), rows), conditions)


@pytest.mark.slow
def test_random_conditions_replace_and_delete_what_a_select_finds(lake: Lake) -> None:
    (rows,) = some.drawn(some.rows(), 1, seed=2)
    check(Table(lake, "many", ALL, list(some.PARTITIONS), rows), some.drawn(some.conditions(), 50, seed=2))


@pytest.mark.slow
@pytest.mark.parametrize("kind", some.VALUES)
def test_a_partitions_value_is_found_exactly_whatever_its_type(lake: Lake, kind: str) -> None:
    table = of_one_column(lake, kind, partitioned=True)
    grouped = table.plain.groupBy("c").agg(F.sort_array(F.collect_list("id")).alias("ids"))
    everything = sorted(row[0] for row in table.plain.select("id").collect())
    for number, (value, ids) in enumerate(collected(grouped)):
        branch = table.branch(f"without{number}")
        nothing: DataFrame = table.plain.where("FALSE")
        nothing.writeTo(branch.sql_name).overwrite(exactly(["c"], [(value,)]))
        assert table.ids(branch) == sorted(set(everything) - set(ids)), value


def test_partitions_of_false_and_of_true_are_read_without_those_of_null(lake: Lake) -> None:
    table = of_one_column(lake, "boolean", partitioned=True)
    partitions = f"({equals('c', value=False)} AND other = 'k') OR ({equals('c', value=True)} AND other = 'z')"
    branch = table.branch("read")
    assert table.ids(branch) == [0, 1, 2]
    assert [row.id for row in lake.session.table(branch.sql_name).where(partitions).collect()] == [1]


@given(data=st.data())
@settings(deadline=None)
def test_of_too_many_partitions_the_range_is_read_and_not_the_whole_table(data: st.DataObject) -> None:
    value = st.none() | st.sampled_from([*map(days_from, range(5))])
    values = data.draw(st.lists(st.tuples(value, st.integers(0, 9), st.floats()), min_size=2))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(partition_filter, "F", connect_functions)
        patched.setattr(frames, "F", connect_functions)
        patched.setattr(partition_filter, "MOST_LITERALS", 1)
        text = str(among(["day", "number", "amount"], values, alias="t"))
    numbers = [number for _, number, _ in values]
    days = [day for day, _, _ in values if day is not None]
    assert f">=(t.`number`, {min(numbers)})" in text
    assert f"<=(t.`number`, {max(numbers)})" in text
    assert "amount" not in text
    assert ("isNull(t.`day`)" in text) is (0 < len(days) < len(values))
    assert text.count("day") == 2 * bool(days) + (0 < len(days) < len(values))


def days_from(number: int) -> dt.date:
    return dt.date(2026, 1, 1) + dt.timedelta(days=number)
