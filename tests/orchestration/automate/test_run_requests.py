"""Runs that other stages wait for are requested before runs that nothing follows."""

from collections.abc import Iterator

import dagster as dg

from dagster_ips.orchestration.automate.run_requests import in_order_of_stages_below

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
