"""A partition that fails holds up no other one, however many are in its run."""

from __future__ import annotations

import dagster as dg
import pytest

from dagster_ips._compat import RANGE_END_TAG, RANGE_START_TAG
from dagster_ips.core.retry import RetryState
from dagster_ips.orchestration.automate.run_requests import in_few_runs

DAYS = dg.DailyPartitionsDefinition("2020-01-01", end_date="2026-01-01")


@dg.asset(partitions_def=DAYS, backfill_policy=dg.BackfillPolicy.single_run())
def daily() -> None: ...


@pytest.mark.parametrize("count", [5, 200, 365, 2000])
@pytest.mark.parametrize("every", [1, 2, 100])
def test_only_the_partitions_that_fail_alone_are_given_up(count: int, every: int) -> None:
    graph = dg.Definitions(assets=[daily]).resolve_asset_graph()
    pending = DAYS.get_partition_keys()[:count]
    bad = set(pending[::every])
    states: dict[str, RetryState] = {}
    for tick in range(20):
        failed = {key: state.run_id for key, state in states.items()}
        waiting = [key for key in pending if not states.get(key, RetryState()).is_blocked(seconds_since_failure=10**6)]
        requests = [dg.RunRequest(asset_selection=[daily.key], partition_key=key) for key in waiting]
        for number, run in enumerate(in_few_runs(requests, graph, {daily.key: failed})):
            first, last = run.tags.get(RANGE_START_TAG), run.tags.get(RANGE_END_TAG)
            keys = DAYS.get_partition_keys_in_range(dg.PartitionKeyRange(first, last)) if first and last else None
            for key in keys or [run.partition_key or ""]:
                if bad.isdisjoint(keys or [key]):
                    pending.remove(key)
                    states.pop(key, None)
                else:
                    known = states.get(key, RetryState())
                    states[key] = known.after_failure("same", f"{tick} {number}", is_alone=first == last)
    assert set(pending) == bad
    assert all(states[key].is_blocked(seconds_since_failure=10**9) for key in bad)
