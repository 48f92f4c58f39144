"""Names in whole statements, in which Spark replaces ``${...}`` everywhere, even in a quoted name."""

from __future__ import annotations

from dagster_ips.core.ranges import quoted
from dagster_ips.errors import UnsupportedTableError


def identifier(name: str, *, table: str) -> str:
    """``name``, of ``table`` or of one of its columns, quoted for a statement.

    Raises:
        UnsupportedTableError: Spark would read another name, which contains the value of one of its settings.

    Example:
        >>> identifier("odd`name", table="media.plays")
        '`odd``name`'

    Source: Spark SQL, ``spark.sql.variable.substitute``.
    """
    if "${" in name:
        raise UnsupportedTableError(
            table=table,
            problem=f"Spark reads the part of the name {name!r} after the dollar sign as one of its settings and would "
            "insert that setting's value, which may be a password",
            remedy="Rename it, or read it under another name.",
        )
    return quoted(name)
