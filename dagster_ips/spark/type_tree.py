"""What Spark's types are made of."""

from __future__ import annotations

from dagster_ips.spark.late import types


def contains(kind: types.DataType, *wanted: type[types.DataType]) -> bool:
    """Whether the type is one of those that are ``wanted``, or contains one."""
    if isinstance(kind, wanted):
        return True
    match kind:
        case types.ArrayType():
            return contains(kind.elementType, *wanted)
        case types.MapType():
            return contains(kind.keyType, *wanted) or contains(kind.valueType, *wanted)
        case types.StructType():
            return any(contains(field.dataType, *wanted) for field in kind.fields)
        case _:
            return False
