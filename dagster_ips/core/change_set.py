"""What changed in an interval, as data files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
    file_format: str = "PARQUET"


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """The data files whose rows may have changed in an interval. An empty interval has an empty change set.

    ``added`` are live at its end and weren't at its start; they may hold rows carried over from files that are gone.
    ``removed`` were live at its start and are gone. ``hidden`` are live at both ends, and delete files that may apply
    to them came or went. ``has_deletes`` says whether delete files may apply to any file that is live at the end.
    """

    added: tuple[DataFile, ...] = ()
    removed: tuple[DataFile, ...] = ()
    hidden: tuple[DataFile, ...] = ()
    has_deletes: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether it is certain that no row changed."""
        return not self.touched

    @property
    def may_remove_rows(self) -> bool:
        """Whether rows that were there at the start may be gone; if not, every row of ``added`` is new."""
        return bool(self.removed or self.hidden)

    @property
    def touched(self) -> tuple[DataFile, ...]:
        """Every file that may hold a changed row: what ranges and affected partitions must cover."""
        return self.added + self.removed + self.hidden

    @property
    def overwritten(self) -> frozenset[str]:
        """The paths of removed files that another file has now, as their sizes show: what they held can't be read."""
        if not self.removed:
            return frozenset()
        now = {file.path: (file.file_size_bytes, file.record_count) for file in self.added}
        before = {file.path: (file.file_size_bytes, file.record_count) for file in self.removed}
        return frozenset(path for path, size in before.items() if now.get(path, size) != size)

    @property
    def row_count(self) -> int:
        """Rows in the added files."""
        return sum(file.record_count for file in self.added)

    @property
    def size_bytes(self) -> int:
        """Size of the added files."""
        return sum(file.file_size_bytes for file in self.added)
