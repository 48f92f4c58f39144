"""Data versions, by which Dagster finds what is stale: the newest snapshot of a table that may have changed rows.

A run that publishes nothing leaves the version unchanged, and so does compaction. An input's version is the one that
was actually read. Dagster would take the version reported when the step began, but more may have been committed since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
from dagster import DagsterInstance

from dagster_ips._compat import set_input_data_version, set_input_event
from dagster_ips.core.ancestry import MAIN, Ancestry, Snapshot
from dagster_ips.errors import IpsError
from dagster_ips.exactly_once.publish.publisher import Publication
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import computed_in, is_of_same_attempt
from dagster_ips.iceberg.storage import Storage
from dagster_ips.orchestration.declare.declarations import DATA_VERSION_TAG, OUTSIDE, code_of, plain
from dagster_ips.orchestration.declare.partition_mappings import partition_expression
from dagster_ips.orchestration.run.runs import RunInputs
from dagster_ips.orchestration.watch.outside_changes import OutsideAsset, tell_of_changes

_INPUT_VERSION_TAG = "dagster/input_data_version"


@dataclass(frozen=True)
class TableRead:
    """What a step has read from a table: everything up to ``head``, or less if ``is_whole`` is false.

    ``storage`` holds the table's manifests.
    """

    source: TableMetadata
    head: Snapshot | None
    storage: Storage
    is_whole: bool = True


def record_versions(  # noqa: PLR0913  # independent parameters
    step: Any,  # noqa: ANN401  # Dagster's class for it isn't public
    asset: dg.AssetKey,
    captured: RunInputs,
    publication: Publication,
    *,
    storage: Storage,
    partitions: Iterable[str] = (),
) -> None:
    """Record in the materialization of ``asset``, or its ``partitions``, the versions of the upstreams and its own."""
    if not publication.superseded_by:  # Otherwise another run consumed the input.
        for view in captured.views.values():
            taken, capture = view.captured, view.captured.capture
            if capture.to_inclusive is not None and capture.to_inclusive.ref == MAIN:
                upstream = dg.AssetKey.from_user_string(capture.edge.upstream)
                is_whole = capture.bite is None or capture.bite.is_last
                record_input(step, upstream, TableRead(taken.source, taken.head, storage, is_whole))
    if step.has_data_version(asset):  # The user has set one.
        return
    version = _made(step.instance, asset, captured, publication, list(partitions))
    if version is not None:
        step.set_data_version(asset, dg.DataVersion(version))


def code_version(step: Any, asset: dg.AssetKey) -> str | None:  # noqa: ANN401  # as above
    """The version of the asset's code, as ``code_of`` gives it; None if the asset declares none."""
    node = step.job_def.asset_layer.get(asset)
    return code_of(node.code_version, node.metadata)


def keep_versions(step: Any, asset: dg.AssetKey) -> None:  # noqa: ANN401  # as above
    """Copy the versions from the previous materialization of ``asset``, which wasn't written."""
    tags = _newest_tags(step.instance, asset)
    for upstream in step.job_def.asset_layer.asset_graph.get(asset).parent_keys:
        if version := tags.get(f"{_INPUT_VERSION_TAG}/{upstream.to_user_string()}"):
            set_input_data_version(step, upstream, version)
    if (version := tags.get(DATA_VERSION_TAG)) and not step.has_data_version(asset):
        step.set_data_version(asset, dg.DataVersion(version))


def record_input(step: Any, upstream: dg.AssetKey, read: TableRead) -> None:  # noqa: ANN401  # as above
    """Record in the step's materializations which version of ``upstream`` they were made of.

    For a partitioned upstream, Dagster checks which partitions were reported after the step began. So changes of an
    outside table that the sensor hasn't reported yet are reported here, and everything reported up to the head that was
    read counts as consumed.
    """
    graph = step.job_def.asset_layer.asset_graph
    source, head = read.source, read.head
    if head is None or not graph.has(upstream):
        return
    is_outside = bool(plain(graph.get(upstream).metadata.get(OUTSIDE)))
    if (definition := graph.get(upstream).partitions_def) is not None:
        if is_outside and read.is_whole:
            expression = partition_expression(graph.get(upstream).metadata)
            _record_partitions(
                step, OutsideAsset(key=upstream, partitions_def=definition, partition_expression=expression), read
            )
        return
    version = _taken(source, head, None if is_outside else _reported(step.instance, upstream))
    if not read.is_whole:
        version = f"{head.snapshot_id} in part"
    if version is not None:
        set_input_data_version(step, upstream, version)


def _record_partitions(step: Any, asset: OutsideAsset, read: TableRead) -> None:  # noqa: ANN401  # as above
    assert read.head is not None  # noqa: S101  # record_input has checked it
    try:
        event = tell_of_changes(asset, read.source, read.head, read.storage, step.instance)
    except IpsError as error:  # The result is published and right; only the UI may show it as stale.
        step.log.warning("could not determine which partitions of %s changed: %s", asset.name, error)
        return
    if event is not None:
        set_input_event(step, asset.key, event)


def _taken(source: TableMetadata, head: Snapshot, reported: str | None) -> str | None:
    """The version of ``source`` at ``head``: the one that a run ``reported``, if that snapshot is part of its history.

    None if it is unknown: no snapshot with a change is retained, or the upstream's versions aren't snapshots.
    """
    ancestry = Ancestry.of(source.snapshots, head.snapshot_id)
    if reported is not None:
        if not reported.isdecimal() or int(reported) not in source.snapshots:
            return None
        if ancestry.find(int(reported)):
            return reported
    change = ancestry.newest_change
    return str(change.snapshot_id) if change else None


def input_version(instance: DagsterInstance, asset: dg.AssetKey, upstream: dg.AssetKey) -> str | None:
    """The version of ``upstream`` that the newest materialization of ``asset`` has read; None if it doesn't say."""
    return _newest_tags(instance, asset).get(f"{_INPUT_VERSION_TAG}/{upstream.to_user_string()}")


def _made(
    instance: DagsterInstance,
    asset: dg.AssetKey,
    captured: RunInputs,
    publication: Publication,
    partitions: Sequence[str],
) -> str | None:
    """The table's data version after a run: the previous one if no row changed and all partitions agree on it.

    If a run was killed after it had published, or Dagster's database was restored, that isn't the newest version.
    """
    changed = [snapshot for snapshot in publication.snapshots if not snapshot.keeps_rows]
    if not changed and not publication.superseded_by:
        had = {_reported(instance, asset, partition) for partition in partitions or (None,)}
        if len(had) == 1 and (version := had.pop()):
            found = publication.metadata
            if found is None or not _is_outdated(version, captured, found, partitions):
                return version
    head = publication.metadata.ancestry().newest_change if publication.metadata else None
    newest = changed[-1] if changed else head
    return str(newest.snapshot_id) if newest else None


def _is_outdated(version: str, captured: RunInputs, target: TableMetadata, partitions: Sequence[str]) -> bool:
    """Whether rows that the run has found to be published already changed after the snapshot that ``version`` names."""
    if not version.isdecimal():
        return False
    for mark in {capture.target.snapshot_id for capture in captured.captures if capture.target}:
        published = Ancestry.of(target.snapshots, mark)
        since = published.between(from_snapshot_id_exclusive=int(version), to_snapshot_id_inclusive=mark) or ()
        others = [each for each in since if _is_of_others(computed_in(each), partitions)]
        if not all(each.keeps_rows or any(is_of_same_attempt(each, other) for other in others) for each in since):
            return True
    return False


def _is_of_others(computed: Collection[str], partitions: Sequence[str]) -> bool:
    """Whether a run computed only other partitions than these."""
    return bool(computed) and "" not in computed and not set(computed) & set(partitions)


def _reported(instance: DagsterInstance, asset: dg.AssetKey, partition: str | None = None) -> str | None:
    """The data version of the newest materialization; None if there is none."""
    return _newest_tags(instance, asset, partition).get(DATA_VERSION_TAG)


def _newest_tags(instance: DagsterInstance, asset: dg.AssetKey, partition: str | None = None) -> Mapping[str, str]:
    wanted = dg.AssetRecordsFilter(asset_key=asset, asset_partitions=[partition] if partition else None)
    records = instance.fetch_materializations(wanted, limit=1).records
    event = records[0].asset_materialization if records else None
    return (event.tags or {}) if event else {}
