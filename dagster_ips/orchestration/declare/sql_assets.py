"""``sql_asset``: an asset that is declared by a query, and whose table is the query's result."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_ips._late import LateModule
from dagster_ips.core.policy import OnExpired, OnRollback
from dagster_ips.core.table_name import name_of
from dagster_ips.core.write_mode import ByQuery, WriteMode
from dagster_ips.errors import DeclarationError
from dagster_ips.orchestration.declare.asset_keys import AssetName, asset_key_of
from dagster_ips.orchestration.declare.declarations import WRITE, digest_of, incremental
from dagster_ips.orchestration.declare.declarations import table as its_table
from dagster_ips.orchestration.declare.maintained_rows import IS_BEST, REFRESH, WHY_NOT_BETTER, MaintainedRows
from dagster_ips.run_view import RunView

if TYPE_CHECKING:
    from dagster_ips.orchestration.declare import past_refreshes, query_run
    from dagster_ips.orchestration.declare.query_run import QueryRun
    from dagster_ips.query import query_text, refresh_choice
    from dagster_ips.query.foreseen_steps import ForeseenStep
    from dagster_ips.query.maintenance_plan import MaintenanceStep
    from dagster_ips.query.refresh_choice import PastRefresh
else:  # sqlglot is imported only when a sql_asset is declared.
    past_refreshes, query_run, query_text, refresh_choice = (
        LateModule(f"dagster_ips.{name}")
        for name in (
            "orchestration.declare.past_refreshes",
            "orchestration.declare.query_run",
            "query.query_text",
            "query.refresh_choice",
        )
    )

_LAYOUT = 6
"""Increased when the tables of the same query get another layout."""
_NO_INPUTS = """
    arg_dict bool conf config context dict float input input_arg_dict int meta output output_arg_dict str type
"""
_RESERVED = frozenset(_NO_INPUTS.split())
"""Names that Dagster (1.13) allows for no input, beside Python's keywords."""


def sql_asset(  # noqa: PLR0913  # independent parameters
    key: AssetName,
    sql: str | Path,
    *,
    table: str | None = None,
    partition_by: Sequence[str] = (),
    sort_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    refresh: str = "auto",
    sources: Mapping[str, AssetName] | None = None,
    on_rollback: str = OnRollback.FULL,
    on_expired: str = OnExpired.FULL,
    metadata: Mapping[str, Any] | None = None,
    description: str | None = None,
    io_manager_key: str = "io_manager",
    **attributes: Any,  # noqa: ANN401  # passed on to dagster.asset
) -> dg.AssetsDefinition:
    """Declare an asset whose table is the result of ``sql``, maintained from changes in the tables it reads.

    Each run works out how the changes affect the result: it appends, adds to aggregates, replaces the rows of affected
    keys, or computes everything if that is cheaper or nothing else is known to be right. Its metadata says which it
    chose and why.

    Args:
        key: The asset's key.
        sql: A SELECT in Spark SQL, as a full refresh would run it. It names tables by asset keys, ``plays`` or
            ``media.plays``, or in braces if the key isn't a plain name: ``{media/my-plays}``. Or the path of a file
            that contains it, ``Path(__file__).with_name("plays.sql")``.
        table: The table's name. Default: the asset's key.
        partition_by: As in ``table()``.
        sort_by: As in ``table()``.
        properties: As in ``table()``.
        refresh: ``"auto"``; ``"incremental"``, even if a full refresh is cheaper; ``"strict"``, which fails instead of
            computing everything, except in runs in mode ``full``; or ``"full"``.
        sources: The asset keys of tables that have other names in the query, by the name in the query.
        on_rollback: As in ``incremental()``.
        on_expired: As in ``incremental()``.
        metadata: Additional metadata of the asset.
        description: The asset's description. Default: the query.
        io_manager_key: The key of an ``IcdcIOManager``.
        attributes: Other arguments of ``dagster.asset``: ``group_name``, ``owners``, ``automation_condition``, …. The
            default ``code_version`` follows from the query, so Dagster shows when the query has changed.

    Raises:
        DeclarationError: the query is invalid, may give different rows for the same tables, or its file can't be read.

    Example:
        >>> daily = sql_asset("plays_daily", "SELECT day, count(*) AS plays FROM plays GROUP BY day")
        >>> [each.to_user_string() for each in daily.dependency_keys]
        ['plays']
    """
    key = asset_key_of(key)
    name = key.to_user_string()
    query, policy = _read(name, sql), _policy(name, refresh)
    _require_unpartitioned(name, attributes)
    upstreams = _upstreams(name, query.sources, sources or {})
    inputs = _inputs(name, upstreams)
    signature = f"{_LAYOUT}: {query.words}{_other_names(query.sources, upstreams)}"

    declared: Any = dg.asset(
        key=key,
        ins={each: incremental(of, on_rollback=on_rollback, on_expired=on_expired) for each, of in inputs.items()},
        metadata={
            **(metadata or {}),
            WRITE: {
                "mode": "query",
                "sql": query.text,
                "signature": signature,
                "upstreams": [each.to_user_string() for each in upstreams],
            },
            **its_table(table, partition_by=partition_by, sort_by=sort_by, properties=properties),
        },
        description=description or f"```sql\n{query.text}\n```",
        io_manager_key=io_manager_key,
        kinds={"iceberg", "sql", *attributes.pop("kinds", ())},
        **{"code_version": digest_of(signature), **attributes},
    )

    def past() -> Sequence[PastRefresh]:
        context = dg.AssetExecutionContext.get()
        code = context.assets_def.code_versions_by_key.get(context.asset_key)
        return past_refreshes.past_refreshes(context.instance, context.asset_key, code)

    def maintained(**views: RunView) -> dg.Output[MaintainedRows]:
        run = query_run.QueryRun(name, query, policy, [views[each] for each in inputs], past)
        found, step = run.result()
        return dg.Output(found, metadata=_shown(run, step, upstreams))

    made: dg.AssetsDefinition = declared(maintained)
    return made


def query_of(write_mode: WriteMode | None) -> query_text.Query | None:
    """The query of a ``sql_asset``; None for other write modes."""
    if not isinstance(write_mode, ByQuery):
        return None
    return query_text.read(write_mode.text)


def _shown(run: QueryRun, step: MaintenanceStep, upstreams: Sequence[dg.AssetKey]) -> dict[str, Any]:
    """Metadata on how a run brings the table up to date, and why that way."""
    shown: dict[str, Any] = {
        REFRESH: str(step.strategy),
        past_refreshes.SHARE: run.share,
        past_refreshes.ROWS: run.rows,
        WHY_NOT_BETTER: step.reason or IS_BEST,
    }
    most = refresh_choice.most_share(step.strategy, is_by_keys=step.affected is not None)
    if most is not None:
        shown[past_refreshes.MOST_SHARE] = most
    if step.affected is not None:
        shown["refresh, affected keys"] = run.affected_keys
        shown[past_refreshes.SHARE_OF_KEYS] = run.share_of_keys
    if foreseen := list(run.foreseen()):  # Dagster has no empty table.
        shown["refresh, by kind of change"] = _table(upstreams, foreseen)
    if run.query.notes:
        shown["refresh, caveats"] = "; ".join(run.query.notes)
    return shown


def _table(upstreams: Sequence[dg.AssetKey], foreseen: Iterable[ForeseenStep]) -> dg.TableMetadataValue:
    """What a run would do, by which upstream changed and how, as a table for Dagster's UI."""
    rows = [
        {
            "upstream": upstreams[each.source].to_user_string(),
            "change": str(each.change),
            "refresh": str(each.step.strategy),
            "why not better": each.step.reason,
        }
        for each in foreseen
    ]
    return dg.MetadataValue.table([dg.TableRecord(dict[str, Any](row)) for row in rows])


def _read(asset: str, sql: str | Path) -> query_text.Query:
    given: object = sql
    if not isinstance(given, str | Path):
        problem, remedy = f"its query is {given!r}.", "Give the SELECT as text, or the Path of a file that contains it."
        raise DeclarationError(asset=asset, problem=problem, remedy=remedy)
    try:
        # Editors on Windows may begin a file with a mark that is no part of its text.
        return query_text.read(sql if isinstance(sql, str) else sql.read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise DeclarationError(
            asset=asset,
            problem=f"the file of its query can't be read: {error}.",
            remedy="Give a path to a UTF-8 file that doesn't depend on where Dagster is started: "
            "Path(__file__).with_name(...).",
        ) from None
    except query_text.RefusedQueryError as error:
        is_file = isinstance(sql, str) and sql.lower().endswith(".sql")
        raise DeclarationError(
            asset=asset,
            problem=f"its query can't be maintained: {error}.",
            remedy=f"To give a file, pass a Path: Path(__file__).with_name({sql!r})."
            if is_file
            else "Change the query, or write an @dg.asset that computes it in each run.",
        ) from None


def _policy(asset: str, refresh: str) -> refresh_choice.Refresh:
    known = [str(each) for each in refresh_choice.Refresh]
    if refresh not in known:
        problem = f"refresh={refresh!r} isn't a refresh policy."
        raise DeclarationError(asset=asset, problem=problem, remedy=f"Use one of {', '.join(known)}.")
    return refresh_choice.Refresh(refresh)


def _require_unpartitioned(asset: str, attributes: Mapping[str, Any]) -> None:
    if attributes.get("partitions_def") is not None:
        raise DeclarationError(
            asset=asset,
            problem="it is partitioned in Dagster, but it is unknown which partitions of its sources a query's rows "
            "come from.",
            remedy="Leave out partitions_def: partition_by partitions the Iceberg table, and a run computes only what "
            "changed anyway.",
        )


def _upstreams(asset: str, tables: Sequence[tuple[str, ...]], sources: Mapping[str, AssetName]) -> list[dg.AssetKey]:
    """The asset key of each of the query's ``tables``: its name's parts, unless ``sources`` gives another."""
    mapped: object = sources
    if not isinstance(mapped, Mapping):
        problem = f"sources={mapped!r} doesn't map the query's names to asset keys."
        raise DeclarationError(asset=asset, problem=problem, remedy='Write sources={"name in the query": "key"}.')
    given = {name.lower(): asset_key_of(key) for name, key in sources.items()}
    named = [name_of(parts).lower() for parts in tables]
    if unknown := sorted(given.keys() - set(named)):
        raise DeclarationError(
            asset=asset,
            problem=f"sources names {', '.join(unknown)}, which its query doesn't read.",
            remedy=f"Name tables as the query does: it reads {', '.join(named) or 'none'}.",
        )
    return [given.get(name) or dg.AssetKey(list(parts)) for name, parts in zip(named, tables, strict=True)]


def _other_names(sources: Sequence[tuple[str, ...]], upstreams: Sequence[dg.AssetKey]) -> str:
    """Which tables have other names in the query: if two traded places, the same text would be another query."""
    pairs = zip(sources, upstreams, strict=True)
    return "".join(f", {'.'.join(parts)} is {key.to_user_string()}" for parts, key in pairs if list(parts) != key.path)


def _inputs(asset: str, upstreams: Sequence[dg.AssetKey]) -> dict[str, dg.AssetKey]:
    """A name for each input, shown in metadata: the last part of its key, made a valid and unique parameter name."""
    inputs: dict[str, dg.AssetKey] = {}
    for key in upstreams:
        if key in inputs.values():
            problem = f"its query names the asset {key.to_user_string()} in two different ways."
            raise DeclarationError(asset=asset, problem=problem, remedy="Use one name.")
        name = re.sub(r"\W", "_", key.path[-1], flags=re.ASCII).lower()
        name = name if name.isidentifier() and not _is_reserved(name) else f"source_{name}"
        while name in inputs:
            name += "_"
        inputs[name] = key
    return inputs


def _is_reserved(name: str) -> bool:
    """Whether Dagster allows no input of that name."""
    return name in _RESERVED or keyword.iskeyword(name)
