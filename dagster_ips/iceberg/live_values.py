"""The values of a few columns in the rows of data files that delete files don't hide: these are read, too."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.change_set import DataFile
from dagster_ips.iceberg.delete_reach import applying_to, is_equality
from dagster_ips.iceberg.file_values import Columns, DistinctRows, Row, Unreadable, ValuesReader, guarded
from dagster_ips.iceberg.late import compute, parquet, pyroaring
from dagster_ips.iceberg.manifests import Content, ManifestEntry, content_of, read_live_entries, read_live_manifests
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage

_PUFFIN = "PUFFIN"
_BEFORE_BITMAP, _AFTER_BITMAP = 8, 4
"""A deletion vector's length and magic number, and its checksum: Puffin spec, "deletion-vector-v1"."""


def live_values(
    storage: Storage,
    source: TableMetadata,
    head: Snapshot,
    paths: Collection[str],
    columns_of: Callable[[DataFile], Columns],
) -> Iterator[tuple[DataFile, DistinctRows | Unreadable]]:
    """The values in those of the files ``paths``, live at ``head``, that delete files apply to.

    Raises:
        MetadataUnreadableError: a manifest can't be read.
        CatalogUnreachableError: the storage did not answer.
    """
    rows = read_live_manifests(storage, head, table=source.table)

    def entries(content: Content) -> Iterable[ManifestEntry]:
        for row in rows:
            if content_of(row) is content:
                yield from read_live_entries(storage, row, table=source.table)

    deletes = list(entries(Content.DELETES)) if paths else []
    for data in entries(Content.DATA) if deletes else ():
        if data.path in paths and (applying := _applying(deletes, data)):
            file = data.data_file()
            yield file, _live(storage, source, file, applying, columns_of(file))


def _applying(deletes: Sequence[ManifestEntry], data: ManifestEntry) -> list[ManifestEntry]:
    """Source: Iceberg table spec, "Scan Planning"."""
    number = data.sequence_number
    return [
        each
        for each in applying_to(deletes, [data])
        if each.sequence_number > number or (each.sequence_number == number and not is_equality(each))
    ]


def _live(
    storage: Storage, source: TableMetadata, file: DataFile, deletes: Sequence[ManifestEntry], columns: Columns
) -> DistinctRows | Unreadable:
    gone: set[int] = set()
    equal: list[tuple[tuple[str, ...], AbstractSet[Row]]] = []
    for delete in deletes:
        if not is_equality(delete):
            at = guarded(storage, delete.path, lambda delete=delete: _positions(storage, source, delete, file.path))  # type: ignore[misc]
            if isinstance(at, Unreadable):
                return at
            gone |= at
            continue
        ids = set(delete.raw["data_file"].get("equality_ids") or ())
        names = tuple(name for name, column in source.columns.items() if column.field_id in ids)
        if len(names) < len(ids):
            return Unreadable("a delete file is by a column that isn't supported")
        read = ValuesReader(storage, source, Columns(names, ())).of(delete.data_file())
        if isinstance(read, Unreadable):
            return read
        equal.append((names, read.rows))
    wanted = tuple(dict.fromkeys((*columns.names, *(name for names, _ in equal for name in names))))
    # Deleted values aren't truncated, so those that they are compared with mustn't be.
    every = Columns(wanted, () if equal else columns.by_minute)
    values = ValuesReader(storage, source, every).of(file, without=gone)
    if isinstance(values, Unreadable):
        return values
    by_name = [dict(zip(wanted, row, strict=True)) for row in values.rows]
    left = [row for row in by_name if not any(tuple(row[name] for name in names) in rows for names, rows in equal)]
    return DistinctRows(frozenset(tuple(row[name] for name in columns.names) for row in left), values.size_bytes)


def _positions(storage: Storage, source: TableMetadata, delete: ManifestEntry, path: str) -> set[int]:
    """The positions in the data file at ``path`` whose rows a position delete file or a deletion vector hides."""
    raw = delete.raw["data_file"]
    with storage.open(delete.path, table=source.table) as stream:
        if str(raw.get("file_format")).upper() == _PUFFIN:
            stream.seek(raw["content_offset"])
            blob = stream.read(raw["content_size_in_bytes"])
            return set(pyroaring.BitMap64.deserialize(blob[_BEFORE_BITMAP:-_AFTER_BITMAP]))
        found: set[int] = set()
        for batch in parquet.ParquetFile(stream).iter_batches(columns=["file_path", "pos"], use_threads=False):
            found.update(batch.filter(compute.equal(batch.column("file_path"), path)).column("pos").to_pylist())
        return found
