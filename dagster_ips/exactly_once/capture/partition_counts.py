"""How much of a capture of several partitions belongs to each partition."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dagster_ips.core.change_set import DataFile
from dagster_ips.core.partition_keys import Slicing
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.file_keys import FileKeys
from dagster_ips.iceberg.storage import Storage


@dataclass(frozen=True, slots=True)
class Count:
    """How much was captured."""

    files: int = 0
    rows: int = 0
    size_bytes: int = 0

    def plus(self, other: Count) -> Count:
        """The sum of both."""
        return Count(self.files + other.files, self.rows + other.rows, self.size_bytes + other.size_bytes)


def counts_by_partition(
    storage: Storage, captured: CapturedInput, slicing: Slicing, partitions: Collection[str]
) -> Mapping[str, Count] | None:
    """What was captured for each of ``partitions``, the partitions of a run.

    None if a file may hold rows that several of them take, or none of them. No file is read.
    """
    files, taken = FileKeys(storage, captured.source, slicing), {key: slicing.taken_by(key) for key in partitions}
    counts = dict.fromkeys(partitions, Count())
    for file in captured.files.changes.added:
        found = files.of(file)
        if (partition := _owner(found.keys if found.is_exact else None, taken)) is None:
            return None
        counts[partition] = counts[partition].plus(_count(file))
    return counts


def _owner(keys: frozenset[str] | None, taken: Mapping[str, frozenset[str]]) -> str | None:
    """The only partition that takes a file's rows, all of them; None if there is none or that is unknown."""
    made = [partition for partition, of_it in taken.items() if keys is not None and not keys.isdisjoint(of_it)]
    return made[0] if keys and len(made) == 1 and keys <= taken[made[0]] else None


def _count(file: DataFile) -> Count:
    return Count(1, file.record_count, file.file_size_bytes)
