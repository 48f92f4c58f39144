"""A tick asks catalog and storage for what is new, and not anew for each asset."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.storage import Storage
from tests.support.lake import FIRST_DAY, events
from tests.support.without_spark import Tables, manager_of

DAY = dt.timedelta(days=1)


def _stage(number: int, upstream: str, **more: Any) -> dg.AssetsDefinition:  # noqa: ANN401  # arguments of an asset
    metadata = ips.append() | ips.table(f"media.stage_{number}")
    metadata |= {"partition_expr": "event_date"} if "partitions_def" in more else {}

    @dg.asset(name=f"stage_{number}", ins={"rows": ips.incremental(upstream)}, metadata=metadata, **more)
    def stage(rows: ips.IcdcView) -> object:
        return rows.added

    return stage


def _tick(tables: Tables, stages: Sequence[dg.AssetsDefinition], instance: dg.DagsterInstance) -> None:
    manager = manager_of(tables.folder)
    playback = ips.iceberg_asset("playback", table="media.playback", valid_through="event_date")
    defs = ips.with_incremental(dg.Definitions([playback, *stages], resources={"io_manager": manager}))
    dg.evaluate_automation_conditions(defs, instance)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    tables = Tables(tmp_path)
    tables.create("playback")
    tables.append(events(range(3)))
    for number in range(20):
        tables.create(f"stage_{number}")
    return tables


def test_up_to_when_each_stage_is_complete_takes_a_few_tables_and_not_all(
    tables: Tables, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    original = LakeCatalog.metadata_locations

    def asking(self: LakeCatalog, names: Sequence[str]) -> dict[str, str]:
        asked.extend(names)
        return original(self, names)

    monkeypatch.setattr(LakeCatalog, "metadata_locations", asking)
    upstreams = ["playback", *(f"stage_{number}" for number in range(19))]
    stages = [
        _stage(number, upstream, automation_condition=ips.valid_through(upstream, every=DAY) & ips.pending())
        for number, upstream in enumerate(upstreams)
    ]
    _tick(tables, stages, instance)
    assert len(asked) <= 4 * len(stages)


def test_a_change_is_read_once_for_all_partitioned_assets_that_are_made_of_it(
    tables: Tables, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = Storage._content

    def reading(self: Storage, location: str, table: str) -> bytes:
        read.append(location)
        return original(self, location, table)

    monkeypatch.setattr(Storage, "_content", reading)
    days = dg.DailyPartitionsDefinition(start_date=str(FIRST_DAY))
    _tick(tables, [_stage(number, "playback", partitions_def=days) for number in range(4)], instance)
    manifests = [location for location in read if location.endswith(".avro")]
    assert len(manifests) == len(set(manifests)) == 2  # a manifest list and a manifest
