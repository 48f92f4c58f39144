"""A declaration that can't work is refused at once, and the error says what to write instead."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from unittest.mock import Mock

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.errors import DeclarationError
from dagster_ips.orchestration.declare.consumers import consumers_of
from dagster_ips.orchestration.declare.declarations import table_of
from dagster_ips.orchestration.declare.partition_mappings import mapping_text


def test_a_tables_name_is_the_same_however_it_is_declared() -> None:
    declared = ips.table("`media`.`my.table`")
    assert table_of(dg.AssetKey("daily"), declared, "default") == "media.`my.table`"
    assert table_of(dg.AssetKey(["media", "my.table"]), {}, "default") == "media.`my.table`"
    assert table_of(dg.AssetKey("daily"), {}, "`media`") == "media.daily"


@pytest.mark.parametrize("name", ["media.`my.table", "media..daily", "daily"])
def test_an_invalid_table_name_is_refused_when_it_is_declared(name: str) -> None:
    with pytest.raises(DeclarationError, match=r"^table\(\): its table.* (Quote a part|Add one)"):
        ips.table(name)
    with pytest.raises(DeclarationError, match=r"^playback: its table.* (Quote a part|Add one)"):
        ips.iceberg_asset("playback", table=name)


def test_another_partition_mapping_is_another_declaration() -> None:
    days = dg.DailyPartitionsDefinition(start_date="2026-01-01")

    def declared(mapping: dg.PartitionMapping | None) -> str | None:
        @dg.asset(
            partitions_def=days,
            ins={"playback": ips.incremental(partition_mapping=mapping)},
            metadata=ips.append() | ips.table("media.daily") | {"partition_expr": "event_date"},
        )
        def daily(playback: ips.IcdcView) -> DataFrame:
            return playback.added

        (consumer,) = consumers_of(daily, {daily.key: daily.metadata_by_key[daily.key]}, "default")
        return consumer.maker.declared

    assert declared(None) == "append() of playback"
    yesterday = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
    assert declared(yesterday) == "append() of playback by TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)"


class Shifted:
    """Like a user's own partition mapping, whose parameters aren't its attributes."""

    def __init__(self, *values: object) -> None:
        self._values = values


def test_any_value_of_a_users_own_mapping_makes_another_mapping() -> None:
    numbers = [dt.timedelta(0), dt.timedelta(1), dt.date(2026, 1, 1), b"a", {"x", "y"}, {"x"}]
    functions = [lambda key: key, lambda key: key + 1, lambda key: key + 2]
    texts = [mapping_text(Shifted(*values)) for values in [[], *([each] for each in [*numbers, *functions])]]
    assert len(set(texts)) == len(texts)
    assert not any(" at 0x" in text for text in texts)


DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01")
BOTH = dg.MultiPartitionsDefinition({"day": DAYS, "country": dg.StaticPartitionsDefinition(["de"])})


@pytest.mark.parametrize(
    ("definition", "expression"),
    [(DAYS, ["day"]), (DAYS, {"day": "day"}), (BOTH, "day"), (BOTH, {"day": "day"}), (BOTH, {"day": 1, "country": 2})],
)
def test_a_partition_expression_that_does_not_fit_is_refused_when_definitions_load(
    definition: dg.PartitionsDefinition[str], expression: object
) -> None:
    @dg.asset(
        partitions_def=definition,
        ins={"playback": ips.incremental()},
        metadata=ips.append() | {"partition_expr": expression},
    )
    def daily(playback: ips.IcdcView) -> DataFrame:
        return playback.added

    with pytest.raises(DeclarationError, match=r"^daily: .* its metadata partition_expr must name one column"):
        consumers_of(daily, {daily.key: daily.metadata_by_key[daily.key]}, "default")


def test_one_column_for_partitions_of_several_dimensions_is_refused_when_definitions_load() -> None:
    @dg.asset(
        partitions_def=BOTH,
        ins={"playback": ips.incremental(partition_column="date")},
        metadata=ips.append() | {"partition_expr": {"day": "day", "country": "country"}},
    )
    def daily(playback: ips.IcdcView) -> DataFrame:
        return playback.added

    with pytest.raises(DeclarationError, match=r"^daily: its input playback has partition_column='date', but"):
        consumers_of(daily, {daily.key: daily.metadata_by_key[daily.key]}, "default")


@pytest.mark.parametrize("form", [pa.Table, int, ips.IcdcView | None])
def test_an_annotation_that_an_incremental_input_cannot_have_is_refused_when_definitions_load(form: object) -> None:
    def daily(playback: object) -> DataFrame: ...

    daily.__annotations__["playback"] = form
    asset = dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append())(daily)
    with pytest.raises(DeclarationError, match=r"^daily: its incremental input playback has an unsupported annotation"):
        consumers_of(asset, {asset.key: asset.metadata_by_key[asset.key]}, "default")


def test_merge_refuses_several_columns_that_would_decide_between_rows() -> None:
    with pytest.raises(DeclarationError, match=r"latest_by=\['ts'\] isn't the name of a column"):
        ips.merge(on=["id"], latest_by=["ts"])  # type: ignore[arg-type]  # what is refused


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda: ips.target_lag(600), r"longest=600 isn't a duration\. Give a datetime\.timedelta"),
        (lambda: ips.iceberg_asset("a", table="m.a", valid_through="day", lateness=6), "lateness=6 isn't a duration"),
        (lambda: ips.iceberg_asset("a", table="m.a", valid_through=True), "valid_through=True isn't text"),
        (lambda: ips.iceberg_asset("a", table=["m", "a"]), r"its table's name \['m', 'a'\] isn't text"),
        (lambda: ips.valid_through("a", every=86_400), "every=86400 isn't a duration"),
        (lambda: ips.on_change(max_wait=600), "max_wait=600 isn't a duration"),
        (lambda: ips.on_change(min_bytes="50MB"), "min_bytes='50MB' isn't a valid limit"),
        (lambda: ips.pending_sensor("hourly", ["a"], max_wait=600), "max_wait=600 isn't a duration"),
        (lambda: ips.pending_sensor("hourly", ["a"], min_bytes=0), "min_bytes=0 isn't a valid limit"),
        (lambda: ips.incremental(ref=7), "ref=7 isn't text"),
        (lambda: ips.incremental(partition_column=["day"]), r"partition_column=\['day'\] isn't text"),
        (lambda: ips.incremental(ranges=None), r"ranges=None isn't a list of columns' names\. Write ranges="),
        (lambda: ips.append(dedup_on="id"), r"^append\(\): dedup_on='id' is a single string"),
        (lambda: ips.append(ips.table("m.a")), r"^append\(\): dedup_on is a declaration"),
        (lambda: ips.merge(on=[3]), r"on=\[3\] isn't a list of columns' names"),
        (lambda: ips.combine(on=["day"], aggregates=["count(*)"]), r"SQL of each column\. Map columns to aggregates"),
        (lambda: ips.combine(on=["day"], aggregates={"n": None}), "doesn't give the SQL of each column"),
        (lambda: ips.combine(on=["day"], aggregates={3: "count(*)"}), "doesn't give the SQL of each column"),
        (lambda: ips.table("m.a", properties=["format-version"]), r"^table\(\): properties=.* doesn't give the text"),
        (lambda: ips.table("m.a", properties={"owner": None}), "doesn't give the text, number or boolean"),
        (lambda: ips.table(""), "its table's name can't be read"),
        (lambda: ips.sql_asset("a", None), "its query is None"),
        (lambda: ips.sql_asset("a", "a.sql"), r"To give a file, pass a Path: Path\(__file__\)\.with_name\('a\.sql'\)"),
        (lambda: ips.sql_asset("a", "SELECT * FROM b", sources=["b"]), "doesn't map the query's names to asset keys"),
        (lambda: ips.with_incremental(dg.Definitions(), wait_seconds="4"), "wait_seconds='4' is out of range"),
        (lambda: ips.trusted(None), "because=None isn't text"),
        (lambda: ips.proof("a", sample="1%"), "can't use sample='1%'"),
        (lambda: ips.affected(Mock(spec=ips.IcdcView), "a", by=3, on="d"), r"given a int.* Declare both inputs"),
        (lambda: ips.with_incremental([]), r"it was given a list\. Pass it a Definitions"),
    ],
)
def test_an_argument_of_the_wrong_type_is_refused_where_it_is_given(declare: Callable[[], object], says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        declare()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"partition_column": "day"}, "has partition_column='day', which has no effect"),
        ({"on_unmapped": "ignore"}, "has on_unmapped='ignore', which has no effect"),
    ],
)
def test_what_only_partitions_need_is_refused_without_partitions(more: dict[str, str], says: str) -> None:
    @dg.asset(ins={"playback": ips.incremental(**more)}, metadata=ips.append())  # type: ignore[arg-type]  # all are text
    def daily(playback: ips.IcdcView) -> DataFrame: ...

    with pytest.raises(DeclarationError, match=says):
        consumers_of(daily, {daily.key: daily.metadata_by_key[daily.key]}, "default")
