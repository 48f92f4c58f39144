"""What someone else writes to a target is noticed and refused, and each remedy that the error names works."""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal

import dagster as dg
import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.errors import CombineError, ForeignWriteError, TargetOfAnotherError, UnknownRowsError
from dagster_ips.spark.writes.partials import as_read
from tests.support.lake import Lake, events
from tests.support.lake_definitions import definitions_on
from tests.support.pipeline import materialize, pipeline
from tests.support.variants import mostly_slow


def copying(name: str) -> dg.AssetsDefinition:
    @dg.asset(name=name, ins={"playback": ips.incremental()}, metadata=ips.append() | ips.table("media.copy"))
    def copy(playback: ips.IcdcView) -> DataFrame:
        return playback.added.select("event_id")

    return copy


def ids(lake: Lake) -> Counter[int]:
    return Counter(row.event_id for row in lake.sql("SELECT * FROM lake.media.copy").collect())


def run(lake: Lake, instance: dg.DagsterInstance, name: str, **tags: str) -> dg.ExecuteInProcessResult:
    definitions = pipeline(lake.folder, lake.spark_folder, copying(name))
    return materialize(definitions, instance, name, tags={f"dagster_ips/{tag}": value for tag, value in tags.items()})


def test_rows_deleted_from_a_target_are_noticed_and_both_remedies_do_what_they_say(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback(events(range(4)))
    run(lake, instance, "copy")
    lake.sql("DELETE FROM lake.media.copy WHERE event_id < 2")
    lake.append(events([4]))
    with pytest.raises(ForeignWriteError, match="come from its inputs") as raised:
        run(lake, instance, "copy")

    (accept,) = re.findall(r"with the run tag dagster_ips/accept=(\d+)", str(raised.value))
    (event,) = run(lake, instance, "copy", accept=accept).get_asset_materialization_events()
    assert f"accepts rows that others wrote**, as requested by run tag: snapshot {accept}" in str(
        event.materialization.metadata["summary"].value
    )
    lake.append(events([5]))
    run(lake, instance, "copy")
    assert ids(lake) == Counter(range(2, 6))
    run(lake, instance, "copy", mode="full")
    assert ids(lake) == Counter(range(6))


@pytest.mark.parametrize(("storage", "value"), mostly_slow([("partials", "_ips_sum_seconds"), ("merged", "seconds")]))
def test_an_accepted_row_without_its_hidden_columns_is_not_added_to(
    lake: Lake, instance: dg.DagsterInstance, storage: Literal["merged", "partials"], value: str
) -> None:
    @dg.asset(
        ins={"playback": ips.incremental()},
        metadata=ips.combine(on=["account"], aggregates={"seconds": "sum(seconds)"}, storage=storage)
        | ips.table("media.totals"),
    )
    def totals(playback: ips.IcdcView) -> DataFrame:
        return playback.weighted

    def run(**tags: str) -> None:
        definitions = pipeline(lake.folder, lake.spark_folder, totals)
        materialize(definitions, instance, "totals", tags={f"dagster_ips/{tag}": value for tag, value in tags.items()})

    lake.create_playback(events([1, 2]))
    run()
    lake.sql(f"INSERT INTO lake.media.totals (account, {value}) VALUES ('a0', 100)")
    lake.append(events([4]))  # a row of a1
    with pytest.raises(ForeignWriteError) as raised:
        run()
    run(accept=str(raised.value.newest))
    lake.append(events([3]))  # a row of a0
    if storage == "merged":
        with pytest.raises(CombineError, match="is null, so something else wrote it"):
            run()
    else:
        run()
        properties = lake.catalog.load("media.totals", asset="test").properties
        groups = as_read(lake.sql("SELECT * FROM lake.media.totals"), properties)
        with pytest.raises(SparkRuntimeException, match="is null, so something else wrote it"):
            groups.collect()
    run(mode="full")


def test_rows_that_others_add_while_a_run_works_are_not_built_upon(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append() | ips.table("media.copy"))
    def copy(playback: ips.IcdcView) -> DataFrame:
        if playback.mode == "incremental":
            lake.sql("INSERT INTO lake.media.copy VALUES (99)")
        return playback.added.select("event_id")

    definitions = pipeline(lake.folder, lake.spark_folder, copy)
    lake.create_playback(events(range(3)))
    materialize(definitions, instance, "copy")
    lake.append(events([3]))
    with pytest.raises(ForeignWriteError):
        materialize(definitions, instance, "copy")
    assert ids(lake) == Counter([0, 1, 2, 99])


def test_a_table_has_one_owner_across_code_locations_and_a_renamed_asset_can_take_it_over(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback(events(range(3)))
    run(lake, instance, "old_name")
    assert lake.catalog.load("media.copy", asset="test").properties["dagster-ips.asset"] == "old_name"
    with pytest.raises(TargetOfAnotherError) as raised:
        run(lake, instance, "new_name")
    (owner,) = re.findall(r"dagster_ips/take_over=(\w+)", str(raised.value))
    run(lake, instance, "new_name", take_over=owner)
    assert lake.catalog.load("media.copy", asset="test").properties["dagster-ips.asset"] == "new_name"
    lake.append(events([3]))
    with pytest.raises(TargetOfAnotherError):
        run(lake, instance, "old_name")
    run(lake, instance, "new_name")
    run(lake, instance, "old_name", take_over="new_name")
    assert ids(lake) == Counter(range(4))


def test_an_asset_that_took_over_its_table_goes_on_after_its_upstream_was_renamed_as_well(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(name="new_name", ins={"plays": ips.incremental()}, metadata=ips.append() | ips.table("media.copy"))
    def of_renamed(plays: ips.IcdcView) -> DataFrame:
        return plays.added.select("event_id")

    lake.create_playback(events(range(3)))
    run(lake, instance, "old_name")
    run(lake, instance, "new_name", take_over="old_name")
    plays = ips.iceberg_asset("plays", table="media.playback")
    materialize(definitions_on(lake.folder, lake.spark_folder, plays, of_renamed), instance, "new_name")
    assert ids(lake) == Counter(range(3))


def test_an_asset_without_incremental_inputs_does_not_replace_the_table_of_another_asset(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(metadata=ips.table("media.copy"))
    def plain(playback: DataFrame) -> DataFrame:
        return playback.select("event_id").limit(1)

    lake.create_playback(events(range(3)))
    run(lake, instance, "copy")
    definitions = pipeline(lake.folder, lake.spark_folder, plain)
    with pytest.raises(TargetOfAnotherError, match="belongs to copy"):
        materialize(definitions, instance, "plain")
    assert ids(lake) == Counter(range(3))


def test_rows_from_before_the_first_run_stay_until_a_person_gives_them_up(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback(events(range(3)))
    lake.sql("CREATE TABLE lake.media.copy AS SELECT BIGINT(7) AS event_id")
    with pytest.raises(UnknownRowsError, match="dagster_ips/mode=full"):
        run(lake, instance, "copy")
    assert ids(lake) == Counter([7])
    run(lake, instance, "copy", mode="full")
    assert ids(lake) == Counter(range(3))


@pytest.mark.parametrize("by", mostly_slow(["frame", "statements"]))
def test_rows_accepted_by_a_run_that_has_nothing_to_write_stay_accepted(
    lake: Lake, instance: dg.DagsterInstance, by: str
) -> None:
    """As in moving.md: the table stays as the old job wrote it, and is continued from a point in time."""
    lake.create_playback(events(range(4)))
    lake.sql("CREATE TABLE lake.media.copy (event_id bigint) USING iceberg")
    lake.sql("INSERT INTO lake.media.copy VALUES (0), (1), (77)")
    latest = ips.incremental(start="latest")

    @dg.asset(name="copy", ins={"playback": latest}, metadata=ips.append() | ips.table("media.copy"))
    def by_frame(playback: ips.IcdcView) -> DataFrame:
        return playback.added.select("event_id")

    @dg.asset(name="copy", deps=[ips.incremental_dep("playback", start="latest")], metadata=ips.table("media.copy"))
    def by_statements(context) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001  # Dagster reads annotations
        with ips.capture(context) as icdc:
            icdc.sql("INSERT INTO {target} SELECT event_id FROM {added}")

    made = pipeline(lake.folder, lake.spark_folder, by_frame if by == "frame" else by_statements)
    with pytest.raises(UnknownRowsError) as raised:
        materialize(made, instance, "copy")
    (accept,) = re.findall(r"dagster_ips/accept=(\d+)", str(raised.value))
    materialize(made, instance, "copy", tags={"dagster_ips/accept": accept})
    assert ids(lake) == Counter([0, 1, 77])
    for number in (4, 5):
        lake.append(events([number]))
        materialize(made, instance, "copy")
    assert ids(lake) == Counter([0, 1, 77, 4, 5])


def test_a_table_is_taken_over_even_by_a_run_that_has_nothing_to_write(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback(events(range(2)))
    run(lake, instance, "copy")
    lake.sql("UPDATE lake.media.playback SET seconds = seconds")

    @dg.asset(
        name="heir", ins={"playback": ips.incremental(start="latest")}, metadata=ips.append() | ips.table("media.copy")
    )
    def heir(playback: ips.IcdcView) -> DataFrame:
        return playback.added.select("event_id")

    made = pipeline(lake.folder, lake.spark_folder, heir)
    head = str(lake.catalog.load("media.copy", asset="").head_snapshot_id())
    materialize(made, instance, "heir", tags={"dagster_ips/take_over": "copy", "dagster_ips/accept": head})
    lake.append(events([2]))
    materialize(made, instance, "heir")
    assert ids(lake) == Counter(range(3))


def test_a_tag_for_which_there_is_no_occasion_is_said_to_have_no_effect(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback(events(range(2)))
    run(lake, instance, "copy")
    head = str(lake.catalog.load("media.copy", asset="").head_snapshot_id())
    lake.append(events([2]))
    done = run(lake, instance, "copy", accept=head, take_over="other", on_removed="ignore")
    said = "\n".join(entry.user_message for entry in instance.all_logs(done.run_id))
    for tag in ("accept", "take_over", "on_removed"):
        assert re.search(rf"the run tag dagster_ips/{tag}=\S+ has no effect: ", said)
