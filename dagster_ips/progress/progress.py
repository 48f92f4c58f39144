"""How far a table contains its upstreams: one value, the whole of it in every snapshot that its asset publishes.

A partition that isn't ``behind`` holds the upstream as of ``at``; one that is behind holds it as of the watermark given
there, or was never computed. An asset without partitions is a single partition that is never behind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from dagster_ips.core.capture import EdgeState, TargetMark
from dagster_ips.core.code_of_rows import Making
from dagster_ips.core.edge import Edge
from dagster_ips.core.file_set import FileSet
from dagster_ips.core.partition_keys import Slicing
from dagster_ips.core.watermark import Watermark, is_certainly_before


@dataclass(frozen=True, slots=True)
class Sharing:
    """Which partitions there were: those of the consumer, if several take the same keys, and those of the upstream.

    ``landmarks`` stand for the upstream's, as in ``PartitionKeys``.
    """

    partitions: frozenset[str] = frozenset()
    landmarks: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ChangedKeys:
    """Which keys of an upstream's rows came or went after a progress's ``at``, up to ``to``, its head.

    If the history can't be followed, ``is_followed`` is False, and ``keys`` are all that rows have now. ``ahead`` has,
    for partitions that hold more than ``at``, the keys that changed after their positions. ``live`` are the keys that
    rows have now, None if they weren't needed. ``unread`` gives the files whose keys are unknown, and why.
    ``unmapped`` are examples of what belongs to no partition.
    """

    to: Watermark | None
    keys: frozenset[str] = frozenset()
    ahead: Mapping[Watermark, frozenset[str]] = field(default_factory=dict)
    live: frozenset[str] | None = None
    unread: Mapping[str, str] = field(default_factory=dict)
    unmapped: tuple[str, ...] = ()
    is_followed: bool = True


@dataclass(frozen=True, slots=True)
class InputProgress:
    """How far a table contains one upstream.

    ``at`` is None if nothing was read, or the upstream had no snapshot. Partitions ``behind`` have other positions;
    None stands for one that is to be computed anew. ``untaken`` are the keys of rows up to ``at`` that no partition
    took, each with an earlier ``at`` from before its first row, None if unknown. ``files`` are consumed of the change
    after ``at``. ``division`` is what partition keys mean, None without partitions. ``sharing`` is set if partitions
    take the same keys, or once the history couldn't be followed: then a partition that comes back may hold anything.
    ``began_late`` says that rows from before a declared start are left out.
    """

    at: Watermark | None = None
    behind: Mapping[str, Watermark | None] = field(default_factory=dict)
    untaken: Mapping[str, Watermark | None] = field(default_factory=dict)
    files: FileSet | None = None
    division: str | None = None
    sharing: Sharing | None = None
    began_late: bool = False

    def position(self, partition: str | None) -> Watermark | None:
        """Up to where a partition holds the upstream; None if it was never computed."""
        return self.behind[partition] if partition is not None and partition in self.behind else self.at

    @property
    def marks(self) -> list[Watermark]:
        """Every watermark from which something is still to be read."""
        found = [self.at, *self.behind.values(), self.files.to_inclusive if self.files else None]
        return list(dict.fromkeys(mark for mark in found if mark is not None))

    @property
    def ahead(self) -> list[Watermark]:
        """The positions of partitions that may hold more of the upstream than ``at``."""
        known = [since for since in dict.fromkeys(self.behind.values()) if since is not None]
        return [s for s in known if self.at is None or not is_certainly_before(s.position, self.at.position)]

    def needs_live_keys(self, slicing: Slicing) -> bool:
        """Whether it depends on the keys that rows have now which partitions are pending."""
        if self.sharing is None or not slicing.sharing:
            return False
        keys = slicing.upstream_keys
        return bool(slicing.sharing - self.sharing.partitions) or keys.lacks_any(self.sharing.landmarks)

    def pending(self, slicing: Slicing, changed: ChangedKeys) -> dict[str, Watermark | None]:
        """The existing partitions that don't hold the upstream as it is now, each with its position."""
        reached = changed.keys if changed.is_followed else slicing.upstream_keys.known()
        found: dict[str, Watermark | None] = dict.fromkeys(slicing.made_of(reached), self.at)
        takes_more = slicing.sharing and self.sharing and self.sharing.landmarks != slicing.upstream_keys.landmarks()
        lacking = self.ahead if takes_more else []  # These positions may be after rows that nothing took then.
        for partition in self.behind.keys() & _existing(slicing):
            since = self.behind[partition]
            later = changed.ahead.get(since) if since is not None else None
            if since in lacking:
                found[partition] = None
            elif later is not None and later.isdisjoint(slicing.taken_by(partition)):
                found.pop(partition, None)
            else:
                found[partition] = since
        return found | dict.fromkeys(self._anew(slicing, changed))

    def _anew(self, slicing: Slicing, changed: ChangedKeys) -> frozenset[str]:
        """The partitions that lack rows, or have rows too many, from before their positions: all is computed anew."""
        found, keys = slicing.made_of(self.untaken), slicing.upstream_keys
        if self.sharing is None:
            return found
        if not slicing.sharing:
            return found | slicing.made_of(keys.added(keys.known(), self.sharing.landmarks))
        if keys.deleted(self.sharing.landmarks):
            return found | slicing.sharing
        new = slicing.sharing - self.sharing.partitions
        return found | (new & slicing.made_of(changed.keys | (changed.live or frozenset()))) if new else found

    def after(
        self,
        partitions: Collection[str],
        slicing: Slicing,
        changed: ChangedKeys,
        pending: Mapping[str, Watermark | None],
    ) -> InputProgress:
        """The progress once ``partitions`` hold the upstream as of ``changed.to``; others that were pending are behind.

        As long as the keys of a changed file are unknown, any partition may have changed: then ``at`` stays.
        """
        is_read, existing = not changed.unread, _existing(slicing)
        behind = {key: since for key, since in self.behind.items() if not is_read or key not in existing}
        gone = self.sharing.partitions - existing if self.sharing else ()
        behind |= dict.fromkeys(gone) | dict(pending)  # It is unknown which keys a partition took that comes back.
        came = dict.fromkeys(changed.live or ()) | (dict.fromkeys(changed.keys, self.at) if is_read else {})
        keys = came | dict(self.untaken)
        taken_by = slicing.made_of_each(keys)
        is_remembered = slicing.sharing or self.sharing or not changed.is_followed
        progress = replace(
            self,
            at=changed.to if is_read else self.at,
            behind={key: since for key, since in behind.items() if key not in partitions},
            untaken={key: since for key, since in keys.items() if not taken_by.get(key)},
            division=slicing.division,
            sharing=Sharing(slicing.sharing, slicing.upstream_keys.landmarks()) if is_remembered else None,
        )
        return progress if is_read else progress.joined(dict.fromkeys(partitions, changed.to))

    def joined(self, partitions: Mapping[str, Watermark | None]) -> InputProgress:
        """The progress once ``partitions`` hold the upstream as of other watermarks, while ``at`` stays."""
        behind = {**self.behind, **partitions}
        return replace(self, behind={key: since for key, since in behind.items() if since is None or since != self.at})


def _existing(slicing: Slicing) -> frozenset[str]:
    return slicing.made_of(slicing.upstream_keys.known()) | slicing.sharing


@dataclass(frozen=True, slots=True)
class Progress:
    """What a table contains: the whole of it.

    ``number`` counts the publications. ``made`` says how rows were made, by partition; the key None stands for all
    others. ``code`` is that of the last run, None if unknown. ``lookups`` are the states of the tables that rows were
    looked up in, None where rows differ in that.
    ``obeyed`` is the newest request of a person that it fulfils. ``known_to`` is set if others wrote rows before that
    nobody has accepted: all up to there is known.
    """

    number: int = 0
    inputs: Mapping[str, InputProgress] = field(default_factory=dict)
    made: Mapping[str | None, Making] = field(default_factory=dict)
    code: str | None = None
    lookups: Mapping[str, str | None] = field(default_factory=dict)
    obeyed: int = 0
    known_to: TargetMark | None = None

    def making(self, partition: str | None) -> Making | None:
        """How the rows of a partition were made; None if nothing says so."""
        return self.made.get(partition, self.made.get(None))

    def state(self, edge: Edge, target: TargetMark | None) -> EdgeState:
        """How far the table, or one of its partitions, contains an upstream, as the snapshot ``target`` says."""
        known = self.inputs.get(edge.upstream)
        if known is None:
            return EdgeState(edge, target=target)
        return EdgeState(
            edge,
            known.position(edge.partition),
            number=self.number,
            target=target,
            file_set=known.files,
            began_late=known.began_late,
            has_begun=True,
        )
