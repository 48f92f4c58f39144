"""Plans a backfill: which stages and partitions follow, what they read and how long that takes. Changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

import dagster as dg

from dagster_ips._compat import knowing_partitions, new_backfill_id
from dagster_ips.core.ancestry import MAIN
from dagster_ips.core.backfill_plan import BackfillPlan, PlannedRead, PlannedStage, PlannedTable
from dagster_ips.core.change_set import DataFile
from dagster_ips.core.partition_keys import Slicing
from dagster_ips.core.run_seconds import seconds_of_run
from dagster_ips.errors import InstanceError
from dagster_ips.errors.remedies import full_run
from dagster_ips.exactly_once.capture.changed_keys import keys_there
from dagster_ips.exactly_once.capture.file_keys import FileKeys
from dagster_ips.exactly_once.capture.partition_captures import live_in_partitions
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.iceberg.change_reader import live_files
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage
from dagster_ips.orchestration.backfill.asset_lineage import AssetLineage
from dagster_ips.orchestration.backfill.code_changes import code_changes
from dagster_ips.orchestration.backfill.past_runs import past_runs
from dagster_ips.orchestration.declare.declarations import write_mode_of
from dagster_ips.orchestration.run.known_consumers import KnownConsumer

_NOT_ALL = (
    "only rows that really change are followed, so these numbers are upper limits as long as no earlier stage gets "
    "more rows"
)
_NONE_YET = "its reads of {}, which has no rows in these partitions yet"
_ANYWHERE = "which rows of {} change is unknown until it runs, so these numbers cover everything"


def planned(lineage: AssetLineage, asset: str, partitions: Sequence[str] | None, *, now_ms: int) -> BackfillPlan:
    """The plan for a backfill of ``partitions`` of ``asset``, or of all its partitions if None.

    Raises:
        UnknownConsumerError: no table of the asset is known.
        InstanceError: the asset can't be computed here, or doesn't have such partitions.
        IpsError: a table can't be read.
    """
    with knowing_partitions(lineage.instance):
        keys = _root_partitions(lineage, asset, partitions)
        planner = _Planner(lineage)
        stages = [planner.root(asset, keys)]
        stages += [planner.follower(known) for known in lineage.downstream(asset)]
        sources = sorted({read.upstream for read in stages[0].reads} - {stage.asset for stage in stages})
        return BackfillPlan(
            id=new_backfill_id(),
            made_at_ms=now_ms,
            stages=tuple(stages),
            tables=tuple(table_now(lineage, each) for each in (*[s.asset for s in stages], *sources)),
            not_started={s.asset: readers for s in stages if (readers := lineage.whole_readers(s.asset))},
        )


def table_now(lineage: AssetLineage, asset: str) -> PlannedTable:
    """The current state of an asset's table, and the version of the code that writes it."""
    known, metadata = lineage.table(asset), lineage.metadata(asset)
    newest = metadata.ancestry().newest_change if metadata else None
    code = None if known.is_outside else lineage.code_version(asset)
    return PlannedTable(
        asset, known.table, metadata.uuid if metadata else None, newest.snapshot_id if newest else None, code
    )


def files_of_keys(
    storage: Storage, metadata: TableMetadata | None, slicing: Slicing | None, keys: Collection[str] | None, ref: str
) -> list[DataFile]:
    """The files live at ``ref`` of a table that may hold rows with ``keys``; all if ``keys`` or ``slicing`` is None."""
    head = metadata.ancestry(ref).head if metadata else None
    if metadata is None or head is None:
        return []
    live = live_files(storage, metadata, head=head).changes.added
    if slicing is None or keys is None:
        return list(live)
    found = FileKeys(storage, metadata, slicing)
    return [file for file in live if slicing.upstream_keys.possible(found.of(file), keys)]


def partitions_with_rows(lineage: AssetLineage, asset: str) -> frozenset[str]:
    """The partitions of an asset that has inputs for which an input, or its own table, has rows now."""
    read = [(each.upstream, each.slicing, each.ref) for each in lineage.inputs(asset).values()]
    found = frozenset[str]()
    with knowing_partitions(lineage.instance):
        for name, slicing, ref in (*read, (asset, lineage.own_slicing(asset), MAIN)):
            table = lineage.metadata(name)
            if table is not None and slicing is not None:
                found |= slicing.made_of(keys_there(lineage.lake(name).storage, table, slicing, ref=ref))
    return found


def _root_partitions(lineage: AssetLineage, asset: str, partitions: Sequence[str] | None) -> tuple[str, ...] | None:
    known = lineage.table(asset)
    if known.is_outside or not lineage.node(asset).is_executable:
        problem = f"{asset} is written outside of Dagster, so no backfill computes it."
        raise InstanceError(problem=problem, remedy="Plan a backfill of an asset that reads it.")
    if others := lineage.node(asset).execution_set_asset_keys - {dg.AssetKey.from_user_string(asset)}:
        with_it = ", ".join(sorted(key.to_user_string() for key in others))
        problem = f"{asset} is computed in one step with {with_it}, and Dagster can't run the step for {asset} alone."
        remedy = f"To compute all of them, and then the later stages: {full_run(asset)}. Or declare can_subset=True."
        raise InstanceError(problem=problem, remedy=remedy)
    definition = lineage.partitions_def(asset)
    if definition is None:
        if partitions is not None:
            remedy = "Omit the partitions: the whole asset is computed."
            raise InstanceError(problem=f"{asset} has no partitions in Dagster.", remedy=remedy)
        return None
    there = definition.get_partition_keys(dynamic_partitions_store=lineage.instance)
    places = {key: place for place, key in enumerate(there)}
    chosen = there if partitions is None else list(dict.fromkeys(partitions))
    if unknown := [key for key in chosen if key not in places]:
        remedy = f"Its partitions are {there[0]} to {there[-1]}." if there else "It has none yet."
        raise InstanceError(problem=f"{asset} has no partition {', '.join(unknown[:5])}.", remedy=remedy)
    if not chosen:
        raise InstanceError(problem=f"{asset} has no partitions yet.", remedy="Add some, then plan.")
    return tuple(sorted(chosen, key=places.__getitem__))


@dataclass
class _Planner:
    """Plans stage after stage: the stages before a stage determine what will have changed for it."""

    lineage: AssetLineage
    stages: dict[str, PlannedStage] = field(default_factory=dict)

    def root(self, asset: str, keys: tuple[str, ...] | None) -> PlannedStage:
        """The stage that the backfill recomputes."""
        lineage, known = self.lineage, self.lineage.consumers.get(asset)
        reads, unknown = [], []
        for name, tracked in lineage.inputs(asset).items():
            source, storage = lineage.metadata(tracked.upstream), lineage.lake(tracked.upstream).storage
            if source is None:
                unknown.append(f"{tracked.table}, its input {name}, doesn't exist yet")
            elif keys is None:
                reads.append(_read(tracked, files_of_keys(storage, source, None, None, tracked.ref)))
            else:
                reads.append(_read(tracked, live_in_partitions(storage, source, tracked, keys).changes.added))
        if known is None:
            unknown.append(
                "its reads: it has no incremental inputs, and the tables that its function opens are unknown"
            )
        else:
            unknown += _lookups_text(lineage, asset, known)
        return self._timed(
            PlannedStage(
                asset,
                lineage.table(asset).table,
                tuple(read.upstream for read in reads),
                keys,
                tuple(reads),
                code_version=lineage.code_version(asset),
                unknown=tuple(unknown),
                code_changes=self._code_changes(asset, keys),
            )
        )

    def follower(self, known: KnownConsumer) -> PlannedStage:
        """A stage that follows automatically."""
        lineage, consumer = self.lineage, known.consumer
        inputs = lineage.inputs(consumer.name).values()
        followed = [each for each in inputs if each.upstream in self.stages and each.ref == MAIN]
        upstreams = tuple(each.upstream for each in followed)
        keys = self._partitions(followed) if consumer.is_partitioned else None
        reads = [self._change_of(each) for each in followed]
        unknown = [_NOT_ALL]
        unknown += [_NONE_YET.format(read.upstream) for read in reads if not read.files]
        unknown += _lookups_text(lineage, consumer.name, known)
        unknown += [_ANYWHERE.format(each) for each in upstreams if self.stages[each].partitions is None]
        unknown += [known.warning] if known.warning else []
        return self._timed(
            PlannedStage(
                consumer.name,
                consumer.table,
                upstreams,
                keys,
                tuple(read for read in reads if read.files),
                code_version=known.code_version,
                unknown=tuple(unknown),
                code_changes=self._code_changes(consumer.name, keys),
            )
        )

    def _code_changes(self, asset: str, keys: tuple[str, ...] | None) -> tuple[str, ...]:
        lineage = self.lineage
        write_mode = write_mode_of(lineage.node(asset).metadata, asset)
        return code_changes(lineage.metadata(asset), lineage.code_version(asset), write_mode, keys)

    def _partitions(self, followed: Collection[TrackedInput]) -> tuple[str, ...]:
        keys: set[str] = set()
        for tracked in followed:
            slicing, changed = tracked.known_slicing, self.stages[tracked.upstream].partitions
            if changed is None:
                source = self.lineage.metadata(tracked.upstream)
                storage = self.lineage.lake(tracked.upstream).storage
                changed = tuple(keys_there(storage, source, slicing)) if source else ()
            keys |= slicing.made_of(changed)
        return tuple(sorted(keys))

    def _change_of(self, tracked: TrackedInput) -> PlannedRead:
        """An upper limit of what changes in an upstream: all rows that its planned partitions have now."""
        source = self.lineage.metadata(tracked.upstream)
        slicing, keys = self.lineage.own_slicing(tracked.upstream), self.stages[tracked.upstream].partitions
        files = files_of_keys(self.lineage.lake(tracked.upstream).storage, source, slicing, keys, tracked.ref)
        return replace(_read(tracked, files), at_most=True)

    def _timed(self, stage: PlannedStage) -> PlannedStage:
        past, runs = past_runs(self.lineage.instance, stage.asset), self._runs(stage)
        seconds = seconds_of_run(stage.size_bytes // runs, past) if stage.reads else None
        untold = () if past else ("seconds: no past run has recorded them",)
        timed = replace(
            stage,
            seconds=None if seconds is None else round(seconds * runs, 1),
            past_runs=len(past),
            unknown=(*stage.unknown, *untold),
        )
        self.stages[stage.asset] = timed
        return timed

    def _runs(self, stage: PlannedStage) -> int:
        """How many runs compute the stage at least: partitions that aren't adjacent may need more."""
        policy = self.lineage.node(stage.asset).backfill_policy
        most = policy.max_partitions_per_run if policy else 1
        return max(1, ceil(len(stage.partitions or ()) / most)) if most else 1


def _read(tracked: TrackedInput, files: Sequence[DataFile]) -> PlannedRead:
    rows, size = sum(file.record_count for file in files), sum(file.file_size_bytes for file in files)
    return PlannedRead(tracked.upstream, tracked.table, len(files), rows, size)


def _lookups_text(lineage: AssetLineage, asset: str, known: KnownConsumer) -> list[str]:
    """A text on what an asset also reads as a whole, which isn't counted."""
    parents = {key.to_user_string() for key in lineage.node(asset).parent_keys}
    whole = sorted(parents - {each.upstream for each in known.consumer.inputs.values()})
    return [f"its reads of {', '.join(whole)}, which it reads as a whole (not counted)"] if whole else []
