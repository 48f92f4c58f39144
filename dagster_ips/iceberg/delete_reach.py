"""Which data files a delete file may apply to.

Source: Iceberg table spec, "Scan Planning": by path where a delete file is for one data file, else by partition, and
for equality deletes of an unpartitioned spec everywhere. Equality deletes apply to older files only, and not to files
that can't have such values, as the bounds of both tell; so Iceberg's ``DeleteFileIndex`` plans scans.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dagster_ips.core.partition_keys import Span
from dagster_ips.iceberg.file_spans import span
from dagster_ips.iceberg.manifests import ManifestEntry, ManifestRow
from dagster_ips.iceberg.metadata import TableMetadata

_EQUALITY_DELETES = 2
_ORDERED = {int, str}
_FILE_PATH = 2147483546  # The reserved field id of position deletes' column file_path.

PartitionKey = tuple[int, tuple[Any, ...]]
"""The spec id and the partition's values: equal for two files of one partition, even with NaN and -0.0."""


def partition_key(entry: ManifestEntry) -> PartitionKey:
    """The partition that the entry's file is in."""
    return entry.spec_id, tuple(_comparable(value) for value in entry.raw["data_file"]["partition"].values())


@dataclass(frozen=True)
class EqualDeletes:
    """Equality deletes by the same columns: they apply to files before ``before`` with values in ``spans``.

    ``before`` is a sequence number; None if it is unknown. The spans of columns that can't be interpreted are left out.
    """

    table: TableMetadata
    before: int | None
    spans: Mapping[str, Span]

    @classmethod
    def of(cls, deletes: Sequence[ManifestEntry], ids: Iterable[int], table: TableMetadata) -> EqualDeletes:
        """What ``deletes``, of which there is at least one, delete by the columns with these ``ids``."""
        files = [delete.data_file() for delete in deletes]
        names = [name for name, column in table.columns.items() if column.field_id in ids]
        spans = {name: Span.around([span(file, table, name) for file in files]) for name in names}
        numbers = [delete.sequence_number for delete in deletes]
        return cls(table, max(numbers) if all(numbers) else None, spans)

    def may_apply_to(self, data: ManifestEntry) -> bool:
        """Whether one of them may apply to the data file, if it is in a partition that they apply to."""
        if self.before is not None and data.sequence_number >= self.before:
            return False
        file = data.data_file()
        return all(span(file, self.table, name).may_share(deleted) for name, deleted in self.spans.items())


@dataclass(frozen=True)
class DeleteReach:
    """What a set of delete files may apply to; ``scopes`` are the partitions of those that name a single data file.

    ``equal`` are equality deletes by the partition that they apply to; None stands for every partition.
    """

    paths: AbstractSet[str] = frozenset()
    scopes: AbstractSet[PartitionKey] = frozenset()
    partitions: AbstractSet[PartitionKey] = frozenset()
    equal: Mapping[PartitionKey | None, Sequence[EqualDeletes]] = field(default_factory=dict)

    @classmethod
    def of(cls, deletes: Iterable[ManifestEntry], table: TableMetadata) -> DeleteReach:
        """What ``deletes`` of the table may apply to; without deletes, nothing."""
        paths, scopes, partitions = set(), set(), set()
        equal: dict[PartitionKey | None, dict[tuple[int, ...], list[ManifestEntry]]] = {}
        for delete in deletes:
            key, path = partition_key(delete), data_file_of(delete)
            if path is not None:
                paths.add(path)
                scopes.add(key)
            elif is_equality(delete):
                ids = tuple(sorted(delete.raw["data_file"].get("equality_ids") or ()))
                equal.setdefault(None if _is_global(delete) else key, {}).setdefault(ids, []).append(delete)
            else:
                partitions.add(key)
        of_each = {
            where: [EqualDeletes.of(alike, ids, table) for ids, alike in by_ids.items()]
            for where, by_ids in equal.items()
        }
        return cls(paths, scopes, partitions, of_each)

    @property
    def is_nowhere(self) -> bool:
        """Whether it can't apply to anything."""
        return not (self.paths or self.partitions or self.equal)

    def covers(self, data: ManifestEntry) -> bool:
        """Whether any of the delete files may apply to the data file."""
        key = partition_key(data)
        if data.path in self.paths or key in self.partitions:
            return True
        return any(each.may_apply_to(data) for where in (None, key) for each in self.equal.get(where, ()))

    def may_cover_files_of(self, row: ManifestRow) -> bool:
        """Whether the manifest may list a covered file, according to its partition summaries."""
        if None in self.equal:
            return True
        keys, ends = self._by_spec.get(row["partition_spec_id"], ([], []))
        summaries = row.get("partitions")
        if not keys or not summaries:
            return bool(keys)
        if any(of and _are_apart(of, summary) for of, summary in zip(ends, summaries, strict=False)):
            return False
        return any(_may_hold(summaries, values) for values in keys)

    @cached_property
    def _by_spec(self) -> Mapping[int, tuple[list[tuple[Any, ...]], list[tuple[Any, Any] | None]]]:
        """The partitions by spec; and for each field the lowest and highest value, None if they have no plain order."""
        found: dict[int, list[tuple[Any, ...]]] = {}
        for spec, values in self.scopes | self.partitions | {key for key in self.equal if key is not None}:
            found.setdefault(spec, []).append(values)
        return {spec: (keys, [_ends(each) for each in zip(*keys, strict=False)]) for spec, keys in found.items()}


def applying_to(deletes: Iterable[ManifestEntry], data: Iterable[ManifestEntry]) -> list[ManifestEntry]:
    """The ``deletes`` that may apply to any of ``data``."""
    files = list(data)
    paths, partitions = {file.path for file in files}, {partition_key(file) for file in files}

    def applies(delete: ManifestEntry) -> bool:
        path = data_file_of(delete)
        if path is not None:
            return path in paths
        return bool(files) and (_is_global(delete) or partition_key(delete) in partitions)

    return [delete for delete in deletes if applies(delete)]


def data_file_of(delete: ManifestEntry) -> str | None:
    """The data file that the delete file is for; None if it isn't for a single one."""
    file = delete.raw["data_file"]
    if is_equality(delete):
        return None
    if file.get("referenced_data_file"):
        return str(file["referenced_data_file"])
    lower, upper = (_bound(file.get(name)) for name in ("lower_bounds", "upper_bounds"))
    if lower is None or lower != upper:
        return None
    try:
        return lower.decode()
    except UnicodeDecodeError:  # Cut inside a character, so it isn't a whole path.
        return None


def is_equality(delete: ManifestEntry) -> bool:
    """Whether it is an equality delete file, and not one of positions."""
    return bool(delete.raw["data_file"]["content"] == _EQUALITY_DELETES)


def _is_global(delete: ManifestEntry) -> bool:
    """Whether it is an equality delete of an unpartitioned spec: one whose fields, if any, are all void."""
    spec = json.loads(delete.manifest.get("partition-spec", "[]"))
    transforms = {field["transform"] for field in spec} if spec else set(delete.raw["data_file"]["partition"])
    return is_equality(delete) and transforms <= {"void"}


def _bound(bounds: list[dict[str, Any]] | None) -> bytes | None:
    return next((pair["value"] for pair in bounds or () if pair["key"] == _FILE_PATH), None)


def _comparable(value: Any) -> Any:  # noqa: ANN401  # a raw Avro value
    """Equal for values that may share a partition: NaN equals itself, and zero has no sign.

    Bytes are compared as numbers: a decimal has more bytes once its column was widened.
    """
    match value:
        case float():
            return "float", struct.pack("<d", value + 0.0)
        case bytes():
            return "bytes", int.from_bytes(value, "big", signed=True)
        case _:
            return value


def _may_hold(summaries: list[dict[str, Any]], values: tuple[Any, ...]) -> bool:
    return all(_may_be_within(value, summary) for value, summary in zip(values, summaries, strict=False))


def _may_be_within(value: Any, summary: dict[str, Any]) -> bool:  # noqa: ANN401  # a raw Avro value
    if value is None:
        return bool(summary["contains_null"])
    return type(value) not in _ORDERED or not _are_apart((value, value), summary)


def _ends(values: Sequence[Any]) -> tuple[Any, Any] | None:
    """The lowest and the highest of ``values``; None if they have no order here, or one is null."""
    kinds = {type(value) for value in values}
    return (min(values), max(values)) if len(kinds) == 1 and kinds <= _ORDERED else None


def _are_apart(ends: tuple[Any, Any], summary: dict[str, Any]) -> bool:
    """Whether everything between ``ends`` is outside the manifest's bounds."""
    lower, upper = summary.get("lower_bound"), summary.get("upper_bound")
    if lower is None or upper is None:
        return False
    lowest, highest = ends
    if isinstance(lowest, str):
        return bool(highest.encode() < bytes(lower) or lowest.encode() > bytes(upper))
    first, last = (int.from_bytes(bound, "little", signed=True) for bound in (lower, upper))
    return bool(highest < first or lowest > last)
