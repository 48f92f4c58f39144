"""Among several code locations, the one that writes a table is decisive, in whatever order they are named."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

import dagster_ips as ips
from dagster_ips.orchestration.backfill.desk import BackfillDesk
from tests.backfill.three_stages import three_stages
from tests.support.lake_definitions import manager_on


def test_a_table_that_another_location_writes_is_not_outside(tmp_path: Path) -> None:
    manager = manager_on(tmp_path, tmp_path / "spark")
    elsewhere = dg.Definitions(assets=[ips.iceberg_asset("day", table="media.day")], resources={"io_manager": manager})
    here = three_stages(tmp_path, tmp_path / "spark", bug=False)
    with dg.DagsterInstance.ephemeral() as instance:
        for order in ([here, elsewhere], [elsewhere, here]):
            lineage = BackfillDesk.of(order, instance).lineage
            assert not lineage.table("day").is_outside
            assert lineage.table("playback").is_outside
