"""An upstream of a partitioned consumer: its progress, its changes since, and the partitions that these affect."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from dagster_ips.core.policy import OnRemoved, OnUnmapped
from dagster_ips.core.watermark import Watermark, is_certainly_before
from dagster_ips.exactly_once.capture.changed_keys import changed_keys
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage
from dagster_ips.progress.progress import ChangedKeys, InputProgress
from dagster_ips.progress.table_progress import TableProgress


@dataclass(frozen=True, slots=True)
class PartitionedInput:
    """An input at its head; ``pending`` are the partitions that don't hold it as it is now, with their positions."""

    tracked: TrackedInput
    progress: InputProgress
    changed: ChangedKeys
    pending: Mapping[str, Watermark | None]

    def start_of(self, partition: str) -> Watermark | None:
        """Up to where a partition holds the input; None if it reads all of its rows, and isn't ``lacking`` any."""
        position = self.progress.position(partition)
        return position if self.lacking(partition) else self.pending.get(partition, position)

    def after(self, partitions: Collection[str]) -> InputProgress:
        """The input's progress once ``partitions`` hold it as it is now."""
        return self.progress.after(partitions, self.tracked.known_slicing, self.changed, self.pending)

    def lacking(self, partition: str) -> frozenset[str]:
        """The keys that a partition takes now, and whose rows it lacks because they had no partition before."""
        sharing = self.progress.sharing
        if sharing is None or partition not in sharing.partitions:
            return frozenset()
        return self.tracked.known_slicing.taken_by(partition) & self.progress.untaken.keys()

    def consumed_up_to(self, *, but: Collection[str] = (), by_time: bool) -> Watermark | None:
        """Up to where every partition has consumed the upstream, if the partitions ``but`` are taken to be up to date.

        None if that is unknown: a partition was never computed and may have had rows from the beginning, or only clocks
        could say which partition is behind. Rows whose keys have no partition yet count as not consumed; for an asset
        that is partitioned ``by_time``, times after its last partition don't count.
        """
        slicing, to = self.tracked.known_slicing, self.changed.to
        if to is None or not self.changed.is_followed:
            return None
        starts = [since for partition, since in self.pending.items() if partition not in but]
        untaken = self.after(but).untaken
        waiting = untaken.keys() - slicing.lost(untaken)
        starts += [untaken[key] for key in (slicing.upstream_keys.to_be_added(waiting) if by_time else waiting)]
        starts += [self.progress.at] if self.changed.unread else []
        return _first([to, *starts])

    @property
    def unreached(self) -> tuple[str, ...]:
        """Texts on rows of the upstream for which no run is requested: they have unknown partitions, or none."""
        upstream, unread = self.tracked.upstream, self.changed.unread
        unmapped = self.changed.unmapped if self.tracked.policies.on_unmapped is OnUnmapped.ERROR else ()
        none = f"{upstream} has rows for which there is no partition, so every run fails: {', '.join(unmapped)}"
        return (*([_unread_text(upstream, unread)] if unread else []), *([none] if unmapped else []))


def look_at(  # noqa: PLR0913  # all are independent
    storage: Storage,
    source: TableMetadata,
    tracked: TrackedInput,
    known: TableProgress | None,
    consumer: str,
    *,
    replaces_all: bool = False,
) -> PartitionedInput:
    """What ``known`` says of an input of ``consumer``, and what has changed in its table ``source`` since.

    If it ``replaces_all``, the consumer's table may have rows of which nothing is known, in any partition.

    Raises:
        As ``changed_keys``.
    """
    progress = input_progress(known, tracked, consumer)
    now = progress or InputProgress(division=tracked.known_slicing.division)
    if tracked.policies.on_removed is OnRemoved.IGNORE and now.sharing is not None:
        # Results of rows that are gone stay, so those of partitions that are gone do.
        there = now.sharing.landmarks - tracked.known_slicing.upstream_keys.deleted(now.sharing.landmarks)
        now = replace(now, sharing=replace(now.sharing, landmarks=there))
    replaces_all = replaces_all or (known is not None and progress is None)
    changed = changed_keys(storage, source, tracked, now, replaces_all=replaces_all)
    return PartitionedInput(tracked, now, changed, now.pending(tracked.known_slicing, changed))


def input_progress(known: TableProgress | None, tracked: TrackedInput, consumer: str) -> InputProgress | None:
    """What is ``known`` of an input; None if the table wasn't computed from it, or by another meaning of its keys."""
    if known is None or known.asset not in (None, consumer):
        return None
    found = known.progress.inputs.get(tracked.upstream)
    division = tracked.slicing.division if tracked.slicing else None
    return found if found is not None and found.division == division else None


def _first(marks: Collection[Watermark | None]) -> Watermark | None:
    """The mark that was committed first; None if one is None, or if it is unknown which is the first."""
    known = [mark for mark in marks if mark is not None]
    if len(known) < len(marks):
        return None
    first = min(known, key=lambda mark: mark.position)
    return first if all(mark == first or is_certainly_before(first.position, mark.position) for mark in known) else None


def _unread_text(upstream: str, unread: Mapping[str, str]) -> str:
    """What unread files mean, with one as an example and its cause."""
    path, cause = min(unread.items())
    many = f"{len(unread):,} files" if len(unread) > 1 else "a file"
    return (
        f"the partitions of the rows in {many} of {upstream} are unknown, so no run is requested for them: {path}, "
        f"{cause}"
    )
