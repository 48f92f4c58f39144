"""Bad input gets an error that says what happened and what to do; state and tables stay as they were."""

from __future__ import annotations

import datetime as dt
import pickle
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, StructType, TimeType
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips.core.capture import EdgeState, Mode
from dagster_ips.core.edge import Edge
from dagster_ips.errors import (
    CatalogUnreachableError,
    DeclarationError,
    DuplicateKeysError,
    FragmentOverwriteError,
    IpsError,
    LayoutError,
    LostCheckpointError,
    OutputTypeError,
    RemovedRowsError,
    SourceRecreatedError,
    SourceRolledBackError,
    UnknownColumnError,
    UnknownTableError,
    UnreadableColumnError,
)
from dagster_ips.orchestration.declare.declarations import write_mode_of
from dagster_ips.orchestration.run.io_manager import returned
from tests.support.lake import BY_DATE, SCHEMA, Lake, events
from tests.support.pipeline import daily, expected_daily, materialize, pipeline
from tests.support.progress import copied_state
from tests.support.variants import mostly_slow


def state_of(instance: dg.DagsterInstance, consumer: str) -> EdgeState:
    return copied_state(instance, Edge(consumer, "playback"))


def cause_of(raised: pytest.ExceptionInfo[BaseException]) -> IpsError:
    """The library's error inside whatever Dagster wrapped it in; the error must survive pickling."""
    error: BaseException | None = raised.value
    while error is not None and not isinstance(error, IpsError):
        error = error.__cause__ or error.__context__
    assert isinstance(error, IpsError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    return error


def fails(
    lake: Lake, instance: dg.DagsterInstance, asset: str, kind: type[IpsError], *more: dg.AssetsDefinition
) -> IpsError:
    """Run ``asset``, which must fail with ``kind`` and leave no new watermark, table or branch behind."""
    before = state_of(instance, asset)
    table = f"media.{asset}"
    commits = lake.commits(table)
    with pytest.raises(Exception) as raised:  # noqa: PT011  # Dagster wraps ours
        materialize(pipeline(lake.folder, lake.spark_folder, *more), instance, asset)
    error = cause_of(raised)
    assert isinstance(error, kind)
    after = state_of(instance, asset)
    assert (after.committed, after.number) == (before.committed, before.number)
    assert lake.commits(table) == commits
    if commits:
        assert lake.branches(table) == {"main"}
    return error


def incremental_asset(
    name: str, metadata: dict[str, Any], compute: Callable[[ips.IcdcView], Any]
) -> dg.AssetsDefinition:
    """An asset over ``playback``."""

    @dg.asset(name=name, ins={"playback": ips.incremental()}, metadata=metadata | ips.table(f"media.{name}"))
    def made(playback: ips.IcdcView) -> Any:  # noqa: ANN401  # each test chooses what it returns
        return compute(playback)

    return made


def test_an_unknown_table_is_named_with_the_asset_that_asked(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.catalog.create_namespace("media")
    error = fails(lake, instance, "daily", UnknownTableError)
    assert "media.playback" in str(error)
    assert "daily" in str(error)
    assert f"no tables at all; they would be in file://{lake.folder}" in str(error)
    lake.create_playback(events(range(3)), "media.playbacks")
    assert str(fails(lake, instance, "daily", UnknownTableError)).endswith("The catalog has media.playbacks.")


def test_a_merge_key_that_the_frame_lacks_is_refused_before_anything_is_written(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback(events(range(4)))
    asset = incremental_asset("merged", ips.merge(on=["acount"]), lambda view: view.changes)
    error = fails(lake, instance, "merged", UnknownColumnError, asset)
    assert "'acount'" in str(error)
    assert lake.catalog.find("media.merged") is None


@pytest.mark.parametrize(
    ("layout", "said"),
    mostly_slow(
        [
            ({"partition_by": ["event_dat"]}, r"Couldn't find column event_dat\. Its columns are .*event_date"),
            ({"partition_by": ["dayz(event_date)"]}, r"dayz\(event_date\)"),
            ({"sort_by": ["event_dat"]}, r"event_dat\b"),
            ({"properties": {"format-version": "9"}}, "9"),
        ],
        quick=1,
    ),
)
def test_a_layout_that_does_not_fit_the_frame_is_refused_in_words_without_the_jvms_stack(
    lake: Lake, instance: dg.DagsterInstance, layout: dict[str, Any], said: str
) -> None:
    lake.create_playback(events(range(4)))

    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append() | ips.table("media.laid_out", **layout))
    def laid_out(playback: ips.IcdcView) -> DataFrame:
        return playback.added

    with pytest.raises(Exception) as raised:  # noqa: PT011  # Dagster wraps ours
        materialize(pipeline(lake.folder, lake.spark_folder, laid_out), instance, "laid_out")
    error = cause_of(raised)
    assert isinstance(error, LayoutError)
    assert re.search(said, str(error))
    assert "\n" not in str(error)
    assert state_of(instance, "laid_out").committed is None


def test_merge_without_a_key_is_refused_when_it_is_declared() -> None:
    with pytest.raises(DeclarationError, match="no key column"):
        ips.merge(on=[])


def test_a_key_given_as_one_string_is_not_taken_letter_by_letter() -> None:
    with pytest.raises(DeclarationError, match="each letter would count"):
        ips.merge(on="account")


def test_several_rows_for_a_merge_key_write_nothing(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.create_playback(events(range(3)))
    asset = incremental_asset("merged", ips.merge(on=["account"]), lambda view: view.changes)
    materialize(pipeline(lake.folder, lake.spark_folder, asset), instance, "merged")
    lake.append(events([4, 7, 10]))
    assert "account = 'a1'" in str(fails(lake, instance, "merged", DuplicateKeysError, asset))


def test_several_rows_for_a_merge_key_in_a_first_run_publish_nothing(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.create_playback(events(range(4)))
    asset = incremental_asset("merged", ips.merge(on=["account"]), lambda view: view.changes)
    with pytest.raises(Exception, match="several rows for the same key"):
        materialize(pipeline(lake.folder, lake.spark_folder, asset), instance, "merged")
    assert lake.catalog.find("media.merged") is None
    assert state_of(instance, "merged").committed is None


def test_a_wrong_column_in_ranges_is_refused_at_capture(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(
        ins={"playback": ips.incremental(ranges=["event_dat"])}, metadata=ips.append() | ips.table("media.ranged")
    )
    def ranged(playback: ips.IcdcView) -> DataFrame:
        return playback.changes

    lake.create_playback(events(range(4)))
    error = fails(lake, instance, "ranged", UnknownColumnError, ranged)
    assert "event_date" in str(error)


def test_a_recreated_source_is_not_mistaken_for_the_one_that_was_consumed(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback(events(range(6)))
    definitions = pipeline(lake.folder, lake.spark_folder)
    materialize(definitions, instance, "daily")
    lake.catalog.client.drop_table("media.playback")
    lake.catalog.client.create_table("media.playback", SCHEMA, partition_spec=BY_DATE)
    fails(lake, instance, "daily", SourceRecreatedError)
    rows = events(range(100, 103))
    lake.append(rows)
    fails(lake, instance, "daily", SourceRecreatedError)

    materialize(definitions, instance, "daily", tags={"dagster_ips/mode": "full"})
    assert lake.rows("media.daily") == expected_daily(rows)


def test_a_removal_that_the_write_mode_cannot_follow_fails_the_run_and_a_full_run_continues(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    rows = events(range(6))
    lake.create_playback(rows)
    definitions = pipeline(lake.folder, lake.spark_folder)
    materialize(definitions, instance, "daily")
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 3")
    fails(lake, instance, "daily", RemovedRowsError)

    materialize(definitions, instance, "daily", tags={"dagster_ips/mode": "full"})
    assert lake.rows("media.daily") == expected_daily([row for row in rows if row[0] != 3])


def test_a_source_rolled_back_behind_the_watermark_fails_the_run(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.create_playback(events(range(3)))
    first = lake.catalog.load("media.playback", asset="test").head_snapshot_id()
    lake.append(events(range(3, 6)))
    materialize(pipeline(lake.folder, lake.spark_folder), instance, "daily")
    lake.sql(f"CALL lake.system.rollback_to_snapshot('media.playback', {first})")
    assert "rolled back" in str(fails(lake, instance, "daily", SourceRolledBackError))


def test_a_target_that_someone_rolled_back_goes_on_from_what_it_contains_and_the_run_says_so(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback(events(range(3)))
    definitions = pipeline(lake.folder, lake.spark_folder)
    materialize(definitions, instance, "daily")
    first = lake.catalog.load("media.daily", asset="test").head_snapshot_id()
    lake.append(events(range(3, 6)))
    materialize(definitions, instance, "daily")
    lake.sql(f"CALL lake.system.rollback_to_snapshot('media.daily', {first})")
    lake.append(events(range(6, 9)))
    result = materialize(definitions, instance, "daily")
    (event,) = result.get_asset_materialization_events()
    said = str(event.materialization.metadata["summary"].value)
    assert "rolled the table back** from publication 2 to 1" in said
    assert lake.rows("media.daily") == expected_daily(events(range(9)))


def test_a_dropped_target_is_rebuilt(lake: Lake, instance: dg.DagsterInstance) -> None:
    rows = events(range(6))
    lake.create_playback(rows)
    definitions = pipeline(lake.folder, lake.spark_folder)
    materialize(definitions, instance, "daily")
    lake.sql("DROP TABLE lake.media.daily")
    materialize(definitions, instance, "daily")
    assert lake.rows("media.daily") == expected_daily(rows)


def test_a_frame_of_only_changed_rows_never_replaces_a_partition(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(
        ins={"playback": ips.incremental()},
        metadata=ips.overwrite_partitions() | ips.table("media.parts", partition_by=["event_date"]),
    )
    def parts(playback: ips.IcdcView) -> DataFrame:
        return playback.changes

    lake.create_playback(events(range(4)))
    assert "affected(event_date)" in str(fails(lake, instance, "parts", FragmentOverwriteError, parts))


def test_a_result_that_is_not_a_frame_is_refused(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.create_playback(events(range(4)))
    asset = incremental_asset("odd", ips.append(), lambda view: view.changes.count())
    assert "int" in str(fails(lake, instance, "odd", OutputTypeError, asset))
    asset = incremental_asset("odd", ips.append(), lambda view: view.changes.toPandas())
    assert "odd returned a pandas DataFrame" in str(fails(lake, instance, "odd", OutputTypeError, asset))


def test_an_error_in_the_asset_leaves_everything_as_it_was(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.create_playback(events(range(4)))
    asset = incremental_asset(
        "broken", ips.append(), lambda view: view.changes.withColumn("seconds", F.raise_error(F.lit("no")).cast("long"))
    )
    with pytest.raises(Exception, match="no"):
        materialize(pipeline(lake.folder, lake.spark_folder, asset), instance, "broken")
    assert state_of(instance, "broken").committed is None
    assert lake.catalog.find("media.broken") is None


def test_an_unreachable_catalog_is_reported_without_its_password(
    lake: Lake, instance: dg.DagsterInstance, caplog: pytest.LogCaptureFixture
) -> None:
    properties = {"type": "rest", "uri": "http://127.0.0.1:1", "credential": "reader:hunter2", "warehouse": "w"}
    manager = ips.IcdcIOManager(
        catalog=ips.IcebergCatalog(properties=properties),
        spark=ips.LocalSparkConnect(server_folder=str(lake.spark_folder)),
    )
    definitions = ips.with_incremental(
        dg.Definitions(
            assets=[ips.iceberg_asset("playback", table="media.playback"), daily], resources={"io_manager": manager}
        )
    )
    with pytest.raises(Exception) as raised:  # noqa: PT011  # Dagster wraps ours
        materialize(definitions, instance, "daily")
    assert isinstance(cause_of(raised), CatalogUnreachableError)
    everything = "".join(traceback.format_exception(raised.value)) + caplog.text + repr(manager)
    assert "hunter2" not in everything
    assert state_of(instance, "daily") == EdgeState(Edge("daily", "playback"))


def load(*assets: Any, manager_key: str = "io_manager") -> dg.Definitions:  # noqa: ANN401  # assets come in many kinds
    manager = ips.IcdcIOManager(catalog=ips.IcebergCatalog(folder=str(Path("nowhere"))), spark=ips.LocalSparkConnect())
    return ips.with_incremental(dg.Definitions(assets=list(assets), resources={manager_key: manager}))


PLAYBACK = ips.iceberg_asset("playback", table="media.playback")


def test_a_view_without_incremental_is_refused_at_load() -> None:
    @dg.asset(metadata=ips.append())
    def forgetful(playback: ips.IcdcView) -> DataFrame:
        return playback.changes

    with pytest.raises(DeclarationError, match="isn't declared incremental"):
        load(PLAYBACK, forgetful)


def test_two_parameters_for_one_asset_are_refused_at_load() -> None:
    one, other = (dg.AssetIn("playback", metadata=ips.incremental(ranges=r).metadata) for r in (["day"], ["event_id"]))

    @dg.asset(ins={"one": one, "other": other}, metadata=ips.append())
    def greedy(one: ips.IcdcView, other: ips.IcdcView) -> DataFrame:
        return one.added.union(other.added)

    with pytest.raises(DeclarationError, match=r"its parameter (one|other) gets nothing, because another parameter"):
        load(PLAYBACK, greedy)


def test_an_incremental_asset_without_a_write_mode_is_refused_at_load() -> None:
    @dg.asset(ins={"playback": ips.incremental()})
    def modeless(playback: ips.IcdcView) -> DataFrame:
        return playback.changes

    with pytest.raises(DeclarationError, match="write mode"):
        load(PLAYBACK, modeless)


def test_an_incremental_asset_that_returns_nothing_is_refused_at_load() -> None:
    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append())
    def silent(playback: ips.IcdcView) -> None:
        del playback

    with pytest.raises(DeclarationError, match="returns nothing"):
        load(PLAYBACK, silent)


def test_an_upstream_that_no_definition_describes_is_refused_at_load() -> None:
    with pytest.raises(DeclarationError, match="isn't in the definitions"):
        load(daily)


def test_an_upstream_in_a_module_that_is_loaded_without_its_specs_is_refused_with_how_to_load_them() -> None:
    module = ModuleType("a_module")
    vars(module).update(playback=PLAYBACK, daily=daily)
    with pytest.raises(DeclarationError, match="include_specs=True"):
        load(*dg.load_assets_from_modules([module]))
    load(*dg.load_assets_from_modules([module], include_specs=True))


def test_a_partitioned_consumer_is_refused_at_load_rather_than_read_wrongly() -> None:
    days = dg.DailyPartitionsDefinition(dt.datetime(2026, 1, 1, tzinfo=dt.UTC))

    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append(), partitions_def=days)
    def daily_parts(playback: ips.IcdcView) -> DataFrame:
        return playback.changes

    with pytest.raises(DeclarationError, match="partitioned"):
        load(PLAYBACK, daily_parts)


def test_definitions_without_an_icdc_io_manager_are_refused_at_load() -> None:
    with pytest.raises(DeclarationError, match="no IcdcIOManager"):
        ips.with_incremental(dg.Definitions(assets=[PLAYBACK, daily]))


def test_an_asset_written_by_another_io_manager_is_refused_at_load() -> None:
    with pytest.raises(DeclarationError, match="isn't an IcdcIOManager"):
        load(PLAYBACK, daily, manager_key="lake_io")


def test_an_asset_whose_upstream_is_read_by_another_io_manager_is_refused_when_definitions_load(tmp_path: Path) -> None:
    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append() | ips.table("media.own"), io_manager_key="own")
    def own(playback: ips.IcdcView) -> DataFrame:
        return playback.added

    catalog, spark = ips.IcebergCatalog(folder=str(tmp_path)), ips.LocalSparkConnect()
    managers = {name: ips.IcdcIOManager(catalog=catalog, spark=spark) for name in ("io_manager", "own")}
    playback = ips.iceberg_asset("playback", table="media.playback")
    with pytest.raises(DeclarationError, match="the same io_manager_key"):
        ips.with_incremental(dg.Definitions(assets=[playback, own], resources=managers))


@pytest.mark.parametrize("mode", [ips.append(), ips.merge(on=["id"]), ips.overwrite_partitions()])
@pytest.mark.parametrize("is_checked_at_load", [True, False])
def test_a_write_mode_for_changes_is_refused_without_an_incremental_input(
    mode: dict[str, Any], *, is_checked_at_load: bool
) -> None:
    """Such a run has no change to write: it would replace every row of a table that it was told to add to."""

    @dg.asset(metadata=mode | ips.table("media.landed"))
    def landed() -> DataFrame: ...

    def check() -> None:
        if is_checked_at_load:
            load(landed)
        else:
            declared = write_mode_of(mode, "landed")
            returned(object.__new__(DataFrame), declared, landed.key, Mode.FULL, is_consumer=False)

    with pytest.raises(DeclarationError, match="none of its inputs is incremental"):
        check()


def test_a_checkpoint_that_spark_connect_has_dropped_is_named(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.create_playback(events(range(2)))

    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append() | ips.table("media.checked"))
    def checked(playback: ips.IcdcView) -> DataFrame:
        return playback.added.localCheckpoint()

    with pytest.raises(Exception) as raised:  # noqa: PT011  # Dagster wraps ours
        materialize(pipeline(lake.folder, lake.spark_folder, checked), instance, "checked")
    assert isinstance(cause_of(raised), LostCheckpointError)


NOON = NestedField(2, "at", StructType(NestedField(3, "noon", TimeType())))
PLACE = NestedField(2, "_file", StringType())
ALIKE = NestedField(2, "ID", StringType())


@pytest.mark.parametrize(
    ("column", "is_incremental", "said"),
    mostly_slow(
        [
            (NOON, True, "its column at is of type time"),
            (PLACE, True, "its column _file has a name that Iceberg reserves"),
            (ALIKE, True, "its column ID differs from id only in case"),
            (NOON, False, "its column at is of type time"),
        ],
        quick=3,
    ),
)
def test_a_column_that_spark_cannot_read_is_named_even_if_it_is_not_used(
    lake: Lake, instance: dg.DagsterInstance, column: NestedField, *, is_incremental: bool, said: str
) -> None:
    lake.catalog.create_namespace("media")
    lake.catalog.client.create_table("media.some", Schema(NestedField(1, "id", LongType()), column))

    @dg.asset(ins={"some": ips.incremental()}, metadata=ips.append() | ips.table("media.changed"))
    def changed(some: ips.IcdcView) -> DataFrame:
        return some.added.select("id")

    @dg.asset(metadata=ips.table("media.changed"))
    def copied(some: DataFrame) -> DataFrame:
        return some.select("id")

    source = ips.iceberg_asset("some", table="media.some")
    asset = changed if is_incremental else copied
    with pytest.raises(Exception) as raised:  # noqa: PT011  # Dagster wraps ours
        materialize(pipeline(lake.folder, lake.spark_folder, source, asset), instance, asset.key.to_user_string())
    error = cause_of(raised)
    assert isinstance(error, UnreadableColumnError)
    assert said in str(error)
    assert not (is_incremental and lake.catalog.client.list_tables("ips"))
