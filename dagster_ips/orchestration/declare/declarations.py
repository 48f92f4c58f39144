"""What a user declares about an asset: which inputs it reads incrementally, and how its table is written.

All of it is stored as plain JSON in Dagster's metadata, so the UI shows it, and ``|`` combines it with other metadata.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace as changed
from enum import StrEnum
from itertools import chain
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import dagster as dg

from dagster_ips.core.aggregates import HIDDEN, WEIGHT, parse_aggregate
from dagster_ips.core.ancestry import MAIN
from dagster_ips.core.history_place import Everywhere, Start, parse_start
from dagster_ips.core.limits import Limits
from dagster_ips.core.policy import InputPolicies, OnExpired, OnRemoved, OnRollback, OnUnmapped
from dagster_ips.core.table_name import name_of, parts_of
from dagster_ips.core.valid_through import EventTime
from dagster_ips.core.write_mode import Append, ByQuery, Combine, Merge, OverwritePartitions, Replace, WriteMode
from dagster_ips.errors import DeclarationError
from dagster_ips.orchestration.declare.argument_types import is_whole_number, require_duration, require_text
from dagster_ips.orchestration.declare.asset_keys import AssetName, asset_key_of
from dagster_ips.spark.targets import TableDescription

TABLE_NAME = "dagster/table_name"
IO_MANAGER_KEY = "dagster/io_manager_key"
INCREMENTAL = "dagster_ips/incremental"
WRITE = "dagster_ips/write"
TABLE = "dagster_ips/table"
DATA_VERSION_TAG = "dagster/data_version"
OUTSIDE = "dagster_ips/outside"
EVENT_TIME = "dagster_ips/event_time"
LOOKUP = "dagster_ips/lookup"
TRUSTED = "dagster_ips/trusted"
TARGET_LAG = "dagster_ips/target_lag_seconds"
USUAL_LAG = dt.timedelta(hours=1)
_ALWAYS = "always"
_Storage: TypeAlias = Literal["merged", "partials"]


def iceberg_asset(
    key: AssetName,
    *,
    table: str,
    io_manager_key: str = "io_manager",
    valid_through: str | None = None,
    lateness: dt.timedelta = dt.timedelta(0),
    **attributes: Any,  # noqa: ANN401  # AssetSpec's own
) -> dg.AssetSpec:
    """Declare an Iceberg table that an outside job writes as an asset; a sensor watches it for new snapshots.

    ``table`` is its name in the catalog; put a part that contains a dot in backquotes: "media.`my.table`".
    ``attributes`` go to ``AssetSpec`` (group_name, owners, description, …). With ``partitions_def`` the sensor reports
    which partitions changed, if the metadata names the column of their keys: ``metadata={"partition_expr":
    "event_date"}``. A partition without rows stays missing in Dagster.

    ``valid_through`` is the event-time column that shows up to when the table is complete: its highest value, minus the
    ``lateness`` that events may have. ``"always"`` is for a table without event time, which holds nothing back. A job
    that knows better can stamp its commits with the snapshot property ``dagster-ips.valid-through``.

    Example:
        >>> iceberg_asset("playback", table="media.playback").metadata["dagster/table_name"]
        'media.playback'
    """
    key = asset_key_of(key)
    name = key.to_user_string()
    require_duration(lateness, "lateness", of=name)
    metadata = {**attributes.pop("metadata", {}), TABLE_NAME: _table_name(name, table), OUTSIDE: True}
    if valid_through is None and lateness:
        problem = f"lateness={lateness} has no effect without the column of the events' times."
        raise DeclarationError(asset=name, problem=problem, remedy="Name it with valid_through=..., or leave it out.")
    if valid_through is not None:
        metadata[EVENT_TIME] = _event_time(name, valid_through, lateness)
    kinds = {"iceberg", *attributes.pop("kinds", ())}
    return dg.AssetSpec(key, metadata=metadata, kinds=kinds, **attributes).with_io_manager_key(io_manager_key)


def _event_time(asset: str, column: str, lateness: dt.timedelta) -> dict[str, Any]:
    require_text(column, "valid_through", of=asset)
    if lateness < dt.timedelta(0) or (column == _ALWAYS and lateness):
        problem = f"lateness={lateness} isn't valid for events of {column!r}."
        raise DeclarationError(asset=asset, problem=problem, remedy="Leave it out, or give a positive one.")
    return {"column": None if column == _ALWAYS else column, "lateness_seconds": lateness.total_seconds()}


def event_time_of(metadata: Mapping[str, Any]) -> EventTime | None:
    """How an outside table shows up to when it is complete, from its asset's metadata; None if it doesn't."""
    declared = plain(metadata.get(EVENT_TIME))
    if declared is None:
        return None
    return EventTime(declared["column"], dt.timedelta(seconds=declared["lateness_seconds"]))


def incremental(  # noqa: PLR0913  # independent parameters
    key: AssetName | None = None,
    *,
    ranges: Sequence[str] = (),
    ref: str = MAIN,
    start: str | int = Everywhere.ALL,
    on_rollback: str = OnRollback.ERROR,
    on_expired: str = OnExpired.ERROR,
    on_removed: str = OnRemoved.APPLY,
    on_unmapped: str = OnUnmapped.ERROR,
    partition_column: str | None = None,
    partition_mapping: dg.PartitionMapping | None = None,
    max_bytes: int | None = None,
    max_files: int | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> dg.AssetIn:
    """Declare an input from which only the changes since the last run are read.

    Args:
        key: The upstream asset, by default the parameter's name.
        ranges: The columns whose change ranges the asset needs in ``IcdcView.ranges`` and ``parameters``.
        ref: The branch of the upstream's table to follow.
        start: Where to begin while nothing is consumed, also after a reset: ``"all"``, so the first run computes
            everything; ``"latest"``, the upstream's newest snapshot at that time; a snapshot id; or a date or time in
            ISO 8601, UTC by default. Earlier commits are left out, so except with ``"all"`` the target doesn't equal a
            full recompute.
        on_rollback: If consumed snapshots are rolled back: ``"error"``; ``"continue"``, which treats the rolled-back
            rows as removed; or ``"full"``, which recomputes everything.
        on_expired: If the history since the last run is gone, because needed snapshots have expired or the table was
            replaced or created again: ``"error"`` or ``"full"``.
        on_removed: ``"apply"``, or ``"ignore"`` to follow only added rows and keep the results of removed ones. With
            ``"ignore"`` the target no longer equals a full recompute.
        on_unmapped: For a partitioned asset, if rows of the upstream belong to none of its partitions: ``"error"``, or
            ``"ignore"``, which leaves them out and reports that in the run's metadata.
        partition_column: The upstream column behind the asset's partitions, if the upstream has no partitions in
            Dagster and the column's name differs from the asset's ``partition_expr``.
        partition_mapping: Which partitions of a partitioned upstream the asset's partitions depend on, as in
            ``AssetIn``.
        max_bytes: The most that one run consumes, as the size of added data files; the next runs consume the rest. A
            backlog is split between snapshots, oldest first. A larger first read or single append is split between
            files, if the asset uses append, merge, or combine without min, max and ``approximate``, and is the only one
            in its step. Anything that can't be split is consumed whole.
        max_files: Like ``max_bytes``, as a number of data files.
        metadata: Of the input, as in ``AssetIn``.

    Example:
        >>> incremental(ranges=["event_date"]).metadata["dagster_ips/incremental"]["ranges"]
        ['event_date']
    """
    require_text(ref, "ref", of="incremental()")
    if partition_column is not None:
        require_text(partition_column, "partition_column", of="incremental()")
    declared = {
        "ranges": _names(ranges, "ranges", of="incremental()"),
        "ref": ref,
        "start": _start_text(start),
        "on_rollback": _one_of(OnRollback, on_rollback, "on_rollback").value,
        "on_expired": _one_of(OnExpired, on_expired, "on_expired").value,
        "on_removed": _one_of(OnRemoved, on_removed, "on_removed").value,
        "on_unmapped": _one_of(OnUnmapped, on_unmapped, "on_unmapped").value,
        "partition_column": partition_column,
        "max_bytes": _limit(max_bytes, "max_bytes"),
        "max_files": _limit(max_files, "max_files"),
    }
    return dg.AssetIn(
        key=None if key is None else asset_key_of(key),
        metadata={**(metadata or {}), INCREMENTAL: declared},
        partition_mapping=partition_mapping,
    )


def lookup(key: AssetName | None = None, *, metadata: Mapping[str, Any] | None = None) -> dg.AssetIn:
    """Declare an input that is read as a whole for lookups, and whose own changes the asset doesn't follow.

    Earlier results stay unchanged, so the target equals a full recompute only as long as the input doesn't change.
    ``key`` is the upstream asset, by default the parameter's name; the parameter is a DataFrame.

    Example:
        >>> lookup("title").key.to_user_string()
        'title'
    """
    return dg.AssetIn(key=None if key is None else asset_key_of(key), metadata={**(metadata or {}), LOOKUP: True})


def trusted(because: str, *, proof: bool = True) -> dict[str, Any]:
    """Guarantee that an asset's result is right although Spark's plan doesn't show it; each run shows the reason.

    You guarantee that each row of the result comes from one changed row or, with ``affected`` and ``scope``, from one
    group. A plan doesn't show that for values that the asset collected, or for Python functions over whole partitions
    of a frame; without this, such results are refused. Because nothing else shows whether they are right, a ``proof``
    of a sample follows each run that automation requests, unless the definitions already have a proof of the asset or
    ``proof`` is False.

    Example:
        >>> trusted(because="scores each play by a model")
        {'dagster_ips/trusted': {'because': 'scores each play by a model', 'proof': True}}
    """
    require_text(because, "because", of="trusted()")
    if not because.strip():
        remedy = "Give a reason why its rows are right, for readers of the table."
        raise DeclarationError(asset="trusted()", problem="its reason is empty.", remedy=remedy)
    return {TRUSTED: {"because": because, "proof": proof}}


def trusted_because(metadata: Mapping[str, Any]) -> str | None:
    """Why an asset's result is right though its plan doesn't show it; None if its plan must."""
    value = plain(metadata.get(TRUSTED))
    return None if value is None else str(value["because"])


def is_to_be_proved(metadata: Mapping[str, Any]) -> bool:
    """Whether an asset is trusted and a proof is to follow its runs."""
    value = plain(metadata.get(TRUSTED))
    return value is not None and bool(value["proof"])


def incremental_dep(  # noqa: PLR0913  # as for incremental
    asset: AssetName,
    *,
    ranges: Sequence[str] = (),
    ref: str = MAIN,
    start: str | int = Everywhere.ALL,
    on_rollback: str = OnRollback.ERROR,
    on_expired: str = OnExpired.ERROR,
    on_removed: str = OnRemoved.APPLY,
    on_unmapped: str = OnUnmapped.ERROR,
    partition_column: str | None = None,
    partition_mapping: dg.PartitionMapping | None = None,
    max_bytes: int | None = None,
    max_files: int | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> dg.AssetDep:
    """Declare an upstream from which only the changes are read, by the asset's own statements inside ``capture``.

    ``asset`` is the upstream; everything else is as in ``incremental``.

    Example:
        >>> incremental_dep("playback").asset_key.to_user_string()
        'playback'
    """
    declared = incremental(
        ranges=ranges,
        ref=ref,
        start=start,
        on_rollback=on_rollback,
        on_expired=on_expired,
        on_removed=on_removed,
        on_unmapped=on_unmapped,
        partition_column=partition_column,
        max_bytes=max_bytes,
        max_files=max_files,
        metadata=metadata,
    )
    return dg.AssetDep(asset_key_of(asset), metadata=declared.metadata, partition_mapping=partition_mapping)


def append(dedup_on: Sequence[str] = (), *, remove_on: Sequence[str] = ()) -> dict[str, Any]:
    """Write by adding rows; with ``dedup_on``, one row per key and none whose key the table already has.

    ``remove_on`` are columns that identify a row both here and upstream: rows removed upstream are deleted by them,
    including the old version of an updated row. Without them, a removal upstream is an error.

    Example:
        >>> append(remove_on=["event_id"])
        {'dagster_ips/write': {'mode': 'append', 'dedup_on': [], 'remove_on': ['event_id']}}
    """
    if dedup_on and remove_on:
        raise DeclarationError(
            asset="append()",
            problem="it has both dedup_on and remove_on: when one of several rows with the same key is removed "
            "upstream, the row kept here may have to stay.",
            remedy="Use merge(on=...) with a frame built on affected(...).",
        )
    keys = {"dedup_on": dedup_on, "remove_on": remove_on}
    return {WRITE: {"mode": "append", **{name: _names(key, name, of="append()") for name, key in keys.items()}}}


def merge(on: Sequence[str], latest_by: str | None = None) -> dict[str, Any]:
    """Write by key: update rows that differ, insert new ones, delete those whose key is gone upstream.

    ``latest_by`` decides between rows with the same key.

    Example:
        >>> merge(on=["event_date", "account_id"])
        {'dagster_ips/write': {'mode': 'merge', 'on': ['event_date', 'account_id'], 'latest_by': None}}
    """
    columns = _names(on, "on", of="merge()")
    if not columns:
        remedy = "Name the columns that identify a row, for example merge(on=['account_id'])."
        raise DeclarationError(asset="merge()", problem="it has no key column.", remedy=remedy)
    latest: object = latest_by  # Whatever was given.
    if latest is not None and not isinstance(latest, str):
        problem = f"latest_by={latest_by!r} isn't the name of a column."
        raise DeclarationError(asset="merge()", problem=problem, remedy='Name one column: latest_by="updated_at".')
    return {WRITE: {"mode": "merge", "on": columns, "latest_by": latest_by}}


def combine(
    on: Sequence[str], aggregates: Mapping[str, str], *, approximate: bool = False, storage: _Storage = "merged"
) -> dict[str, Any]:
    """Write aggregates of the rows that the asset returns, by key: changes are added to the existing groups.

    The asset returns rows, not groups, each computed from one row of ``weighted``; only the change is read. It must
    keep the column ``_weight`` unchanged. If rows are never removed upstream, ``added`` works as well.

    Args:
        on: The columns of the asset's rows to group by.
        aggregates: Columns of the table and what each is: one of ``count``, ``sum``, ``avg``, ``min``, ``max``,
            ``bool_and``, ``bool_or`` and ``count_if``, of one scalar expression in Spark SQL, or ``count(*)``.
        approximate: Allow sums and averages of floating-point values, which depend on the order of the rows.
        storage: ``merged`` keeps one row per group. ``partials`` appends the aggregates of each change, which is far
            cheaper, and adds them up when the table is read; no asset can consume such a table incrementally.

    Hidden columns, whose names begin with ``_ips_``, keep what is needed to follow removed rows.

    Raises:
        DeclarationError: an aggregate can't be maintained incrementally, or a column name is taken.

    Example:
        >>> combine(on=["day"], aggregates={"plays": "count(*)"})["dagster_ips/write"]["aggregates"]
        {'plays': 'count(*)'}
    """
    columns = _names(on, "on", of="combine()")
    if not isinstance(aggregates, Mapping) or not all(isinstance(each, str) for each in chain(*aggregates.items())):
        problem = f"aggregates={aggregates!r} doesn't give the SQL of each column."
        remedy = "Map columns to aggregates in SQL: aggregates={'plays': 'count(*)'}."
        raise DeclarationError(asset="combine()", problem=problem, remedy=remedy)
    declared = {
        "mode": "combine",
        "on": columns,
        "aggregates": dict(aggregates),
        "approximate": approximate,
        "storage": storage,
    }
    if storage not in get_args(_Storage):
        problem = f"its storage {storage!r} doesn't exist."
        raise DeclarationError(asset="combine()", problem=problem, remedy="Use 'merged' or 'partials'.")
    if not columns or not aggregates:
        problem = f"it has no {'aggregate' if columns else 'key column'}."
        remedy = "Name both, for example combine(on=['account_id'], aggregates={'plays': 'count(*)'})."
        raise DeclarationError(asset="combine()", problem=problem, remedy=remedy)
    _ = write_mode_of({WRITE: declared}, "combine()")
    return {WRITE: declared}


def _combine(asset: str, on: Sequence[str], aggregates: Mapping[str, str], *, approximate: bool) -> Combine:
    taken = set[str]()
    for name in (*on, *aggregates):
        if name.lower() in taken or name.lower() == WEIGHT or name.lower().startswith(HIDDEN):
            problem = f"its column {name!r} is declared twice or uses a name that the library reserves."
            raise DeclarationError(asset=asset, problem=problem, remedy="Give it another name.")
        taken.add(name.lower())
    parsed = []
    for name, text in aggregates.items():
        try:
            parsed.append(parse_aggregate(name, text))
        except ValueError as error:
            raise DeclarationError(
                asset=asset,
                problem=f"its aggregate {name} = {text!r} can't be maintained: {error}.",
                remedy="For aggregates that combine() can't maintain, use merge(on=...) with a frame built on "
                "affected(...).",
            ) from None
    return Combine(tuple(on), tuple(parsed), approximate)


def overwrite_partitions() -> dict[str, Any]:
    """Write by replacing exactly the affected partitions of a table partitioned by plain columns."""
    return {WRITE: {"mode": "overwrite_partitions"}}


def replace() -> dict[str, Any]:
    """Write by replacing all rows: what an asset without incremental inputs does by default."""
    return {WRITE: {"mode": "replace"}}


def table(
    name: str | None = None,
    *,
    partition_by: Sequence[str] = (),
    sort_by: Sequence[str] = (),
    properties: Mapping[str, str | int | float | bool] | None = None,
) -> dict[str, Any]:
    """Declare the table that the first write creates: name, Spark SQL partition and sort expressions, table properties.

    Without ``name``, the asset's key is used. Put a part that contains a dot in backquotes: "media.`my.table`". An
    existing table keeps its layout.

    Example:
        >>> table("media.daily", partition_by=["event_date"])["dagster/table_name"]
        'media.daily'
    """
    if not isinstance(properties or {}, Mapping) or any(
        not isinstance(each, str | int | float) for each in (properties or {}).values()
    ):
        problem = f"properties={properties!r} doesn't give the text, number or boolean of each property."
        raise DeclarationError(asset="table()", problem=problem, remedy='Write {"format-version": 2}, for example.')
    described = {
        "partition_by": _names(partition_by, "partition_by", of="table()"),
        "sort_by": _names(sort_by, "sort_by", of="table()"),
        "properties": {name: _property_text(value) for name, value in (properties or {}).items()},
    }
    return {TABLE: described} | ({} if name is None else {TABLE_NAME: _table_name("table()", name)})


def target_lag(longest: dt.timedelta) -> dict[str, Any]:
    """How long a change may wait before the asset's check ``pending`` warns. Default: an hour.

    Example:
        >>> merge(on=["account"]) | target_lag(dt.timedelta(minutes=10))
        {'dagster_ips/write': {...}, 'dagster_ips/target_lag_seconds': 600.0}
    """
    require_duration(longest, "longest", of="target_lag()")
    if longest < dt.timedelta(0):
        problem = f"{longest} isn't a valid lag."
        raise DeclarationError(
            asset="target_lag()", problem=problem, remedy="Give a positive one, or 0 to warn at once."
        )
    return {TARGET_LAG: longest.total_seconds()}


def target_lag_of(metadata: Mapping[str, Any]) -> dt.timedelta:
    """The lag that ``target_lag()`` declared in an asset's metadata, or the default."""
    seconds = plain(metadata.get(TARGET_LAG))
    return USUAL_LAG if seconds is None else dt.timedelta(seconds=seconds)


def write_mode_of(metadata: Mapping[str, Any], asset: str) -> WriteMode | None:  # noqa: PLR0911  # one for each mode
    """The write mode in an asset's metadata; None if it declares none.

    Raises:
        DeclarationError: the mode doesn't exist.
    """
    value = plain(metadata.get(WRITE))
    match value:
        case None:
            return None
        case {"mode": "append", "dedup_on": dedup_on, "remove_on": remove_on}:
            return Append(tuple(dedup_on), tuple(remove_on))
        case {"mode": "merge", "on": on, "latest_by": latest_by}:
            return Merge(tuple(on), latest_by)
        case {"mode": "combine", "on": on, "aggregates": aggregates, "approximate": approximate, "storage": storage}:
            combined = _combine(asset, on, aggregates, approximate=approximate)
            return changed(combined, keeps_partials=storage == "partials")
        case {"mode": "query", "sql": text, "signature": signature, "upstreams": upstreams}:
            return ByQuery(text, signature, tuple(upstreams))
        case {"mode": "overwrite_partitions"}:
            return OverwritePartitions()
        case {"mode": "replace"}:
            return Replace()
        case _:
            remedy = "Use append(), merge(), combine(), overwrite_partitions() or replace()."
            raise DeclarationError(asset=asset, problem=f"its write mode {value!r} doesn't exist.", remedy=remedy)


def code_of(code_version: str | None, metadata: Mapping[str, Any]) -> str | None:
    """The code that computes an asset's rows: its ``code_version`` and its combine() or query; None if unknown."""
    write_mode = write_mode_of(metadata, "")
    if not isinstance(write_mode, Combine | ByQuery):
        return code_version
    kind, declared = "combine" if isinstance(write_mode, Combine) else "query", digest_of(write_mode.signature)
    return f"{'' if code_version in (None, declared) else code_version}+{kind}:{declared}"


def digest_of(signature: str) -> str:
    """What tells the signatures of an asset's declarations apart: eight hexadecimal digits."""
    return hashlib.sha256(signature.encode()).hexdigest()[:8]


def description_of(metadata: Mapping[str, Any]) -> TableDescription:
    """The layout that ``table()`` declared in an asset's metadata; without it, an unpartitioned table."""
    value = plain(metadata.get(TABLE)) or {}
    return TableDescription(
        tuple(value.get("partition_by", ())), tuple(value.get("sort_by", ())), value.get("properties", {})
    )


def start_of(declared: Mapping[str, Any]) -> Start:
    """Where an incremental input begins, from its metadata."""
    return parse_start(declared["start"])


def policies_of(declared: Mapping[str, Any]) -> InputPolicies:
    """The policies in an incremental input's metadata."""
    return InputPolicies(
        on_rollback=OnRollback(declared["on_rollback"]),
        on_expired=OnExpired(declared["on_expired"]),
        on_removed=OnRemoved(declared["on_removed"]),
        on_unmapped=OnUnmapped(declared["on_unmapped"]),
    )


def limits_of(declared: Mapping[str, Any], write_mode: WriteMode | None) -> Limits:
    """The limits in an incremental input's metadata. Files are only split for write modes that add up row by row."""
    cuts_files = write_mode is not None and write_mode.adds_up
    return Limits(declared["max_bytes"], declared["max_files"], cuts_files=cuts_files)


def table_of(key: dg.AssetKey, metadata: Mapping[str, Any], default_namespace: str) -> str:
    """The asset's table: from the metadata, else its key, in ``default_namespace`` if the key has a single part."""
    named = plain(metadata.get(TABLE_NAME))
    if named:
        return _table_name(key.to_user_string(), str(named))
    return name_of(key.path if len(key.path) > 1 else [*parts_of(default_namespace), *key.path])


def _property_text(value: str | float) -> str:
    """A table property's value: Iceberg's are text, and its words for a boolean are in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _table_name(asset: str, name: object) -> str:
    if not isinstance(name, str):
        problem = f"its table's name {name!r} isn't text."
        raise DeclarationError(asset=asset, problem=problem, remedy='Write it as in SQL: "media.playback".')
    try:
        parts = parts_of(name)
    except ValueError as error:
        remedy = "Quote a part that contains a dot or a backquote as in Spark SQL: media.`my.table`."
        problem = f"its table's name can't be read: {error}."
        raise DeclarationError(asset=asset, problem=problem, remedy=remedy) from None
    if len(parts) == 1:
        remedy = 'Add one, for example "media.playback".'
        raise DeclarationError(asset=asset, problem=f"its table {name!r} has no namespace.", remedy=remedy)
    return name_of(parts)


def plain(value: Any) -> Any:  # noqa: ANN401  # metadata values are of any kind
    """A metadata value as it was given, even if Dagster has wrapped it."""
    return value.value if isinstance(value, dg.MetadataValue) else value


_Policy = TypeVar("_Policy", bound=StrEnum)


def _one_of(kind: type[_Policy], value: str, parameter: str) -> _Policy:
    if value not in set(kind):
        problem = f"{parameter}={value!r} isn't a policy."
        raise DeclarationError(asset="incremental()", problem=problem, remedy=f"Use one of {', '.join(kind)}.")
    return kind(value)


def _limit(value: object, parameter: str) -> int | None:
    if value is None or (is_whole_number(value) and value > 0):
        return value
    problem = f"{parameter}={value!r} isn't a valid number of {parameter.removeprefix('max_')} for a run."
    raise DeclarationError(
        asset="incremental()", problem=problem, remedy="Give a whole number above 0, or leave it out."
    )


def _start_text(start: str | int) -> str:
    """``start`` as text, because JavaScript would round a snapshot id."""
    try:
        parse_start(str(start))
    except ValueError as error:
        raise DeclarationError(
            asset="incremental()",
            problem=f"start={start!r} isn't a place in a table's history.",
            remedy='Use "all", "latest", a snapshot\'s id, or a date or time in ISO 8601: "2026-01-31T08:00:00Z".',
        ) from error
    return str(start)


def _names(columns: object, parameter: str, *, of: str) -> list[str]:
    if isinstance(columns, Mapping):
        problem = f"{parameter} is a declaration, and not the names of columns."
        raise DeclarationError(asset=of, problem=problem, remedy='Join declarations by |: append() | table("...").')
    if isinstance(columns, str):
        problem = f"{parameter}={columns!r} is a single string, so each letter would count as a column."
        raise DeclarationError(asset=of, problem=problem, remedy=f"Write {parameter}=[{columns!r}].")
    found = list(columns) if isinstance(columns, Iterable) else None
    if found is None or not all(isinstance(each, str) for each in found):
        problem = f"{parameter}={columns!r} isn't a list of columns' names."
        raise DeclarationError(asset=of, problem=problem, remedy=f'Write {parameter}=["..."].')
    return found
