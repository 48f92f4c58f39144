"""Finds which keys of an upstream the rows of its files have: from manifests, or else from the files themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.change_set import DataFile
from dagster_ips.core.partition_keys import KeysFound, PartitionKeys, Slicing, Span
from dagster_ips.iceberg.file_spans import span
from dagster_ips.iceberg.file_values import Columns, DistinctRows, Unreadable, known_values, read_values
from dagster_ips.iceberg.live_values import live_values
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage

_SHOWN = 5
_NO_KEYS = "its values have a type that has no partition keys"


@dataclass(frozen=True, slots=True)
class Stray:
    """Examples from a data file of what belongs to no partition: values without a key, and keys without a partition."""

    values: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FoundKeys:
    """The ``keys`` of files' rows, whether or not they have a partition.

    ``unread`` maps the path of each file that may have rows of other keys to the reason.
    """

    keys: frozenset[str] = frozenset()
    unread: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeysOfRows:
    """The keys of a file's rows; ``unread`` says why its rows may have other keys too, if they may."""

    found: KeysFound
    unread: str = ""


@dataclass(frozen=True)
class FileKeys:
    """Finds which of the upstream's keys the rows of a file have."""

    storage: Storage
    source: TableMetadata
    slicing: Slicing
    _told: dict[tuple[Span, ...], KeysFound] = field(default_factory=dict)
    _read: dict[str, KeysOfRows] = field(default_factory=dict)

    @property
    def keys(self) -> PartitionKeys:
        """How the upstream's rows are divided."""
        return self.slicing.upstream_keys

    def of(self, file: DataFile) -> KeysFound:
        """The keys by the file's partition values and bounds, or by what was read of it earlier; nothing is read."""
        if not file.record_count:
            return KeysFound(frozenset())
        spans = self._spans(file)
        if spans not in self._told:
            self._told[spans] = self.keys.of_file(spans)
        told = self._told[spans]
        known = None if told.is_exact else known_values(self.source, file, self._unknown(spans))
        return told if known is None else self._of_values(spans, known)

    def is_by_partition(self, file: DataFile) -> bool:
        """Whether the file's partition values determine its rows' keys."""
        return all(each.is_exact for each in self._spans(file))

    def each(self, files: Iterable[DataFile], *, live: Collection[str]) -> Mapping[str, KeysOfRows]:
        """What is known about each of ``files``, by path; a file is read if its metadata doesn't say enough.

        ``live`` are the paths of the files that can still be read later.
        """
        unsure: dict[tuple[str, ...], list[DataFile]] = {}
        every = list(files)
        for file in every:
            if file.path not in self._read:
                self._read[file.path] = KeysOfRows(self.of(file))
                if not self._read[file.path].found.is_exact:
                    unsure.setdefault(self._unknown(self._spans(file)).names, []).append(file)
        for of_some in unsure.values():
            # Files that aren't live can't be read later, so they come first.
            ordered = sorted(of_some, key=lambda file: file.path in live)
            columns = self._unknown(self._spans(of_some[0]))
            values = read_values(self.storage, self.source, ordered, columns, later=live)
            self._read.update({file.path: self._told_by(file, values[file.path]) for file in of_some})
        return {file.path: self._read[file.path] for file in every}

    def read(self, files: Iterable[DataFile], *, live: Collection[str] = ()) -> FoundKeys:
        """What is known about all of ``files`` together, as in ``each``."""
        told = self.each(files, live=live)
        unread = {path: each.unread for path, each in told.items() if each.unread}
        keys = frozenset[str]().union(*[each.found.keys for each in told.values() if each.found.keys is not None])
        return FoundKeys(keys, unread)

    def strays(self, files: Iterable[DataFile], *, live: Collection[str] = ()) -> Mapping[str, Stray]:
        """Those of ``files`` that are known to hold rows of no partition, by path; they are read as in ``each``."""
        return self._strays(self.each(files, live=live))

    def strays_left(self, strays: Mapping[str, Stray], head: Snapshot) -> Mapping[str, Stray]:
        """Those of ``strays`` whose rows of no partition aren't all hidden by delete files at ``head``.

        If a file or its delete files can't be read, it is one.
        """
        told = {}
        for file, read in live_values(self.storage, self.source, head, strays.keys(), self._columns_of):
            known = self._told_by(file, read)
            if not known.unread:
                told[file.path] = known
        return {path: each for path, each in strays.items() if path not in told} | self._strays(told)

    def _strays(self, told: Mapping[str, KeysOfRows]) -> dict[str, Stray]:
        lost = self.slicing.lost(frozenset[str]().union(*[each.found.keys or () for each in told.values()]))
        found = {
            path: Stray(each.found.unmapped[:_SHOWN], tuple(sorted(lost & (each.found.keys or frozenset()))[:_SHOWN]))
            for path, each in told.items()
        }
        return {path: stray for path, stray in found.items() if stray != Stray()}

    def _told_by(self, file: DataFile, read: DistinctRows | Unreadable) -> KeysOfRows:
        found = self._of_values(self._spans(file), read) if isinstance(read, DistinctRows) else self.of(file)
        cause = read.cause if isinstance(read, Unreadable) else _NO_KEYS
        return KeysOfRows(found, cause if found.keys is None else "")

    def _spans(self, file: DataFile) -> tuple[Span, ...]:
        return tuple(span(file, self.source, column) for column in self.keys.columns)

    def _columns_of(self, file: DataFile) -> Columns:
        return self._unknown(self._spans(file))

    def _unknown(self, spans: Sequence[Span]) -> Columns:
        """The columns that aren't known to have a single value in the file."""
        names = [c for c, each in zip(self.keys.columns, spans, strict=True) if len(each.values or ()) != 1]
        return Columns(tuple(names), tuple(name for name in names if name in self.keys.by_minute))

    def _of_values(self, spans: Sequence[Span], read: DistinctRows) -> KeysFound:
        read_columns, order = self._unknown(spans).names, self.keys.columns
        fixed = tuple(
            each.values[0] for c, each in zip(order, spans, strict=True) if c not in read_columns and each.values
        )
        names = (*read_columns, *[c for c in order if c not in read_columns])
        places = [names.index(column) for column in order]
        return self.keys.of_values({tuple((*row, *fixed)[place] for place in places) for row in read.rows})
