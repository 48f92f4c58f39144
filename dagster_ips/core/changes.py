"""What changed in an interval, as data files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dagster_ips.core.ancestry import Snapshot


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file as its manifest describes it; bounds stay in Iceberg's binary single-value form, by field id.

    ``partition`` maps partition field names to their raw Avro values.
    Source: Iceberg table spec, "Manifests", struct ``data_file``.
    """

    path: str
    spec_id: int
    record_count: int
    file_size_bytes: int
    partition: Mapping[str, object] = field(default_factory=dict)
    lower_bounds: Mapping[int, bytes] = field(default_factory=dict)
    upper_bounds: Mapping[int, bytes] = field(default_factory=dict)
    null_counts: Mapping[int, int] = field(default_factory=dict)
    value_counts: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Data files that became live in an interval. Empty interval, empty change set."""

    added: tuple[DataFile, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no file was added."""
        return not self.added

    @property
    def row_count(self) -> int:
        """Rows in the added files."""
        return sum(file.record_count for file in self.added)

    @property
    def size_bytes(self) -> int:
        """Size of the added files."""
        return sum(file.file_size_bytes for file in self.added)


def first_unsupported(snapshots: tuple[Snapshot, ...]) -> Snapshot | None:
    """The oldest snapshot that is anything but an append, or None.

    Only an ``append`` leaves every earlier row as it was, so only over appends are the added files the whole change.
    """
    return next((s for s in snapshots if s.operation != "append"), None)
