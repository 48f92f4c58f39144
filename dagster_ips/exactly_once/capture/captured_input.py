"""What a run reads of one input once it is captured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.capture import Capture
from dagster_ips.core.policy import InputPolicies
from dagster_ips.core.ranges import ChangeRange, Predicate
from dagster_ips.exactly_once.capture.backlog_share import BacklogShare
from dagster_ips.exactly_once.capture.partitioned_input import PartitionedInput
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.target_table.target_ownership import Accepted
from dagster_ips.iceberg.change_reader import ChangedFiles
from dagster_ips.iceberg.icdc.icdc_tables import Tag
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.progress.advance import Advance


@dataclass(frozen=True, slots=True)
class CapturedInput:
    """What a run reads of one input, as ``tracked`` declares it: all that the layers above need to know about it."""

    tracked: TrackedInput
    captures: tuple[Capture, ...]
    """What is consumed: one capture, or one for each partition that the run computes."""
    source: TableMetadata
    share: BacklogShare
    """Which part of the change was taken."""
    tags: Mapping[Tag, int]
    """The ICDC table's snapshots of what was live before and after, if rows may have been removed."""
    ranges: Mapping[str, ChangeRange]
    rows: Predicate | None = None
    """The source's rows that the run's partitions read."""
    of_any: Predicate | None = None
    """The rows of any partition, to be counted by the values of ``columns``; None if no count is needed."""
    unmapped: tuple[str, ...] = ()
    """Examples of values that belong to no partition."""
    looked: PartitionedInput | None = None
    """What was known about all partitions; None if the consumer isn't partitioned."""
    advance: Advance = field(default_factory=Advance)
    """What publishing all captures of the run adds to the progress of the consumer's table."""
    accepted: Accepted = field(default_factory=Accepted)
    """What others wrote to the consumer's table and a person accepts."""
    began_late: bool = False
    """Whether rows from before a ``start`` were left out, even if none is declared any more."""

    @property
    def capture(self) -> Capture:
        """The run's capture; for several partitions what they have in common, starting where the first starts."""
        first, *others = self.captures
        if not others:
            return first
        starts = [each.from_exclusive for each in self.captures]
        known = [start for start in starts if start is not None]
        oldest = min(known, key=lambda start: start.position) if len(known) == len(starts) else None
        return replace(first, edge=first.edge.line, from_exclusive=oldest)

    @property
    def policies(self) -> InputPolicies:
        """What the consumer does if the input's history does more than grow."""
        return self.tracked.policies

    @property
    def columns(self) -> tuple[str, ...]:
        """The source's columns that determine the asset's partitions; empty for an asset without partitions."""
        return self.tracked.slicing.upstream_keys.columns if self.tracked.slicing else ()

    @property
    def files(self) -> ChangedFiles:
        """The files captured."""
        return self.share.files

    @property
    def head(self) -> Snapshot | None:
        """The source's snapshot that was captured up to; None if the source has no snapshot."""
        return self.share.to
