"""Creating the table that an asset writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from dagster_ips.core.ranges import quoted
from dagster_ips.core.write_mode import Merge, WriteMode
from dagster_ips.spark.branches import sql_name


@dataclass(frozen=True, slots=True)
class TableDescription:
    """How a target is laid out: partition and sort expressions in Spark SQL, and Iceberg table properties."""

    partition_by: Sequence[str] = ()
    sort_by: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    def tuned_for(self, write_mode: WriteMode) -> TableDescription:
        """With the properties that serve ``write_mode``, where the user didn't set them.

        A merged table keeps deletes beside its files: rewriting every file that holds an updated row costs more than
        the whole partition did (measured at 1.3 times a 14-day rewrite). Format version 1 can't.
        """
        if not isinstance(write_mode, Merge) or self.properties.get("format-version") == "1":
            return self
        return replace(self, properties=_MERGED | dict(self.properties))


_MERGED = {f"write.{change}.mode": "merge-on-read" for change in ("merge", "update", "delete")}


def create_table(session: SparkSession, catalog: str, table: str, frame: DataFrame, like: TableDescription) -> None:
    """Create ``table`` with ``frame``'s columns, empty; one that exists stays as it is.

    A partition expression that is the very name of a column is that column, whatever characters it has.
    """
    columns = ", ".join(f"{quoted(column.name)} {_sql_type(column.dataType)}" for column in frame.schema.fields)
    partition_by = [quoted(by) if by in frame.columns else by for by in like.partition_by]
    partitioned = f" PARTITIONED BY ({', '.join(partition_by)})" if partition_by else ""
    properties = ", ".join(f"{_text(key)} = {_text(value)}" for key, value in like.properties.items())
    tuned = f" TBLPROPERTIES ({properties})" if properties else ""
    name = sql_name(catalog, table)
    session.sql(f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING iceberg{partitioned}{tuned}")


def order_table(session: SparkSession, catalog: str, table: str, sort_by: Sequence[str]) -> None:
    """Have writes to ``table`` sorted; Iceberg has no way to say it as the table is created."""
    session.sql(f"ALTER TABLE {sql_name(catalog, table)} WRITE ORDERED BY {', '.join(sort_by)}")


def set_properties(session: SparkSession, catalog: str, table: str, properties: Mapping[str, str]) -> None:
    """Set properties of ``table``; others stay as they are."""
    listed = ", ".join(f"{_text(key)} = {_text(value)}" for key, value in properties.items())
    session.sql(f"ALTER TABLE {sql_name(catalog, table)} SET TBLPROPERTIES ({listed})")


def empty_frame(session: SparkSession, columns: str) -> DataFrame:
    """No rows of ``columns``, given as in SQL: ``"day DATE, plays BIGINT"``."""
    return session.createDataFrame([], columns)


def _sql_type(kind: DataType) -> str:
    """The type in SQL, names of fields quoted, as ``simpleString`` doesn't."""
    match kind:
        case StructType():
            return f"struct<{', '.join(f'{quoted(f.name)}: {_sql_type(f.dataType)}' for f in kind.fields)}>"
        case ArrayType():
            return f"array<{_sql_type(kind.elementType)}>"
        case MapType():
            return f"map<{_sql_type(kind.keyType)}, {_sql_type(kind.valueType)}>"
        case _:
            return kind.simpleString()


def _text(value: str) -> str:
    """A property's key or value, where only a plain literal may stand; ``${...}`` in it stays as it is."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")
    return f"'{escaped}'"
