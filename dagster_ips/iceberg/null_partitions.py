"""Which columns Iceberg misreads, from metadata alone: by which partitions have null, of which texts a bound is cut.

Source: Iceberg table spec, "Manifest Lists", field summaries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.change_set import DataFile
from dagster_ips.core.columns import Path, type_text
from dagster_ips.core.misread_columns import ANY_TYPE, MisreadColumns
from dagster_ips.errors import MetadataUnreadableError
from dagster_ips.iceberg.column_ranges import has_partition_value, partition_value
from dagster_ips.iceberg.manifests import Content, ManifestRow, content_of, read_live_manifests
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage

NOTHING: Mapping[Path, str] = MappingProxyType({})


def misread_at(storage: Storage | None, table: TableMetadata, snapshot: Snapshot | None) -> MisreadColumns:
    """The misread columns of the rows of ``table`` at ``snapshot``; reads its manifest list if there are partitions.

    Where a manifest doesn't say so, and without ``storage`` or ``snapshot``, a partition may have null.
    """
    if not any(map(table.partition_sources, table.spec_ids)):
        return MisreadColumns(table.hidden_columns)
    return _misread(table, _nulls_at(storage, table, snapshot))


def misread_in(table: TableMetadata, files: Iterable[DataFile]) -> MisreadColumns:
    """The misread columns of the rows of ``files``, whose specs are those of ``table``."""
    files = list(files)
    sources = {spec_id: table.partition_sources(spec_id) for spec_id in table.spec_ids}
    return _misread(
        table,
        (
            (path, kind)
            for file in files
            for name, path, kind in sources[file.spec_id]
            if not has_partition_value(file, name) or partition_value(file, name) is None
        ),
        cut=_cut_texts(table, files),
    )


def _cut_texts(table: TableMetadata, files: Sequence[DataFile]) -> dict[Path, str]:
    """Texts that Iceberg can't compare, because a bound of them is cut inside a character, as ``hidden_columns``."""
    bounds = [each for file in files for each in (file.lower_bounds, file.upper_bounds)]
    texts = table.texts.items()
    return {path: ANY_TYPE for number, path in texts if any(_is_cut(each.get(number)) for each in bounds)}


def _is_cut(bound: bytes | None) -> bool:
    if bound is None or bound.isascii():
        return False
    try:
        bound.decode()
    except UnicodeDecodeError:
        return True
    return False


def _misread(
    table: TableMetadata, nulls: Iterable[tuple[Path, str]], cut: Mapping[Path, str] = NOTHING
) -> MisreadColumns:
    hidden = {**cut, **table.hidden_columns}
    found = {path: type_text(kind) for path, kind in nulls if path not in hidden and path[:1] not in hidden}
    return MisreadColumns(hidden, {path: found[path] for path in sorted(found)})


def _nulls_at(storage: Storage | None, table: TableMetadata, snapshot: Snapshot | None) -> Iterator[tuple[Path, str]]:
    try:
        rows = read_live_manifests(storage, snapshot, table=table.table) if storage and snapshot else None
    except MetadataUnreadableError:  # Spark says so if it reads the rows.
        rows = None
    if rows is None:
        yield from ((path, kind) for spec_id in table.spec_ids for _, path, kind in table.partition_sources(spec_id))
        return
    for row in rows:
        if content_of(row) is Content.DATA:
            yield from _nulls_in(row, table)


def _nulls_in(row: ManifestRow, table: TableMetadata) -> Iterator[tuple[Path, str]]:
    spec_id = int(row["partition_spec_id"])
    names = [each["name"] for each in table.spec(spec_id)]
    summaries = dict(zip(names, row.get("partitions") or (), strict=False))
    for name, path, kind in table.partition_sources(spec_id):
        if name not in summaries or summaries[name].get("contains_null") is not False:
            yield path, kind
