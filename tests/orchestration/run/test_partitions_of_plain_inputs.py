"""An input without ``incremental()`` has the rows of the run's partitions, however the run names them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips._compat import RANGE_END_TAG, RANGE_START_TAG
from dagster_ips.errors import DeclarationError
from dagster_ips.exactly_once.inspect.claims import ClaimedPart
from dagster_ips.orchestration.declare.consumers import consumers_of
from dagster_ips.orchestration.run import io_manager, recompute_asset
from dagster_ips.orchestration.run.recompute_asset import Asset, Surroundings
from dagster_ips.orchestration.run.step_try import StepTries, StepTry
from tests.support.lake import events
from tests.support.partitioned import DAYS, key
from tests.support.without_spark import Tables, manager_of


class Frame:
    """Stands for every row of a table, and remembers by which condition some of them were taken."""

    def __init__(self, condition: str | None = None) -> None:
        self.condition = condition

    def where(self, condition: object) -> Frame:
        return Frame(str(condition))


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tables:
    tables = Tables(tmp_path / "lake")
    tables.create("playback")
    tables.append([*events(range(3)), *events(range(10, 13), day=1)])
    monkeypatch.setattr(io_manager, "current_rows", lambda *_, **__: Frame())
    monkeypatch.setattr(io_manager.IcdcIOManager, "_session", lambda *_: None)
    return tables


def condition_of(
    tables: Tables,
    instance: dg.DagsterInstance,
    days: dg.PartitionsDefinition[str] | None,
    mapping: dg.PartitionMapping | None = None,
    **run: Any,  # noqa: ANN401  # which partitions it has
) -> str | None:
    """By which condition a run's input was taken from the table; None for every row."""
    found: list[str | None] = []

    @dg.asset(partitions_def=days, ins={"playback": dg.AssetIn(partition_mapping=mapping)})
    def report(playback: Any) -> None:  # noqa: ANN401  # a frame
        found.append(playback.condition)

    playback = ips.iceberg_asset(
        "playback", table="media.playback", partitions_def=DAYS, metadata={"partition_expr": "event_date"}
    )
    job = dg.Definitions(
        assets=[playback, report], resources={"io_manager": manager_of(tables.folder)}
    ).resolve_implicit_global_asset_job_def()
    job.execute_in_process(instance=instance, asset_selection=[dg.AssetKey("report")], **run)
    return found[0]


@pytest.mark.parametrize(
    "run",
    [{"partition_key": key(0)}, {"tags": {RANGE_START_TAG: key(0), RANGE_END_TAG: key(0)}}],
    ids=["of one partition", "of a range"],
)
def test_a_run_reads_only_the_rows_that_its_partitions_depend_on(
    tables: Tables, instance: dg.DagsterInstance, run: Mapping[str, Any]
) -> None:
    condition = condition_of(tables, instance, DAYS, **run)
    assert condition is not None
    assert key(0) in condition


@pytest.mark.parametrize("mapping", [None, dg.AllPartitionMapping()])
def test_an_asset_without_partitions_reads_every_row(
    tables: Tables, instance: dg.DagsterInstance, mapping: dg.PartitionMapping | None
) -> None:
    assert condition_of(tables, instance, None, mapping) is None


def test_an_asset_without_partitions_reads_only_the_partitions_that_its_mapping_names(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    condition = condition_of(tables, instance, None, dg.SpecificPartitionsPartitionMapping([key(1)]))
    assert condition is not None
    assert key(1) in condition


def test_a_run_knows_in_which_rows_of_a_table_it_looked_up(
    tables: Tables, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last partition becomes another one as time passes, without a change to the table."""
    tries, of = list[StepTry](), StepTries.of
    monkeypatch.setattr(StepTries, "of", lambda self, step: tries.append(of(self, step)) or tries[-1])
    read = [
        condition_of(tables, instance, None, mapping)
        for mapping in (None, *(dg.SpecificPartitionsPartitionMapping([key(day)]) for day in (0, 1)))
    ]
    assert [each.looked_up["lake.media.playback"].rows for each in tries] == read
    assert len(set(read)) == 3


@pytest.mark.parametrize("mapping", [None, dg.SpecificPartitionsPartitionMapping([key(1)]), dg.LastPartitionMapping()])
def test_a_proof_of_an_asset_without_partitions_reads_the_rows_that_a_run_reads(
    tables: Tables, instance: dg.DagsterInstance, mapping: dg.PartitionMapping | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recompute_asset, "current_rows", lambda *_, **__: Frame())
    plays, playback = (
        ips.iceberg_asset(name, table="media.playback", partitions_def=DAYS, metadata={"partition_expr": "event_date"})
        for name in ("plays", "playback")
    )

    @dg.asset(
        ins={"plays": ips.incremental(), "playback": dg.AssetIn(partition_mapping=mapping)}, metadata=ips.append()
    )
    def report(plays: ips.IcdcView, playback: Any) -> object:  # noqa: ANN401  # a frame
        return plays.added.join(playback)

    manager = manager_of(tables.folder)
    definitions = dg.Definitions(assets=[plays, playback, report], resources={"io_manager": manager})
    metadata = {each.key: each.metadata for each in (plays, playback, *report.specs)}
    (consumer,) = consumers_of(report, metadata, "media")
    around = Surroundings(definitions.resolve_asset_graph(), instance, None, tables.catalog)
    asset = Asset(report, consumer, "io_manager")
    frame: Any
    frame, _ = recompute_asset._lookup(asset, playback.key, ClaimedPart(()), (Any, manager), around)
    assert frame.condition == condition_of(tables, instance, None, mapping)


def test_an_incremental_input_cannot_be_mapped_to_an_asset_without_partitions(tables: Tables) -> None:
    @dg.asset(ins={"playback": ips.incremental(partition_mapping=dg.LastPartitionMapping())}, metadata=ips.append())
    def daily(playback: ips.IcdcView) -> object:
        return playback.added

    manager = manager_of(tables.folder)
    playback = ips.iceberg_asset(
        "playback", table="media.playback", partitions_def=DAYS, metadata={"partition_expr": "event_date"}
    )
    with pytest.raises(DeclarationError, match="isn't partitioned"):
        ips.with_incremental(dg.Definitions(assets=[playback, daily], resources={"io_manager": manager}))


def test_a_table_loaded_outside_of_runs_has_the_rows_of_the_partitions_asked_for(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    @dg.asset(partitions_def=DAYS, metadata=ips.table("media.playback") | {"partition_expr": "event_date"})
    def playback() -> None: ...

    made = dg.Definitions(assets=[playback], resources={"io_manager": manager_of(tables.folder)})
    with made.get_asset_value_loader(instance=instance) as loader:
        assert loader.load_asset_value("playback").condition is None
        one = loader.load_asset_value("playback", partition_key=key(1)).condition
        two = loader.load_asset_value("playback", partition_key_range=dg.PartitionKeyRange(key(0), key(1))).condition
    assert (key(0) in one, key(1) in one) == (False, True)
    assert (key(0) in two, key(1) in two) == (True, False), "a range is one condition, up to the day after"
