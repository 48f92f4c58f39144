"""PyIceberg and what reads files, imported when it is used first. Only annotations name its classes directly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_ips._late import LateModule

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy
    from pyarrow import compute, parquet
    from pyiceberg import catalog, conversions, io, schema, types
    from pyiceberg.catalog import sql
else:
    pa, compute, parquet = (LateModule(name) for name in ("pyarrow", "pyarrow.compute", "pyarrow.parquet"))
    catalog, conversions, io, schema, types = (
        LateModule(f"pyiceberg.{name}") for name in ("catalog", "conversions", "io", "schema", "types")
    )
    sql, sqlalchemy = LateModule("pyiceberg.catalog.sql"), LateModule("sqlalchemy")

__all__ = [
    "catalog",
    "compute",
    "conversions",
    "io",
    "pa",
    "parquet",
    "schema",
    "sql",
    "sqlalchemy",
    "types",
]
