"""What a user says about an asset: which inputs it reads incrementally, and how its table is written.

All of it ends up as plain JSON in Dagster's own metadata, so it shows in the UI and joins with other metadata by ``|``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from dagster_ips.core.write_mode import Append, Merge, OverwritePartitions, Replace, WriteMode
from dagster_ips.errors import DeclarationError
from dagster_ips.spark.targets import TableDescription

TABLE_NAME = "dagster/table_name"
INCREMENTAL = "dagster_ips/incremental"
WRITE = "dagster_ips/write"
TABLE = "dagster_ips/table"
OUTSIDE = "dagster_ips/outside"


def iceberg_asset(
    key: dg.AssetKey | Sequence[str] | str,
    *,
    table: str,
    io_manager_key: str = "io_manager",
    **attributes: Any,  # noqa: ANN401  # AssetSpec's own
) -> dg.AssetSpec:
    """An Iceberg table that is written by an outside job, as an asset; a sensor watches it for new snapshots.

    ``table`` is its name in the catalog, ``attributes`` go to ``AssetSpec`` (group_name, owners, description, …).

    Example:
        >>> iceberg_asset("playback", table="media.playback").metadata["dagster/table_name"]
        'media.playback'
    """
    if not table.rpartition(".")[0]:
        problem = f"table={table!r} has no namespace."
        raise DeclarationError(asset=str(key), problem=problem, remedy='Name it with one, as in "media.playback".')
    metadata = {**attributes.pop("metadata", {}), TABLE_NAME: table, OUTSIDE: True}
    kinds = {"iceberg", *attributes.pop("kinds", ())}
    return dg.AssetSpec(key, metadata=metadata, kinds=kinds, **attributes).with_io_manager_key(io_manager_key)


def incremental(
    key: dg.AssetKey | Sequence[str] | str | None = None,
    *,
    ranges: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
) -> dg.AssetIn:
    """An input of which only the change since the last run is read.

    ``key`` is the upstream asset, by default the parameter's name; ``ranges`` are the columns whose change range the
    asset wants in ``IcdcView.ranges`` and ``parameters``.

    Example:
        >>> incremental(ranges=["event_date"]).metadata
        {'dagster_ips/incremental': {'ranges': ['event_date']}}
    """
    return dg.AssetIn(key=key, metadata={**(metadata or {}), INCREMENTAL: {"ranges": _names(ranges, "ranges")}})


def append(dedup_on: Sequence[str] = ()) -> dict[str, Any]:
    """Write by adding rows; with ``dedup_on``, one row per key and none whose key the table already has.

    Example:
        >>> append(dedup_on=["event_id"])
        {'dagster_ips/write': {'mode': 'append', 'dedup_on': ['event_id']}}
    """
    return {WRITE: {"mode": "append", "dedup_on": _names(dedup_on, "dedup_on")}}


def merge(on: Sequence[str], latest_by: str | None = None) -> dict[str, Any]:
    """Write by key: update rows that differ, insert new ones. ``latest_by`` decides between rows of one key.

    Example:
        >>> merge(on=["event_date", "account_id"])
        {'dagster_ips/write': {'mode': 'merge', 'on': ['event_date', 'account_id'], 'latest_by': None}}
    """
    columns = _names(on, "on")
    if not columns:
        remedy = "Name the columns that identify a row, as in merge(on=['account_id'])."
        raise DeclarationError(asset="merge()", problem="it has no key column.", remedy=remedy)
    return {WRITE: {"mode": "merge", "on": columns, "latest_by": latest_by}}


def overwrite_partitions() -> dict[str, Any]:
    """Write by replacing exactly the affected partitions of a table partitioned by plain columns."""
    return {WRITE: {"mode": "overwrite_partitions"}}


def replace() -> dict[str, Any]:
    """Write by replacing all rows: what an asset without a write mode does."""
    return {WRITE: {"mode": "replace"}}


def table(
    name: str | None = None,
    *,
    partition_by: Sequence[str] = (),
    sort_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The table that the first write creates: its name, Spark SQL partition and sort expressions, table properties.

    Without ``name`` it is the asset's key. A table that exists keeps its layout.

    Example:
        >>> table("media.daily", partition_by=["event_date"])["dagster/table_name"]
        'media.daily'
    """
    described = {
        "partition_by": _names(partition_by, "partition_by"),
        "sort_by": _names(sort_by, "sort_by"),
        "properties": dict(properties or {}),
    }
    return {TABLE: described} | ({TABLE_NAME: name} if name else {})


def write_mode_of(metadata: Mapping[str, Any], asset: str) -> WriteMode | None:
    """The write mode in an asset's metadata; None if it says none.

    Raises:
        DeclarationError: it names no mode that exists.
    """
    value = plain(metadata.get(WRITE))
    match value:
        case None:
            return None
        case {"mode": "append", "dedup_on": dedup_on}:
            return Append(tuple(dedup_on))
        case {"mode": "merge", "on": on, "latest_by": latest_by}:
            return Merge(tuple(on), latest_by)
        case {"mode": "overwrite_partitions"}:
            return OverwritePartitions()
        case {"mode": "replace"}:
            return Replace()
        case _:
            remedy = "Use append(), merge(), overwrite_partitions() or replace()."
            raise DeclarationError(asset=asset, problem=f"its write mode {value!r} is not one.", remedy=remedy)


def description_of(metadata: Mapping[str, Any]) -> TableDescription:
    """What ``table()`` said in an asset's metadata; nothing said gives an unpartitioned table."""
    value = plain(metadata.get(TABLE)) or {}
    return TableDescription(
        tuple(value.get("partition_by", ())), tuple(value.get("sort_by", ())), value.get("properties", {})
    )


def table_of(key: dg.AssetKey, metadata: Mapping[str, Any], default_namespace: str) -> str:
    """The asset's table: what the metadata says, else its key, in ``default_namespace`` if that has but one part."""
    named = plain(metadata.get(TABLE_NAME))
    if named:
        return str(named)
    return ".".join(key.path) if len(key.path) > 1 else f"{default_namespace}.{key.path[0]}"


def plain(value: Any) -> Any:  # noqa: ANN401  # metadata values are of any kind
    """A metadata value as it was given, also after Dagster wrapped it."""
    return value.value if isinstance(value, dg.MetadataValue) else value


def _names(columns: Sequence[str], parameter: str) -> list[str]:
    if isinstance(columns, str):
        problem = f"{parameter}={columns!r} is one string, which would be taken letter by letter."
        raise DeclarationError(asset=parameter, problem=problem, remedy=f"Write {parameter}=[{columns!r}].")
    return list(columns)
