"""The cheaper refresh is the one that took earlier runs less time; an estimate decides only if no run tells."""

from __future__ import annotations

import dagster as dg
import pytest

from dagster_ips.orchestration.declare.maintained_rows import REFRESH
from dagster_ips.orchestration.declare.past_refreshes import CODE_VERSION_TAG, ROWS, SHARE, past_refreshes
from dagster_ips.orchestration.declare.run_numbers import PUBLISHED, WRITE_SECONDS
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
        (0.01, 1000, [FULL, keys(0.05, 12.0)], False),  # more rows took longer, which says nothing about fewer
        (0.3, 1000, [FULL, keys(0.4, 6.0)], False),  # more rows took no longer
        (0.5, 1000, [FULL, keys(0.4, 6.0)], True),
        (0.1, 3000, [FULL, keys(0.05, 12.0, rows=3000)], False),  # the whole table is three times as large by now
        (0.1, None, [FULL, keys(0.05, 12.0)], False),  # the size of the whole table is unknown
        (0.1, 1000, [keys(0.05, 12.0)], False),  # no full run is known
        (0.1, 1000, [FULL, PastRefresh(Strategy.COMBINE, 0.05, 1000, 12.0)], False),  # no run of this strategy is known
    ],
)
def test_seconds_of_earlier_runs_take_precedence_over_the_estimate(
    share: float, rows: int | None, past: list[PastRefresh], is_full: object
) -> None:
    assert (why_full_is_cheaper(Strategy.KEYS, share, rows, past) is not None) is is_full


def test_a_strategy_that_needs_keys_is_assumed_to_cost_what_keys_cost() -> None:
    assert why_full_is_cheaper(Strategy.COMBINE, 0.3) is None
    assert "the limit is 20%" in str(why_full_is_cheaper(Strategy.COMBINE, 0.3, share_of_keys=0.0))


def test_few_rows_with_many_keys_cost_more_unless_a_run_showed_otherwise() -> None:
    assert "at least 40% of the keys are affected" in str(why_full_is_cheaper(Strategy.KEYS, 0.01, share_of_keys=0.4))
    assert why_full_is_cheaper(Strategy.KEYS, 0.01, share_of_keys=0.09) is None
    assert why_full_is_cheaper(Strategy.KEYS, 0.01, 1000, [FULL, keys(0.02, 6.0)], share_of_keys=0.4) is None


def test_metadata_of_earlier_runs_is_read_and_incomplete_metadata_is_ignored() -> None:
    told = {REFRESH: "keys", SHARE: 0.25, ROWS: 40, WRITE_SECONDS: 1.5, PUBLISHED: "7"}
    unwritten = {name: value for name, value in told.items() if name != PUBLISHED} | {REFRESH: "full"}
    with dg.DagsterInstance.ephemeral() as instance:
        others = told | {REFRESH: "else"}, {REFRESH: "full"}, unwritten
        tags = {CODE_VERSION_TAG: "1"}
        for metadata in (told, *others, told | {REFRESH: "full", SHARE: 1}):
            instance.report_runless_asset_event(dg.AssetMaterialization("x", metadata=metadata, tags=tags))
        instance.report_runless_asset_event(dg.AssetMaterialization("y", metadata=told, tags=tags))
        for others_tags in ({}, {CODE_VERSION_TAG: "0"}):  # an earlier query's
            instance.report_runless_asset_event(dg.AssetMaterialization("x", metadata=told, tags=others_tags))
        found = past_refreshes(instance, dg.AssetKey("x"), "1")
    assert found == [PastRefresh(Strategy.FULL, 1, 40, 1.5), PastRefresh(Strategy.KEYS, 0.25, 40, 1.5)]
