"""What costs less is what earlier runs took less for, and an estimate only where none of them says."""

from __future__ import annotations

import dagster as dg
import pytest

from dagster_ips.orchestration.declare.past_refreshes import REFRESH, ROWS, SHARE, WRITE_SECONDS, past_refreshes
from dagster_ips.query.maintenance_plan import Strategy
from dagster_ips.query.refresh_choice import PastRefresh, why_full_is_cheaper

FULL = PastRefresh(Strategy.FULL, 1.0, 1000, 10.0)


def keys(share: float, seconds: float, rows: int = 1000) -> PastRefresh:
    return PastRefresh(Strategy.KEYS, share, rows, seconds)


@pytest.mark.parametrize(
    ("share", "rows", "past", "is_full"),
    [
        (0.1, 1000, [], False),  # by the estimate
        (0.3, 1000, [], True),
        (0.3, 1000, [FULL], True),
        (0.1, 1000, [FULL, keys(0.05, 12.0)], True),  # fewer rows took longer than everything
        (0.1, 1000, [FULL, keys(0.05, 12.0), keys(0.04, 3.0)], False),  # but not each time
        (0.01, 1000, [FULL, keys(0.05, 12.0)], False),  # more rows did, which says nothing of fewer
        (0.3, 1000, [FULL, keys(0.4, 6.0)], False),  # more rows took no longer
        (0.5, 1000, [FULL, keys(0.4, 6.0)], True),
        (0.1, 3000, [FULL, keys(0.05, 12.0, rows=3000)], False),  # everything is three times as much by now
        (0.1, None, [FULL, keys(0.05, 12.0)], False),  # how much everything is isn't known
        (0.1, 1000, [keys(0.05, 12.0)], False),  # nothing is known of everything
        (0.1, 1000, [FULL, PastRefresh(Strategy.COMBINE, 0.05, 1000, 12.0)], False),  # nor of this strategy
    ],
)
def test_seconds_of_earlier_runs_go_before_the_estimate(
    share: float, rows: int | None, past: list[PastRefresh], is_full: object
) -> None:
    assert (why_full_is_cheaper(Strategy.KEYS, share, rows, past) is not None) is is_full


def test_what_earlier_runs_said_is_read_and_what_they_left_out_is_no_history() -> None:
    told = {REFRESH: "keys", SHARE: 0.25, ROWS: 40, WRITE_SECONDS: 1.5}
    with dg.DagsterInstance.ephemeral() as instance:
        for metadata in (told, told | {REFRESH: "else"}, {REFRESH: "full"}, told | {REFRESH: "full", SHARE: 1}):
            instance.report_runless_asset_event(dg.AssetMaterialization("x", metadata=metadata))
        instance.report_runless_asset_event(dg.AssetMaterialization("y", metadata=told))
        found = past_refreshes(instance, dg.AssetKey("x"))
    assert found == [PastRefresh(Strategy.FULL, 1, 40, 1.5), PastRefresh(Strategy.KEYS, 0.25, 40, 1.5)]
