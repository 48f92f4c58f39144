"""What a run reads of one input, once it is captured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.capture import Capture, Mode
from dagster_ips.core.policy import InputPolicies
from dagster_ips.core.ranges import ChangeRange, Predicate
from dagster_ips.exactly_once.capture.backlog_share import BacklogShare
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.target_table.target_ownership import (
    Accepted,
)
from dagster_ips.iceberg.change_reader import ChangedFiles
from dagster_ips.iceberg.icdc.icdc_tables import Tag
from dagster_ips.iceberg.metadata import TableMetadata


@dataclass(frozen=True, slots=True)
class CapturedInput:
    """What a run reads of one input, as ``tracked`` declares it: all that the rooms above must know of it.

    ``captures`` are what is consumed by it: one, or one for each partition that the run computes, whose ``rows`` of the
    source are those that it reads. ``share`` says what of the change it is. ``tags`` are the ICDC table's snapshots of
    what was there before and after, if rows may have been removed. ``unmapped`` are some values that belong to no
    partition. ``of_any`` are the rows of any partition, to be counted by the values of ``columns``; None where there is
    no need to. ``accepted`` is what others wrote to the consumer's table and a person takes as it is.
    """

    tracked: TrackedInput
    captures: tuple[Capture, ...]
    source: TableMetadata
    share: BacklogShare
    tags: Mapping[Tag, int]
    ranges: Mapping[str, ChangeRange]
    seconds: float
    rows: Predicate | None = None
    of_any: Predicate | None = None
    unmapped: tuple[str, ...] = ()
    accepted: Accepted = field(default_factory=Accepted)

    @property
    def capture(self) -> Capture:
        """The run's capture; of several partitions what they have in common, beginning where the first begins."""
        first, *others = self.captures
        if not others:
            return first
        starts = [each.from_exclusive for each in self.captures]
        known = [start for start in starts if start is not None]
        oldest = min(known, key=lambda start: start.position) if len(known) == len(starts) else None
        return replace(first, edge=first.edge.line, from_exclusive=oldest)

    @property
    def new_partitions(self) -> tuple[str, ...]:
        """The partitions that are computed for the first time by a run that continues others."""
        new = [each for each in self.captures if each.mode is Mode.INCREMENTAL and each.from_exclusive is None]
        return tuple(each.edge.partition for each in new if each.edge.partition is not None)

    @property
    def policies(self) -> InputPolicies:
        """What the consumer does when the input's history did more than grow."""
        return self.tracked.policies

    @property
    def columns(self) -> tuple[str, ...]:
        """The source's columns that the partitions of its asset are made of; none of an asset without."""
        return self.tracked.slicing.upstream_keys.columns if self.tracked.slicing else ()

    @property
    def files(self) -> ChangedFiles:
        """The files captured."""
        return self.share.files

    @property
    def head(self) -> Snapshot | None:
        """The source's snapshot captured up to; None if it has none."""
        return self.share.to
