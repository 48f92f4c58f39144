"""Which runs are requested: adjacent partitions in one run, and first the runs that most assets wait for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any

import dagster as dg
from dagster import AssetKey, BackfillPolicy, RunRequest

from dagster_ips._compat import RANGE_END_TAG, RANGE_START_TAG

_PARTS = 4
"""Into how many runs a failed run is split.

Two would take long to isolate the failing partition; more would be many failed runs if all partitions fail.
"""


def in_few_runs(
    requests: Iterable[RunRequest],
    graph: Any,  # noqa: ANN401  # Dagster's asset graph has no public type
    failed: Mapping[AssetKey, Mapping[str, str]] = MappingProxyType({}),
) -> list[RunRequest]:
    """``requests``, with those for single partitions of the same assets joined to ranges by their backfill policy.

    Assets without a policy, or with different policies, keep one run per partition, as in Dagster. ``failed`` has the
    ids of failed runs by asset and partition: partitions that failed in the same run are retried in four parts.
    """
    joined: list[RunRequest] = []
    alike: dict[tuple[tuple[AssetKey, ...], tuple[str | None, ...]], dict[str, RunRequest]] = {}
    for request in requests:
        keys = tuple(sorted(request.asset_selection or ()))
        if request.partition_key is None or _policy(keys, graph) is None:
            joined.append(request)
        else:
            runs = tuple(failed.get(key, {}).get(request.partition_key) for key in keys)
            alike.setdefault((keys, runs), {})[request.partition_key] = request
    for (keys, runs), by_partition in alike.items():
        policy = _policy(keys, graph)
        most = policy.max_partitions_per_run if policy else 1
        if any(runs):
            most = min(most or len(by_partition), -(-len(by_partition) // _PARTS))
        for first, last in _ranges(graph.get(keys[0]).partitions_def, list(by_partition), most):
            joined.append(by_partition[first] if first == last else _of_range(by_partition[first], first, last))
    return joined


def in_order_of_stages_below(requests: Iterable[RunRequest], graph: Any) -> list[RunRequest]:  # noqa: ANN401  # as above
    """``requests``, those with the most assets downstream first, so that they don't wait in a queue behind others."""

    def below(request: RunRequest) -> int:
        selected = dg.AssetSelection.assets(*(request.asset_selection or ()))
        return len((selected.downstream() - selected).resolve(graph))

    return sorted(requests, key=below, reverse=True)


def _ranges(
    partitions_def: dg.PartitionsDefinition[str], partitions: list[str], most: int | None
) -> Iterator[tuple[str, str]]:
    subset = partitions_def.subset_with_partition_keys(partitions)
    within = [
        list(partitions_def.get_partition_keys_in_range(each))
        for each in subset.get_partition_key_ranges(partitions_def)
    ]
    # When clocks are set back, Dagster 1.13 confuses the two hours that show the same time.
    if sorted(chain.from_iterable(within)) != sorted(partitions):
        within = [[key] for key in partitions]
    for keys in within:
        size = most or len(keys)
        for start in range(0, len(keys), size):
            chunk = keys[start : start + size]
            yield chunk[0], chunk[-1]


def _of_range(request: RunRequest, first: str, last: str) -> RunRequest:
    tags = {key: value for key, value in request.tags.items() if not key.startswith("dagster/partition")}
    return RunRequest(
        asset_selection=request.asset_selection,
        asset_check_keys=request.asset_check_keys,
        tags=tags | {RANGE_START_TAG: first, RANGE_END_TAG: last},
    )


def _policy(keys: tuple[AssetKey, ...], graph: Any) -> BackfillPolicy | None:  # noqa: ANN401  # as above
    policies = {graph.get(key).backfill_policy for key in keys}
    return policies.pop() if len(policies) == 1 else None
