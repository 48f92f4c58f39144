"""PyIceberg and what reads files, imported on first use. Only annotations name their classes directly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_ips._late import LateModule

if TYPE_CHECKING:
    import pyarrow as pa
    import pyroaring
    import sqlalchemy
    from pyarrow import compute, fs, parquet
    from pyiceberg import catalog, conversions, io, manifest, schema, types
    from pyiceberg.catalog import sql
    from pyiceberg.io import pyarrow as pyarrow_io
    from pyiceberg.utils import config, schema_conversion
else:
    pa, compute, fs, parquet = (
        LateModule(name) for name in ("pyarrow", "pyarrow.compute", "pyarrow.fs", "pyarrow.parquet")
    )
    catalog, conversions, io, manifest, schema, types = (
        LateModule(f"pyiceberg.{name}") for name in ("catalog", "conversions", "io", "manifest", "schema", "types")
    )
    pyroaring = LateModule("pyroaring")
    sql, sqlalchemy = LateModule("pyiceberg.catalog.sql"), LateModule("sqlalchemy")
    pyarrow_io = LateModule("pyiceberg.io.pyarrow")
    config, schema_conversion = (LateModule(f"pyiceberg.utils.{name}") for name in ("config", "schema_conversion"))

__all__ = [
    "catalog",
    "compute",
    "config",
    "conversions",
    "fs",
    "io",
    "manifest",
    "pa",
    "parquet",
    "pyarrow_io",
    "pyroaring",
    "schema",
    "schema_conversion",
    "sql",
    "sqlalchemy",
    "types",
]
