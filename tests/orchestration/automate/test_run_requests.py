"""Which partitions a run has, and which run is requested first."""

from collections.abc import Iterator
from itertools import chain, combinations

import dagster as dg
import pytest

from dagster_ips._compat import RANGE_END_TAG, RANGE_START_TAG
from dagster_ips.orchestration.automate.run_requests import in_few_runs, in_order_of_stages_below

HOURS = dg.HourlyPartitionsDefinition("2025-10-26-00:00", end_date="2025-10-26-06:00", timezone="Europe/Berlin")
KEYS = list(HOURS.get_partition_keys())
UPSTREAMS = {"raw": [], "report": ["raw"], "daily": ["raw"], "weekly": ["daily"], "yearly": ["weekly"]}


def assets() -> Iterator[dg.AssetsDefinition]:
    for name, upstreams in UPSTREAMS.items():

        @dg.asset(name=name, deps=upstreams)
        def made() -> None:
            pass

        yield made


def test_the_run_with_most_stages_below_it_is_requested_first() -> None:
    graph = dg.Definitions(assets=list(assets())).resolve_asset_graph()
    requests = [dg.RunRequest(asset_selection=[dg.AssetKey(name)]) for name in ("report", "yearly", "weekly", "daily")]
    both = dg.RunRequest(asset_selection=[dg.AssetKey("report"), dg.AssetKey("weekly")])
    ordered = in_order_of_stages_below([both, *requests], graph)
    assert [request.asset_selection[-1].to_user_string() for request in ordered] == [
        "daily",
        "weekly",
        "weekly",
        "report",
        "yearly",
    ]
    assert ordered[1] is both


@pytest.mark.parametrize("policy", [dg.BackfillPolicy.single_run(), dg.BackfillPolicy.multi_run(1)])
def test_exactly_the_pending_hours_are_requested_also_when_clocks_are_set_back(policy: dg.BackfillPolicy) -> None:
    @dg.asset(partitions_def=HOURS, backfill_policy=policy)
    def hourly() -> None: ...

    graph = dg.Definitions(assets=[hourly]).resolve_asset_graph()
    for pending in chain.from_iterable(combinations(KEYS, count) for count in range(1, len(KEYS) + 1)):
        requests = [dg.RunRequest(asset_selection=[hourly.key], partition_key=key) for key in pending]
        assert sorted(chain.from_iterable(map(_keys, in_few_runs(requests, graph)))) == sorted(pending)


def _keys(request: dg.RunRequest) -> list[str]:
    """The partitions of a request for hours of that day."""
    first = request.partition_key or request.tags[RANGE_START_TAG]
    last = request.partition_key or request.tags[RANGE_END_TAG]
    return KEYS[KEYS.index(first) : KEYS.index(last) + 1]
