"""What can't work is refused as it is declared, with what to write instead."""

from __future__ import annotations

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.errors import DeclarationError
from dagster_ips.orchestration.declare.declarations import table_of


def test_a_tables_name_is_the_same_however_it_is_declared() -> None:
    declared = ips.table("`media`.`my.table`")
    assert table_of(dg.AssetKey("daily"), declared, "default") == "media.`my.table`"
    assert table_of(dg.AssetKey(["media", "my.table"]), {}, "default") == "media.`my.table`"
    assert table_of(dg.AssetKey("daily"), {}, "`media`") == "media.daily"


@pytest.mark.parametrize("name", ["media.`my.table", "media..daily", "daily"])
def test_a_tables_name_that_is_none_is_refused_as_it_is_declared(name: str) -> None:
    with pytest.raises(DeclarationError, match=r"^table\(\): its table.* (Quote a part|Add one)"):
        ips.table(name)
    with pytest.raises(DeclarationError, match=r"^playback: its table.* (Quote a part|Add one)"):
        ips.iceberg_asset("playback", table=name)
