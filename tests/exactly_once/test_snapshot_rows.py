"""A snapshot's rows with the current columns equal what a reader of the table sees."""

from __future__ import annotations

from dagster_ips.exactly_once.snapshot_rows import snapshot_rows
from tests.support.lake import Lake

CHANGES = (
    "RENAME COLUMN name TO third",
    "RENAME COLUMN other TO name",
    "RENAME COLUMN third TO other",
    "ADD COLUMN came ARRAY<INT>",
    "DROP COLUMN gone",
    "ALTER COLUMN n TYPE BIGINT",
    "RENAME COLUMN s.a TO z",
    "RENAME COLUMN s.b TO a",
    "ADD COLUMN s.came STRING",
    "RENAME COLUMN l.element.x TO y",
    "ALTER COLUMN m.value TYPE DOUBLE",
    "ALTER COLUMN other FIRST",
)


def test_a_table_that_is_read_whole_has_the_current_columns_even_before_the_next_commit(lake: Lake) -> None:
    lake.catalog.create_namespace("media")
    lake.sql(
        "CREATE TABLE lake.media.t (name STRING, other STRING, gone INT, n INT, `odd.name` INT, "
        "s STRUCT<a: INT, b: INT>, l ARRAY<STRUCT<x: INT>>, m MAP<STRING, FLOAT>)"
    )
    lake.sql(
        "INSERT INTO lake.media.t VALUES "
        "('x', 'y', 1, 2, 3, named_struct('a', 4, 'b', 5), array(named_struct('x', 6), NULL), map('k', 0.5)), "
        "(NULL, 'z', NULL, NULL, NULL, NULL, NULL, NULL)"
    )
    for change in ("", *CHANGES):
        if change:
            lake.sql(f"ALTER TABLE lake.media.t {change}")
        table = lake.catalog.load("media.t", asset="test")
        found = snapshot_rows(lake.session, "lake", table, table.ancestry().head)
        seen = lake.another_session().sql("SELECT * FROM lake.media.t")
        assert found.columns == seen.columns, change
        assert [field.dataType.simpleString() for field in found.schema] == [
            field.dataType.simpleString() for field in seen.schema
        ], change
        assert sorted(map(repr, found.collect())) == sorted(map(repr, seen.collect())), change
