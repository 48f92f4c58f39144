"""PyIceberg and what reads files, imported on first use. Only annotations name their classes directly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_ips._late import LateModule

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy
    from pyarrow import compute, fs, parquet
    from pyiceberg import catalog, conversions, io, schema, types
    from pyiceberg.catalog import sql
    from pyiceberg.io import pyarrow as pyarrow_io
    from pyiceberg.utils import config
else:
    pa, compute, fs, parquet = (
        LateModule(name) for name in ("pyarrow", "pyarrow.compute", "pyarrow.fs", "pyarrow.parquet")
    )
    catalog, conversions, io, schema, types = (
        LateModule(f"pyiceberg.{name}") for name in ("catalog", "conversions", "io", "schema", "types")
    )
    sql, sqlalchemy = LateModule("pyiceberg.catalog.sql"), LateModule("sqlalchemy")
    pyarrow_io, config = LateModule("pyiceberg.io.pyarrow"), LateModule("pyiceberg.utils.config")

__all__ = [
    "catalog",
    "compute",
    "config",
    "conversions",
    "fs",
    "io",
    "pa",
    "parquet",
    "pyarrow_io",
    "schema",
    "sql",
    "sqlalchemy",
    "types",
]
