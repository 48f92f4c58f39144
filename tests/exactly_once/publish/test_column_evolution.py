"""A table gets a frame's columns exactly once, whenever the run is killed and whoever else adds them, too."""

from __future__ import annotations

import contextlib

import pytest
from pyspark.sql import DataFrame

from dagster_ips.core.columns import Column, Struct
from dagster_ips.exactly_once.effects import Effect
from dagster_ips.exactly_once.publish.column_evolution import follow_frame
from dagster_ips.exactly_once.publish.table_changes import TableChanges
from tests.support.at_effect import at
from tests.support.lake import Lake

TABLE = "media.followed"
BEFORE, AFTER = f"before:{Effect.ALTER_TARGET}", f"after:{Effect.ALTER_TARGET}"


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def frame(lake: Lake) -> DataFrame:
    """It has one column more than the table, and another one has a wider type."""
    return lake.sql("SELECT 1L AS id, 'x' AS more")


@pytest.fixture(autouse=True)
def table(lake: Lake) -> None:
    lake.catalog.create_namespace("media")
    lake.sql(f"CREATE TABLE lake.{TABLE} (id int) USING iceberg")


def changes(lake: Lake) -> TableChanges:
    return TableChanges(lake.catalog, lake.session, TABLE, lake.catalog.find(TABLE))


def columns(lake: Lake) -> Struct:
    return lake.catalog.load(TABLE, asset="test").struct


FOLLOWED = Struct((Column("id", "long"), Column("more", "string")))


@pytest.mark.parametrize("point", [BEFORE, AFTER, f"{BEFORE}#2", f"{AFTER}#2"])
def test_a_run_that_is_killed_while_it_alters_its_table_can_be_continued(lake: Lake, point: str) -> None:
    def kill() -> None:
        raise Killed

    with at(point, kill), pytest.raises(Killed):
        follow_frame(frame(lake), lake.catalog, TABLE, changes(lake))
    follow_frame(frame(lake), lake.catalog, TABLE, changes(lake)).writeTo(f"lake.{TABLE}").append()
    assert columns(lake) == FOLLOWED
    assert list(lake.rows(TABLE)) == [(1, "x")]


@pytest.mark.parametrize("point", [BEFORE, f"{BEFORE}#2"])
def test_two_runs_that_alter_one_table_at_once_can_both_continue(lake: Lake, point: str) -> None:
    other = lake.another_session()
    other.table(f"lake.{TABLE}").collect()

    def meanwhile() -> None:
        with contextlib.suppress(Exception):
            other.sql(f"ALTER TABLE lake.{TABLE} ADD COLUMNS (more string)")
        other.sql(f"ALTER TABLE lake.{TABLE} ALTER COLUMN id TYPE bigint")

    with at(point, meanwhile):
        followed = follow_frame(frame(lake), lake.catalog, TABLE, changes(lake))
    followed.writeTo(f"lake.{TABLE}").append()
    assert columns(lake) == FOLLOWED
    assert list(lake.rows(TABLE)) == [(1, "x")]


def test_a_table_that_has_all_columns_is_left_alone(lake: Lake) -> None:
    before = lake.catalog.load(TABLE, asset="test").metadata_location
    follow_frame(lake.sql("SELECT 1 AS ID"), lake.catalog, TABLE, changes(lake))
    assert lake.catalog.load(TABLE, asset="test").metadata_location == before
