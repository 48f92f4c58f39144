"""Creates the table that an asset writes, and lets it follow the asset's frame."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from dagster_ips.core.columns import (
    UNSTORABLE,
    VOID,
    Added,
    Column,
    Kind,
    ListOf,
    MapOf,
    Path,
    Struct,
    Widened,
    kinds_within,
    type_text,
)
from dagster_ips.core.partials_property import PARTIALS, partials_property
from dagster_ips.core.ranges import quoted
from dagster_ips.core.write_mode import WriteMode
from dagster_ips.errors import LayoutError
from dagster_ips.spark.branches import sql_name
from dagster_ips.spark.error_text import first_line
from dagster_ips.spark.identifiers import identifier
from dagster_ips.spark.late import errors, types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class TableDescription:
    """How a target is laid out: partition and sort expressions in Spark SQL, and Iceberg table properties."""

    partition_by: Sequence[str] = ()
    sort_by: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    def with_property(self, key: str, value: str) -> TableDescription:
        """A copy with one more property, whatever the user set it to."""
        return self.with_properties({key: value})

    def with_properties(self, properties: Mapping[str, str]) -> TableDescription:
        """A copy with these properties, whatever the user set them to; others stay as they are."""
        return replace(self, properties={**self.properties, **properties})

    def tuned_for(self, write_mode: WriteMode) -> TableDescription:
        """A copy with properties that suit ``write_mode``, if the user didn't set them, and what says how to read it.

        A merged table keeps deletes beside its files: rewriting every file that has an updated row costs more than
        rewriting the whole partition (measured: 1.3 times a 14-day rewrite). Format version 1 can't do that. In version
        2, delete files accumulate, and every reader of a data file opens all that apply to it; in version 3, a data
        file has at most one deletion vector. Each run leaves small files in every partition that it touches; a reader
        that counts each of them, and each of its deletes, as 4 MB, which is Iceberg's default, makes a task of every
        file.
        """
        partials = partials_property(write_mode)
        described = self if partials is None else self.with_property(PARTIALS, partials)
        if not write_mode.changes_rows_within_files or self.properties.get("format-version") == "1":
            return described
        return replace(described, properties=_MERGED | dict(described.properties))


_MERGED = {f"write.{change}.mode": "merge-on-read" for change in ("merge", "update", "delete")} | {
    "read.split.open-file-cost": "262144",
    "format-version": "3",
}


_ICEBERG_REFUSED = "org.apache.iceberg.exceptions.ValidationException"


def create_table(session: SparkSession, catalog: str, table: str, frame: DataFrame, like: TableDescription) -> None:
    """Create ``table`` with ``frame``'s columns, empty; an existing table stays as it is.

    A partition expression that is exactly the name of a column is that column, whatever characters it has.

    Raises:
        LayoutError: ``like`` names a column or transform that doesn't exist, or a property that Iceberg refuses.
    """
    like = _with_variants(table, columns_of(frame), like)
    name_of = partial(identifier, table=table)
    columns = ", ".join(
        f"{name_of(column.name)} {type_text(column.kind, name_of)}" for column in columns_of(frame).fields
    )
    partition_by = [quoted(by) if by in frame.columns else by for by in like.partition_by]
    partitioned = f" PARTITIONED BY ({', '.join(partition_by)})" if partition_by else ""
    tuned = f" TBLPROPERTIES ({_listed(like.properties)})" if like.properties else ""
    name = sql_name(catalog, table)
    with _declared_layout(table, frame.columns):
        session.sql(f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING iceberg{partitioned}{tuned}")


def _with_variants(table: str, columns: Struct, like: TableDescription) -> TableDescription:
    """``like`` with the format version that a variant among the columns needs."""
    variants = [each.name for each in columns.fields if "variant" in kinds_within(each.kind)]
    version = like.properties.get("format-version", "3")
    if variants and version in ("1", "2"):
        problem = f"column {variants[0]} holds a variant, which tables of format version {version} can't have"
        raise LayoutError(table=table, problem=problem, columns=tuple(each.name for each in columns.fields))
    return like.with_property("format-version", version) if variants else like


def drop_table(session: SparkSession, catalog: str, table: str) -> None:
    """Drop ``table``, with its files if the catalog and the table's properties allow that."""
    name = sql_name(catalog, table)
    try:
        session.sql(f"DROP TABLE IF EXISTS {name} PURGE")
    except errors.PySparkException:
        session.sql(f"DROP TABLE IF EXISTS {name}")


def order_table(session: SparkSession, catalog: str, table: str, sort_by: Sequence[str]) -> None:
    """Have writes to ``table`` sorted; Iceberg has no way to say so when the table is created.

    Raises:
        LayoutError: ``sort_by`` names something that doesn't exist or isn't understood.
    """
    with _declared_layout(table):
        session.sql(f"ALTER TABLE {sql_name(catalog, table)} WRITE ORDERED BY {', '.join(sort_by)}")


@contextlib.contextmanager
def _declared_layout(table: str, columns: Sequence[str] = ()) -> Iterator[None]:
    try:
        yield
    except errors.PySparkException as error:
        # Spark has no error class of its own for what Iceberg's own validation refuses.
        refused = (errors.AnalysisException, errors.UnsupportedOperationException, errors.IllegalArgumentException)
        if not isinstance(error, refused) and _ICEBERG_REFUSED not in str(error):
            raise
        problem = first_line(error).removeprefix(f"({_ICEBERG_REFUSED}) ").removesuffix(" in:")
        raise LayoutError(table=table, problem=problem.rstrip(";:."), columns=tuple(columns)) from error


def set_properties(session: SparkSession, catalog: str, table: str, properties: Mapping[str, str]) -> None:
    """Set properties of ``table``; others stay as they are."""
    session.sql(f"ALTER TABLE {sql_name(catalog, table)} SET TBLPROPERTIES ({_listed(properties)})")


def columns_of(frame: DataFrame) -> Struct:
    """The frame's columns, with the types that Iceberg stores them as."""
    return _struct(frame.schema)


def unset_properties(session: SparkSession, catalog: str, table: str, names: Collection[str]) -> None:
    """Remove properties of ``table``."""
    listed = ", ".join(map(_text, sorted(names)))
    session.sql(f"ALTER TABLE {sql_name(catalog, table)} UNSET TBLPROPERTIES IF EXISTS ({listed})")


def as_columns(frame: DataFrame, columns: Struct) -> DataFrame:
    """``frame``, which fits ``columns``, with their types, and with nested fields named and ordered as there.

    What is compared with rows of a table must have this form, as structs are compared by position. A frame that has the
    same types already is returned unchanged.
    """
    kinds = {column.name.lower(): column.kind for column in columns.fields}
    if all(kinds.get(each.name.lower()) == each.kind for each in columns_of(frame).fields):
        return frame
    text = ", ".join(f"{quoted(each.name)} {type_text(each.kind, quoted)}" for each in columns.fields)
    return frame.to(empty_frame(frame.sparkSession, text).schema)


def with_nested_keys_as_in(columns: Struct, frame: DataFrame, keys: Collection[str]) -> DataFrame:
    """``frame`` with those of its columns ``keys`` that are nested in the form that they have in ``columns``.

    A table's fields stay in their order when those of its source move, and structs are compared by position. If no key
    is nested, Spark isn't asked for anything.
    """
    nested = {each.name.lower(): each.kind for each in columns.fields if not isinstance(each.kind, str)}
    wanted = {key.lower() for key in keys} & set(nested)
    if not wanted:
        return frame
    own = columns_of(frame).fields
    kinds = [nested[each.name.lower()] if each.name.lower() in wanted else each.kind for each in own]
    return as_columns(frame, Struct(tuple(Column(each.name, kind) for each, kind in zip(own, kinds, strict=True))))


def is_case_sensitive(session: SparkSession) -> bool:
    """Whether Spark distinguishes columns whose names differ only in case."""
    return str(session.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"


def add_columns(session: SparkSession, catalog: str, table: str, added: Sequence[Added]) -> None:
    """Give ``table`` the columns, and fields of nested ones, at the end; in existing rows they are null."""
    name_of = partial(identifier, table=table)
    columns = ", ".join(f"{_column(each.path, table)} {type_text(each.kind, name_of)}" for each in added)
    session.sql(f"ALTER TABLE {sql_name(catalog, table)} ADD COLUMNS ({columns})")


def drop_columns(session: SparkSession, catalog: str, table: str, paths: Sequence[Path]) -> None:
    """Drop columns, and fields of nested ones; if they are its newest, the table has the schema from before them."""
    names = ", ".join(_column(path, table) for path in paths)
    session.sql(f"ALTER TABLE {sql_name(catalog, table)} DROP COLUMNS {names}")


def widen_column(session: SparkSession, catalog: str, table: str, widened: Widened) -> None:
    """Give a column of ``table`` a type that holds every value it has."""
    name, kind = _column(widened.path, table), type_text(widened.kind)
    session.sql(f"ALTER TABLE {sql_name(catalog, table)} ALTER COLUMN {name} TYPE {kind}")


def _column(path: Path, table: str) -> str:
    return ".".join(identifier(part, table=table) for part in path)


def empty_frame(session: SparkSession, columns: str) -> DataFrame:
    """A frame without rows; ``columns`` are given as in SQL: ``"day DATE, plays BIGINT"``."""
    return session.createDataFrame([], columns)


def _struct(kind: types.StructType) -> Struct:
    return Struct(tuple(Column(field.name, _kind(field.dataType)) for field in kind.fields))


def _kind(kind: types.DataType) -> Kind:
    match kind:
        case types.StructType():
            return _struct(kind)
        case types.ArrayType():
            return ListOf(_kind(kind.elementType))
        case types.MapType():
            return MapOf(_kind(kind.keyType), _kind(kind.valueType))
        case types.DecimalType():
            return f"decimal({kind.precision}, {kind.scale})"
        case types.StringType() | types.CharType() | types.VarcharType():
            return "string"
        case _:
            return _ICEBERG.get(kind.typeName(), UNSTORABLE + kind.simpleString())


_ICEBERG = {
    "void": VOID,
    "boolean": "boolean",
    "byte": "int",
    "short": "int",
    "integer": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
    "variant": "variant",
}
"""Spark's type names, and Iceberg's for the same types."""


def _listed(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{_text(key)} = {_text(value)}" for key, value in properties.items())


def _text(value: str) -> str:
    """A property's key or value, where only a plain literal is allowed; ``${...}`` in it stays as it is."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")
    return f"'{escaped}'"
