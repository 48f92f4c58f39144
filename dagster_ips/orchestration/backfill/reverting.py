"""Reverts a backfill: a new commit restores the root's rows, and the later stages follow it automatically."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import dagster as dg

from dagster_ips._compat import knowing_partitions
from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.backfill_plan import ConsumedBefore, LaunchedBackfill, PlannedStage
from dagster_ips.core.capture import Mode
from dagster_ips.core.cascade import Cascade
from dagster_ips.core.division import without_losses
from dagster_ips.core.edge import Edge
from dagster_ips.core.file_set import Bite
from dagster_ips.core.interval import Interval
from dagster_ips.core.ownership import ATTEMPT, ForeignWrites, told, writer_of
from dagster_ips.core.partition_keys import Slicing
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import BackfillError, RevertError
from dagster_ips.exactly_once.capture.file_keys import FileKeys
from dagster_ips.exactly_once.capture.pending_partitions import PartitionWatch
from dagster_ips.exactly_once.capture.tracked_input import files_in, interval_of, is_readable
from dagster_ips.exactly_once.publish.publisher import Publication, Publisher
from dagster_ips.exactly_once.publish.restorer import MadeOf, Restoration, Restorer, require_same_columns
from dagster_ips.iceberg import cascade_stamps
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import (
    REVERTED,
    has_attempt,
    owner_properties,
    stamped_partitions,
    target_histories,
)
from dagster_ips.orchestration.backfill.asset_lineage import AssetLineage
from dagster_ips.orchestration.backfill.differing import before_snapshot, rows_of_stage
from dagster_ips.orchestration.run.known_consumers import KnownConsumer
from dagster_ips.orchestration.watch.run_at_work import UNFINISHED, run_at_work


@dataclass(frozen=True, slots=True)
class RevertPlan:
    """What reverting a backfill does to its root's table.

    ``restored`` are the partitions whose rows are restored (``""`` without partitions). ``new`` are partitions that the
    backfill computed first, so there is nothing to restore. ``changed`` are partitions with changes by others that a
    revert would lose or hide, each with what happened. ``already`` are already reverted. ``later_runs`` counts the
    later commits of the asset's own runs; their input is consumed again. ``head`` is the table's snapshot by which all
    of that was found.
    """

    restored: tuple[str, ...]
    new: tuple[str, ...]
    changed: Mapping[str, str]
    already: tuple[str, ...]
    later_runs: int
    head: int | None


@dataclass(frozen=True, slots=True)
class Reverted:
    """What reverts of a backfill have restored: ``parts``, as in ``RevertPlan``, the last of them in ``snapshot``.

    ``is_all`` says that these are all planned ones.
    """

    snapshot: Snapshot
    parts: tuple[str, ...]
    is_all: bool


@dataclass(frozen=True)
class BackfillReverter:
    """Reverts a backfill that was launched."""

    lineage: AssetLineage
    backfill: LaunchedBackfill

    def plan(self, partitions: Collection[str] | None) -> RevertPlan:
        """What a revert would do to ``partitions``, or to all that the backfill computed; changes nothing.

        Raises:
            BackfillError: there is no previous state to restore.
            RevertError: the table lost columns, or the changes to consume again can no longer be read.
            IpsError: a table can't be read.
        """
        with knowing_partitions(self.lineage.instance):
            planned = self._planned(partitions)
            if planned.restored:
                self._restoration(planned.restored)
            return planned

    def reverted(self) -> Reverted | None:
        """What has been reverted so far; None if nothing has, or the snapshots that say so have expired.

        Raises:
            IpsError: the root's table can't be read.
        """
        with knowing_partitions(self.lineage.instance):
            target = self.lineage.metadata(self._root.asset)
            history = target.ancestry().snapshots if target else ()
            found = [each for each in history if each.summary.get(REVERTED) == self.backfill.plan.id]
            if target is None or not found:
                return None
            by_commit = (self._commit(each).modes or self._partitions_of(each, target) for each in found)
            restored = set[str]().union(*by_commit)
            parts = tuple(part for part in self._root.parts if part in restored)
            return Reverted(found[0], parts, is_all=parts == self._root.parts)

    def revert(
        self, partitions: Collection[str] | None, *, leave_out_changed: bool, drop_staged: Callable[[], object]
    ) -> tuple[RevertPlan, Publication]:
        """Restore the rows by one commit, after which everything consumed since is consumed again.

        ``drop_staged`` drops what isn't published yet. It is called once nothing refuses the revert.

        Raises:
            BackfillError: a run of the root isn't finished, or there is no previous state to restore.
            RevertError: changes by others would be lost, or the changes to consume again can no longer be read.
            IpsError: a table can't be read or written.
        """
        with knowing_partitions(self.lineage.instance):
            restorer = Restorer(self._publisher())
            restorer.settle(self.lineage.metadata(self._root.asset), self._edges(self._root.parts))
            self._require_idle()
            planned = self._planned(partitions)
            self._require_nothing_lost(planned, leave_out_changed=leave_out_changed)
            wanted = self._restoration(planned.restored, head=planned.head) if planned.restored else None
            drop_staged()
            published = restorer.restore(wanted) if wanted else Publication(None)
            # What a revert that was killed may not have done for what it restored is done as well.
            self._remember_what_is_pending()
            self._report([*planned.already, *planned.restored])
            return planned, published

    def _require_nothing_lost(self, planned: RevertPlan, *, leave_out_changed: bool) -> None:
        if planned.changed and not leave_out_changed:
            said = tuple(f"{part or 'its rows'}: {what}" for part, what in planned.changed.items())
            raise self._refused(
                said, "Name the partitions to revert with --partition, or leave these out with --leave-out-changed."
            )

    def _remember_what_is_pending(self) -> None:
        """Store that the changes are to be consumed again, as a sensor would: the stamp that says so expires."""
        known = self._consumer
        if known is None or not known.consumer.is_partitioned:
            return
        lake = self.lineage.lake(self._root.asset)
        watch = PartitionWatch(lake.storage, self.lineage.store, known.consumer.name, lake.find(self._root.table))
        for tracked in self.lineage.inputs(self._root.asset).values():
            watch.pending(tracked, lake.load(tracked.table, asset=known.consumer.name))

    @property
    def _root(self) -> PlannedStage:
        return self.backfill.plan.root

    @property
    def _consumer(self) -> KnownConsumer | None:
        return self.lineage.consumers.get(self._root.asset)

    def _lines(self) -> list[Edge]:
        known = self._consumer
        return known.consumer.edges if known else []

    def _edges(self, parts: Collection[str]) -> list[Edge]:
        return [line.of(part) if part else line for line in self._lines() for part in parts]

    def _slicing(self) -> Slicing | None:
        is_partitioned = self.backfill.plan.root.partitions is not None
        return self.lineage.own_slicing(self._root.asset) if is_partitioned else None

    def _target(self) -> TableMetadata:
        return self.lineage.lake(self._root.asset).load(self._root.table, asset=self._root.asset)

    def _before(self, target: TableMetadata) -> int:
        found = before_snapshot(self.backfill, self._root, target)
        if found is None:
            problem = f"{self._root.table} had no rows before it, so there are none to restore."
            raise BackfillError(backfill=self.backfill.plan.id, problem=problem, remedy="Drop the table to start over.")
        return found

    def _planned(self, partitions: Collection[str] | None) -> RevertPlan:
        target = self._target()
        before = self._before(target)
        since = self._since(target, before)
        named = set(self._root.parts if partitions is None else partitions)
        wanted = [part for part in self._root.parts if part in named]
        if unknown := sorted(named.difference(wanted)):
            problem = f"it didn't compute {', '.join(unknown[:5])}."
            remedy = "Name partitions that are in its plan."
            raise BackfillError(backfill=self.backfill.plan.id, problem=problem, remedy=remedy)
        undone = self._undone(wanted, since, target, before)
        decisive = [(each, self._computed(each, target)) for each in since if each.is_of_backfill or each.is_revert]
        last = {part: _last(part, decisive, undone[part]) for part in wanted}
        touched = [part for part, what in last.items() if what == _BACKFILL]
        known = self._consumed(touched, target) if self._lines() else {}
        new = dict.fromkeys(p for p in touched if (edges := self._edges([p])) and known.keys().isdisjoint(edges))
        old = [part for part in touched if part not in new]
        changed = self._changed_before(old, target, before) | self._changed(old, since, undone, target)
        own = [each for each in since if each.is_own and not each.is_of_backfill and not each.is_revert]
        return RevertPlan(
            restored=tuple(part for part in touched if part not in new and part not in changed),
            new=tuple(new),
            changed=changed,
            already=tuple(part for part, what in last.items() if what == _REVERT),
            later_runs=sum(any(p in each.modes and each.id not in undone[p] for p in touched) for each in own),
            head=target.head_snapshot_id(),
        )

    def _computed(self, commit: _RootCommit, target: TableMetadata) -> Collection[str]:
        """The partitions that a commit of the backfill or of a revert wrote; only runs with inputs name them."""
        return commit.modes if self._lines() else self._partitions_of(commit.snapshot, target)

    def _undone(
        self, parts: Sequence[str], since: Sequence[_RootCommit], target: TableMetadata, before: int
    ) -> dict[str, set[int]]:
        """The commits of which a later revert of another backfill left nothing, and that revert, by partition.

        That revert restored the rows of an earlier snapshot. If this one is older than ``before``, or isn't known, the
        revert counts as a change.
        """
        places = target.ancestry().places()
        store, undone = self.lineage.store, {part: set[int]() for part in parts}
        for each in since:
            if each.reverts is None or each.is_revert:
                continue
            other = store.get_backfill(each.reverts)
            restored = other.before.get(self._root.table) if isinstance(other, LaunchedBackfill) else None
            if restored is None or places.get(restored, len(places)) > places[before]:
                continue
            between = [one.id for one in since if places[each.id] <= places[one.id] < places[restored]]
            for part in each.modes.keys() & undone.keys():
                if each.id not in undone[part]:
                    undone[part].update(between)
        return undone

    def _since(self, target: TableMetadata, before: int) -> list[_RootCommit]:
        """The commits that changed rows since the snapshot ``before`` the backfill, newest first.

        The commits of a block of an asset's own statements have no stamps, except for its last one, which stands for
        all of them. They are published together, so there is no other commit between them.

        Raises:
            RevertError: the table's history no longer reaches back to that snapshot.
        """
        found: list[_RootCommit] = []
        snapshots = list(takewhile(lambda each: each.snapshot_id != before, target.ancestry().snapshots))
        oldest = {each.summary.get(ATTEMPT): place for place, each in enumerate(snapshots)}
        end_of_block = -1
        for place, snapshot in enumerate(snapshots):
            is_stamped = any(stamped_partitions(snapshot, line) for line in self._lines())
            if is_stamped or not (snapshot.keeps_rows or place <= end_of_block):
                found.append(self._commit(snapshot))
            if is_stamped and has_attempt(snapshot):
                end_of_block = max(end_of_block, oldest[snapshot.summary[ATTEMPT]])
        if target.ancestry().find(before) is not None:
            return found
        problem = f"{self._root.table} was rolled back, or snapshots since the previous state have expired"
        raise self._refused((problem,), "Recompute the partitions with the code that produced them.")

    def _commit(self, snapshot: Snapshot) -> _RootCommit:
        backfill = self.backfill.plan.id
        modes: dict[str, Mode] = {}
        for line in self._lines():
            modes |= {part or "": mode for part, (_, mode) in stamped_partitions(snapshot, line).items()}
        return _RootCommit(
            snapshot,
            is_own=writer_of(snapshot) == self._root.asset,
            is_of_backfill=cascade_stamps.belongs_to(snapshot, backfill),
            reverts=(reverted := snapshot.summary.get(REVERTED)),
            is_revert=reverted == backfill,
            modes=modes,
        )

    def _changed(
        self,
        parts: Sequence[str],
        since: Sequence[_RootCommit],
        undone: Mapping[str, Collection[int]],
        target: TableMetadata,
    ) -> dict[str, str]:
        """The changes to partitions that a revert would lose: other recomputations, or writes from outside."""
        changed: dict[str, str] = {}
        for each in since:
            if each.is_of_backfill or each.is_revert:
                continue
            if each.modes and each.is_own:
                touched = {part for part in parts if each.modes.get(part) is Mode.FULL}
            else:
                touched = set(parts) & self._partitions_of(each.snapshot, target)
            what = (
                f"it has been recomputed since, in snapshot {each.snapshot.snapshot_id}"
                if each.is_own
                else f"someone else changed it in {told(each.snapshot)}"
            )
            lost = f"{what}, which would be lost"
            changed |= dict.fromkeys(sorted(part for part in touched if each.id not in undone[part]), lost)
        return changed

    def _changed_before(self, parts: Sequence[str], target: TableMetadata, before: int) -> dict[str, str]:
        """The changes by others that are in the rows to restore and that the asset's runs refuse to go on with.

        A revert would hide them: afterwards, all rows count as the asset's own.
        """
        at = target.as_of(before, "main")
        writes = ForeignWrites.of(at.ancestry(), self._root.asset)
        if not writes.found or not self._lines():
            return {}
        stamps = target_histories(at, self._edges(parts))
        touched: dict[int, set[str]] = {}
        changed: dict[str, str] = {}
        for part in parts:
            newest = [stamps[edge].newest for edge in self._edges([part])]
            for each in writes.after(stamp.target.snapshot_id for stamp in newest if stamp):
                if each.snapshot_id not in touched:
                    touched[each.snapshot_id] = self._partitions_of(each, target)
                if part in touched[each.snapshot_id]:
                    changed[part] = f"someone else changed it before, in {told(each)}, which would no longer be noticed"
        return changed

    def _partitions_of(self, snapshot: Snapshot, target: TableMetadata) -> set[str]:
        """The partitions that a commit without captures may have changed; all of them if that is unknown."""
        slicing, parent = self._slicing(), target.snapshots.get(snapshot.parent_id or -1)
        if slicing is None or parent is None:
            return set(self._root.parts)
        storage = self.lineage.lake(self._root.asset).storage
        touched = files_in(storage, target, Interval(parent, (snapshot,)), snapshot).changes.touched
        found = FileKeys(storage, target, slicing).read(touched)
        return set(self._root.parts) if found.unread else set(found.keys)

    def _consumed(self, parts: Sequence[str], target: TableMetadata) -> dict[Edge, MadeOf]:
        """What the rows before the backfill were made of, by edge; edges for which that is unknown are left out."""
        edges = self._edges(parts)
        stamps = target_histories(target.as_of(self._before(target), "main"), edges)
        recorded: dict[Edge, MadeOf] = {}
        for each in self.backfill.consumed:
            line = Edge(self._root.asset, each.upstream)
            if (made := _made_of(each)) is not None:
                own = [line] if each.partitions is None else [line.of(part) for part in each.partitions]
                recorded |= dict.fromkeys(own, made)
        found: dict[Edge, MadeOf] = {}
        for edge in edges:
            stamp = stamps[edge].newest
            is_part = stamp is not None and stamp.bite is not None and not stamp.bite.is_last
            if edge in recorded and not is_part:
                found[edge] = recorded[edge]
            elif stamp is not None:
                found[edge] = MadeOf(
                    stamp.to_inclusive, stamp.left_out, stamp.from_exclusive, stamp.bite, stamp.division
                )
        return found

    def _restoration(self, parts: Sequence[str], *, head: int | None = None) -> Restoration:
        target, stage = self._target(), self.backfill.plan.root
        consumed = self._consumed(parts, target)
        if problems := (
            *self._unread(parts, consumed),
            *self._no_longer_read(parts),
            *self._redefined(consumed),
            *self._unfollowed(consumed),
        ):
            raise self._refused(problems, "Recompute the partitions with the code that produced them.")
        rows = rows_of_stage(parts, target, self._slicing())
        before = self._before(target)
        wanted = Restoration(self.backfill.plan.id, stage.asset, stage.table, before, rows, consumed, head)
        require_same_columns(target, wanted)
        return wanted

    def _unread(self, parts: Collection[str], consumed: Mapping[Edge, MadeOf]) -> Iterator[str]:
        """The problems if rows were made without some input: what of it is to be consumed again is unknown."""
        for upstream in sorted({edge.upstream for edge in self._edges(parts) if edge not in consumed}):
            yield (
                f"its previous rows were made without reading {upstream}, which {self._root.asset} reads now (if the "
                "earlier code didn't read it, deploy that code first)"
            )

    def _no_longer_read(self, parts: Collection[str]) -> Iterator[str]:
        """The problems if rows were made of an input that isn't read now: its cursor would stay beyond what they hold.

        Later, with code that reads it again, changes would be missing.
        """
        lines = {line.upstream for line in self._lines()}
        for each in self.backfill.consumed:
            is_of_them = each.partitions is None or not set(each.partitions).isdisjoint(parts)
            if each.upstream not in lines and is_of_them and _made_of(each) is not None:
                yield (
                    f"its previous rows were made by reading {each.upstream}, which {self._root.asset} doesn't read "
                    "now (deploy code that does first)"
                )

    def _redefined(self, consumed: Mapping[Edge, MadeOf]) -> Iterator[str]:
        """The problems if the asset's partitions have been redefined since the rows were computed."""
        is_partitioned = self.lineage.partitions_def(self._root.asset) is not None
        if is_partitioned != (self._root.partitions is not None) or is_partitioned != (self._slicing() is not None):
            yield f"{self._root.asset} is no longer partitioned as it was"
            return
        slicings = {each.upstream: each.slicing for each in self.lineage.inputs(self._root.asset).values()}
        made_by = {(edge.upstream, made.division) for edge, made in consumed.items() if made.division is not None}
        # What was deleted since doesn't matter: what is restored is then recomputed without it.
        then = {(upstream, without_losses(division)) for upstream, division in made_by}
        for upstream, division in sorted(then):
            slicing = slicings.get(upstream)
            if slicing is None or slicing.division != division:
                yield f"the partitions of {self._root.asset} have since been redefined (they were {division})"

    def _unfollowed(self, consumed: Mapping[Edge, MadeOf]) -> Iterator[str]:
        """The problems if the changes after those that the rows were made of can no longer be read."""
        # What is left of a change that was taken in bites is read from its own snapshot.
        in_parts = {at.to_inclusive for at in consumed.values() if at.bite is not None and not at.bite.is_last}
        by_line: dict[str, dict[Watermark, int]] = {}
        for edge, at in consumed.items():
            by_line.setdefault(edge.upstream, Counter())[at.to_inclusive] += 1
        tracked = {each.upstream: each for each in self._consumer.consumer.inputs.values()} if self._consumer else {}
        for upstream, marks in by_line.items():
            source = self.lineage.metadata(upstream)
            if source is None:
                yield f"{upstream}'s table no longer exists"
                continue
            storage, ancestry = self.lineage.lake(upstream).storage, source.ancestry(tracked[upstream].ref)
            for mark, count in marks.items():
                found = interval_of(storage, source, mark, ancestry)
                if not isinstance(found, Interval) or not _can_go_on(found, in_parts=mark in in_parts):
                    of = f"{count} partitions" if self.backfill.plan.root.partitions is not None else "it"
                    yield (
                        f"changes of {source.table} after snapshot {mark.snapshot_id}, which {of} would have to read "
                        "again, have expired or were rolled back or replaced"
                    )

    def _publisher(self) -> Publisher:
        asset = self._root.asset
        properties = cascade_stamps.properties(Cascade((revert_cascade(self.backfill.plan.id),)))
        return Publisher(
            self.lineage.lake(asset),
            self.lineage.store,
            self.lineage.session(asset),
            str(uuid.uuid4()),
            properties | owner_properties(asset, None),
        )

    def _require_idle(self) -> None:
        key = dg.AssetKey.from_user_string(self._root.asset)
        states = self.lineage.store.get_many(self._edges(self._root.parts)).values()
        if (run_id := run_at_work(self.lineage.instance, key, states, statuses=UNFINISHED)) is not None:
            problem = f"run {run_id} of {self._root.asset} is working or about to start."
            remedy = f"Wait for it, or end all of its runs: dagster-ips backfill cancel {self.backfill.plan.id}"
            raise BackfillError(backfill=self.backfill.plan.id, problem=problem, remedy=remedy)

    def _refused(self, problems: tuple[str, ...], remedy: str) -> RevertError:
        return RevertError(self.backfill.plan.id, self._root.table, problems, remedy)

    def _report(self, parts: Sequence[str]) -> None:
        """Report the restored partitions to Dagster."""
        newest = self._target().ancestry().newest_change
        snapshot = str(newest.snapshot_id) if newest else "none"
        asset, backfill = self._root.asset, self.backfill.plan.id
        for part in parts:
            self.lineage.report(asset, part or None, backfill=backfill, became="reverted", snapshot=snapshot)


_BACKFILL, _REVERT = "backfill", "revert"


@dataclass(frozen=True, slots=True)
class _RootCommit:
    """A commit to the root's table. ``modes`` are the modes in which a run computed partitions, by partition.

    ``reverts`` is the backfill that it reverts, if any; ``is_revert`` says that it is this one.
    """

    snapshot: Snapshot
    is_own: bool
    is_of_backfill: bool
    reverts: str | None
    is_revert: bool
    modes: Mapping[str, Mode]

    @property
    def id(self) -> int:
        """The id of its snapshot."""
        return self.snapshot.snapshot_id


def _last(part: str, decisive: Sequence[tuple[_RootCommit, Collection[str]]], undone: Collection[int]) -> str | None:
    """Which of the backfill and a revert of it decides a partition's rows; None if it computed no such partition.

    ``decisive`` are the commits of both, newest first, each with the partitions that it wrote. A revert of another
    backfill that restored a state from before this one has reverted this one as well.
    """
    is_reverted = False
    for each, computed in decisive:
        if part not in computed:
            continue
        if each.id not in undone:
            return _BACKFILL if each.is_of_backfill else _REVERT
        is_reverted |= each.is_of_backfill
    return _REVERT if is_reverted else None


def _can_go_on(interval: Interval, *, in_parts: bool) -> bool:
    """Whether the changes can be read, and what is left of the one at their start if it was consumed ``in_parts``."""
    return not interval.abandoned and is_readable(interval) and not (in_parts and interval.start is None)


def _made_of(before: ConsumedBefore) -> MadeOf | None:
    """What rows were made of that had consumed this; None if nothing."""
    if (taken := before.file_set) is not None:
        bite = Bite(0, taken.taken, taken.total)
        return MadeOf(taken.to_inclusive, before.left_out, before.up_to, bite, before.division)
    return MadeOf(before.up_to, before.left_out, division=before.division) if before.up_to is not None else None


def revert_cascade(backfill: str) -> str:
    """The cascade of everything that follows from reverting a backfill.

    Example:
        >>> revert_cascade("qwertyui")
        'qwertyui-revert'
    """
    return f"{backfill}-revert"
