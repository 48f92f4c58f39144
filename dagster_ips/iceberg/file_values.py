"""The values of a few columns in data files, read from the files if their manifests don't say.

Only Parquet files are read, and only the columns asked for. What was read is cached, as data files never change.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_ips.core.change_set import DataFile
from dagster_ips.core.ranges import Bound
from dagster_ips.errors import UnsupportedTableError
from dagster_ips.iceberg.column_ranges import is_ordered
from dagster_ips.iceberg.late import compute, pa, parquet, types
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage

if TYPE_CHECKING:
    from pyiceberg.types import NestedField

_LOG = logging.getLogger(__name__)
_FIELD_ID = b"PARQUET:field_id"
_NAME_MAPPING = "schema.name-mapping.default"
_BATCH_ROWS = 131_072
_AT_ONCE = 8
_MOST_KEPT = 2_000_000
_WHOLE_MINUTES_SINCE = dt.datetime(1972, 5, 1)  # noqa: DTZ001  # compared with times of either kind, as those of UTC
"""Since then, every zone is whole minutes from UTC, so partitions begin and end at whole minutes in either."""

Row = tuple[Bound | None, ...]
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Columns:
    """Top-level columns to read, and those of them whose times are truncated to the minute."""

    names: tuple[str, ...]
    by_minute: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DistinctRows:
    """The distinct rows of the columns. ``size_bytes`` were read to find them."""

    rows: frozenset[Row]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why a file's values are unknown."""

    cause: str


NOT_YET = Unreadable("it hasn't been read yet")
"""There was no time to read it in this tick."""


def read_values(
    storage: Storage, source: TableMetadata, files: Sequence[DataFile], columns: Columns, *, later: Collection[str]
) -> Mapping[str, DistinctRows | Unreadable]:
    """The values of ``columns`` in each of ``files``, by path.

    With a patient storage, none of the files ``later`` is begun once its patience has ended: these are ``NOT_YET``.

    Raises:
        CatalogUnreachableError: the storage did not answer.
    """
    started, reader = time.monotonic(), ValuesReader(storage, source, columns)
    seconds = storage.patience.seconds if storage.patience else None

    def read(file: DataFile) -> DistinctRows | Unreadable:
        if (kept := _KEPT.get(reader.key_of(file))) is not None:
            return kept
        is_late = seconds is not None and file.path in later and time.monotonic() - started > seconds
        found = NOT_YET if is_late else reader.of(file)
        if isinstance(found, DistinctRows):
            _KEPT.put(reader.key_of(file), found)
            sizes.append(found.size_bytes)
        return found

    sizes: list[int] = []
    with ThreadPoolExecutor(min(_AT_ONCE, max(len(files), 1))) as pool:
        values = dict(zip([file.path for file in files], pool.map(read, files), strict=True))
    if sizes:
        what = f"{', '.join(columns.names)} of {len(sizes):,} files of {source.table}, {sum(sizes):,} bytes"
        _LOG.info(
            "read %s in %.1f s, because their metadata doesn't show which partitions their rows belong to",
            what,
            time.monotonic() - started,
        )
    return values


def known_values(source: TableMetadata, file: DataFile, columns: Columns) -> DistinctRows | None:
    """What was read of the file before; None if nothing was."""
    return _KEPT.get(_key_of(source, file, columns))


def guarded(storage: Storage, path: str, read: Callable[[], _Read]) -> _Read | Unreadable:
    """What ``read`` gives, which reads the file at ``path``.

    Raises:
        CatalogUnreachableError: the storage did not answer.
    """
    try:
        return storage.answer(f"reading {path}", read)
    except FileNotFoundError:
        return Unreadable("it no longer exists")
    except UnsupportedTableError:
        return Unreadable("its path contains # or ?")
    except (OSError, pa.ArrowException, ValueError, OverflowError, TypeError, AttributeError) as error:
        # The last two: its values are of another type than the column. The error's text may contain addresses.
        return Unreadable(f"it can't be read ({type(error).__name__})")


@dataclass(frozen=True)
class ValuesReader:
    """Reads the values of ``columns`` from data files, and from the delete files that hold values."""

    storage: Storage
    source: TableMetadata
    columns: Columns

    def key_of(self, file: DataFile) -> tuple[object, ...]:
        """What the values in a file depend on, apart from ``without``."""
        return _key_of(self.source, file, self.columns)

    def of(self, file: DataFile, *, without: AbstractSet[int] = frozenset()) -> DistinctRows | Unreadable:
        """The values in the rows of the file, except those at the positions ``without``."""
        fields = [self.source.columns.get(column) for column in self.columns.names]
        if strange := [c for c, f in zip(self.columns.names, fields, strict=True) if f is None or not is_ordered(f)]:
            return Unreadable(f"the type of {', '.join(strange)} isn't supported")
        if file.file_format != "PARQUET":
            return Unreadable(f"its format is {file.file_format}, but only Parquet files can be read for this")
        known = [field for field in fields if field is not None]
        return guarded(self.storage, file.path, lambda: self._read(file, known, without))

    def _read(
        self, file: DataFile, fields: Sequence[NestedField], without: AbstractSet[int]
    ) -> DistinctRows | Unreadable:
        with self.storage.open(file.path, table=self.source.table) as stream:
            # In nanoseconds, which is the default, years beyond 2262 would become others.
            opened = parquet.ParquetFile(stream, coerce_int96_timestamp_unit="us")
            names = _names(opened.schema_arrow, self.source)
            if names is None:
                return Unreadable("its columns have no field ids, and the table has no schema.name-mapping.default")
            there = [names.get(field.field_id) for field in fields]
            constants = [_of_missing(field) for field in fields]
            wanted = list(dict.fromkeys(name for name in there if name is not None))
            cut = [name for name, field in zip(there, fields, strict=True) if field.name in self.columns.by_minute]
            rows: set[Row] = set()
            if not wanted and opened.metadata.num_rows > len(without):
                rows.add(tuple(constants))
            begin = 0
            for batch in opened.iter_batches(_BATCH_ROWS, columns=wanted, use_threads=False) if wanted else ():
                places, begin = range(begin, begin + batch.num_rows), begin + batch.num_rows
                live = batch.filter(pa.array([place not in without for place in places])) if without else batch
                found = _distinct(live.select(wanted), cut=cut)
                columns = [
                    repeat(constant) if name is None else [_as_declared(value, field) for value in found[name]]
                    for name, constant, field in zip(there, constants, fields, strict=True)
                ]
                rows.update(zip(*columns, strict=False))
            return DistinctRows(frozenset(rows), _size_of(opened, set(wanted)))


def _names(schema: pa.Schema, source: TableMetadata) -> Mapping[int, str] | None:
    """The file's top-level columns by field id; None if their field ids are unknown."""
    ids = {int(f.metadata[_FIELD_ID]): f.name for f in schema if f.metadata and _FIELD_ID in f.metadata}
    if ids:
        return ids
    mapping = source.properties.get(_NAME_MAPPING)
    if mapping is None:
        return None
    mapped = {name: each["field-id"] for each in json.loads(mapping) if "field-id" in each for name in each["names"]}
    return {mapped[name]: name for name in schema.names if name in mapped}


def _of_missing(field: NestedField) -> Bound | None:
    """What rows have in a column that was added after their file was written.

    Raises:
        ValueError: it is unknown how the default is written.
    """
    default = field.initial_default
    if default is not None and not isinstance(default, bool | int | float | str | dt.date | Decimal):
        message = "a default of an unknown type"
        raise ValueError(message)
    return default


def _distinct(batch: pa.RecordBatch, *, cut: Sequence[str | None]) -> Mapping[str, list[Any]]:
    """The distinct rows of ``batch``, column by column; times in the columns ``cut`` are truncated to the minute."""
    names = batch.schema.names
    plain = [_plain(column, by_minute=name in cut) for name, column in zip(names, batch.columns, strict=True)]
    table = pa.Table.from_arrays(plain, names=names)
    found = table.group_by(names, use_threads=False).aggregate([])
    return {name: found.column(name).to_pylist() for name in names}


def _plain(column: pa.Array, *, by_minute: bool) -> pa.Array:
    """The column with times in microseconds and without a dictionary."""
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    if not pa.types.is_timestamp(column.type):
        return column
    times = column.cast(pa.timestamp(column.type.unit))  # in UTC
    seconds = compute.floor_temporal(times, unit="second").cast(pa.timestamp("us"))
    if by_minute:
        earliest = compute.min(seconds).as_py()
        is_cut = earliest is not None and earliest >= _WHOLE_MINUTES_SINCE
        times = compute.floor_temporal(seconds, unit="minute") if is_cut else seconds
    times = times.cast(pa.timestamp("us"), safe=False)
    return times.cast(pa.timestamp("us", tz="UTC")) if column.type.tz else times


def _as_declared(value: Any, field: NestedField) -> Bound | None:  # noqa: ANN401  # of any primitive type
    """The value in the column's current type, which may be wider than when the file was written."""
    if value is None:
        return None
    match field.field_type:
        case types.TimestampType():
            if not isinstance(value, dt.datetime):
                return dt.datetime.combine(value, dt.time())
            return value.replace(tzinfo=None)
        case types.TimestamptzType():
            moment: dt.datetime = value
            return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
        case types.StringType():
            # Impala and old releases of Hive don't say that bytes are text.
            return value.decode() if isinstance(value, bytes) else str(value)
        case _:
            bound: Bound = value
            return bound


def _size_of(opened: parquet.ParquetFile, columns: set[str]) -> int:
    metadata = opened.metadata
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    chunks = [group.column(index) for group in groups for index in range(group.num_columns)]
    read = sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema in columns)
    return int(metadata.serialized_size + read)


def _key_of(source: TableMetadata, file: DataFile, columns: Columns) -> tuple[object, ...]:
    fields = [source.columns.get(column) for column in columns.names]
    kinds = [(field.field_id, str(field.field_type), field.initial_default) if field else None for field in fields]
    return (source.uuid, file.path, file.file_size_bytes, columns, *kinds)


class _ValuesCache:
    """The values that were read last, up to some number of rows."""

    def __init__(self) -> None:
        self._values: OrderedDict[tuple[object, ...], DistinctRows] = OrderedDict()
        self._rows = 0
        self._lock = threading.Lock()

    def get(self, key: tuple[object, ...]) -> DistinctRows | None:
        return self._values.get(key)

    def put(self, key: tuple[object, ...], values: DistinctRows) -> None:
        with self._lock:
            if key in self._values:
                return
            self._values[key] = values
            self._rows += len(values.rows) + 1
            while self._rows > _MOST_KEPT:
                _, gone = self._values.popitem(last=False)
                self._rows -= len(gone.rows) + 1


_KEPT = _ValuesCache()
