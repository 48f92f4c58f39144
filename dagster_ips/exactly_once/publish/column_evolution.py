"""Adapts a target's columns to the frame that is written to it, as far as no existing row becomes wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from dagster_ips.core.aggregates import HIDDEN
from dagster_ips.core.columns import Added, Fit, Gone, Misfit, Struct, fit, kinds_within
from dagster_ips.core.ranges import quoted
from dagster_ips.core.table_name import parts_of
from dagster_ips.core.write_mode import OverwritePartitions, WriteMode
from dagster_ips.errors import FrameColumnsError, UnknownColumnError
from dagster_ips.errors.remedies import full_run
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.exactly_once.publish.table_changes import TableChanges
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.progress.table_progress import newest_progress
from dagster_ips.spark.branches import is_conflict, sql_name
from dagster_ips.spark.targets import add_columns, as_columns, columns_of, is_case_sensitive, widen_column

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame, SparkSession

_MOST_FAILURES = 5
_FOR_VARIANTS = 3
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def require_columns_fit(frame: DataFrame, target: TableMetadata | None, *, catalog: str, table: str) -> None:
    """Fail unless ``table`` has the frame's columns or may be given them; ``target`` is None before it is created.

    Raises:
        FrameColumnsError: the frame lacks a column, or has one of a type that the table's column can't be changed to.
    """
    found = _fit(frame.sparkSession, columns_of(frame), target)
    found = replace(found, gone=tuple(each for each in found.gone if not _is_hidden(each)))
    if target is not None and target.format_version < _FOR_VARIANTS:
        new = [each for each in found.added if "variant" in kinds_within(each.kind)]
        found = replace(found, misfits=(*found.misfits, *map(_variant, new)))
    if found.gone or found.misfits:
        raise _refused(found, target, _sql(catalog, *parts_of(table)), table)


def require_rows_found(
    frame: DataFrame, write_mode: WriteMode, target: TableMetadata, *, groups: Collection[str] = ()
) -> None:
    """Fail if an incremental run would find rows of ``target`` by a new column, which is null in all of them.

    ``groups`` are the columns whose values say which groups of rows the frame has. If these are partitions, the column
    may be null in some rows only: no declaration says by what they are replaced, so a change of it recomputes nothing.

    Raises:
        UnknownColumnError: it would; the existing rows would stay beside the rows that replace them.
    """
    found = _fit(frame.sparkSession, columns_of(frame), target)
    new = {*(each.path[0] for each in found.added if len(each.path) == 1), *target.unwritten_columns()}
    by = [column for column in sorted(new) if write_mode.finds_rows_by(column)]
    if isinstance(write_mode, OverwritePartitions):
        known = newest_progress(target)
        made = known.progress.made.get(None) if known is not None and len(known.progress.made) == 1 else None
        lacking = target.columns_since(made.schema_id) if made else ()
        by = sorted({*new, *lacking}.intersection(groups))
    if by and target.ancestry().head is not None:
        raise UnknownColumnError(
            where=target.table,
            column=by[0],
            known=tuple(name for name in target.column_names if name not in (*new, by[0])),
            remedy="Existing rows have NULL in it, so they can't be found by it and would stay beside the rows that "
            "replace them. Nothing was written and nothing was consumed. To recompute everything: "
            f"{full_run(target.table)}.",
        )


def require_types_fit(frame: DataFrame, target: TableMetadata, *, catalog: str) -> None:
    """As ``require_columns_fit``, for statements that may leave columns out.

    Raises:
        FrameColumnsError: a column has a type that the table's column can't be changed to.
    """
    found = _fit(frame.sparkSession, columns_of(frame), target)
    if found.misfits:
        name = sql_name(catalog, target.table).replace("`", "")
        raise _refused(Fit(misfits=found.misfits), target, name, target.table)


def follow_frame(frame: DataFrame, catalog: LakeCatalog, table: str, changes: TableChanges) -> DataFrame:
    """Give ``table`` the new columns and wider types; return the frame, with nested fields in the table's order.

    Columns belong to the table and not to a branch, so ``changes`` takes them back if the run is refused. If it is
    killed, they stay, null in every row until a run that fills them is published. Hidden columns of aggregates that are
    no longer kept aren't dropped: ``main``, a revert or the earlier code may still need them. They are null in what is
    written from now on.
    """
    session, columns, failures = frame.sparkSession, columns_of(frame), 0
    while True:
        target = catalog.load(table, asset=table)
        found = _fit(session, columns, target)
        if not (found.added or found.widened):
            return as_columns(frame, target.struct)
        try:
            changes.will_follow(target, found)
            for alter in _alterations(found, session, catalog.name, table):
                with effect(Effect.ALTER_TARGET):
                    alter()
        except Exception as error:
            failures += 1
            is_final = not is_conflict(error) or failures == _MOST_FAILURES
            # Another run of the asset may have done the same a moment ago.
            if is_final and catalog.load(table, asset=table).current_schema_id == target.current_schema_id:
                raise


def _alterations(found: Fit, session: SparkSession, catalog: str, table: str) -> Iterator[Callable[[], None]]:
    if found.added:
        yield partial(add_columns, session, catalog, table, found.added)
    for each in found.widened:
        yield partial(widen_column, session, catalog, table, each)


def _variant(column: Added) -> Misfit:
    problem = f"holds a variant, which only tables of format version {_FOR_VARIANTS} can have"
    remedy = f"cast it to string, or set the table's property format-version to {_FOR_VARIANTS}"
    return Misfit(column.path, problem, remedy)


def _is_hidden(column: Gone) -> bool:
    return column.path[0].startswith(HIDDEN)


def _fit(session: SparkSession, frame: Struct, target: TableMetadata | None) -> Fit:
    table = target.struct if target else Struct(())
    exact, loose = (fit(table, frame, is_case_sensitive=each) for each in (True, False))
    return exact if exact == loose or is_case_sensitive(session) else loose


def _refused(found: Fit, target: TableMetadata | None, name: str, table: str) -> FrameColumnsError:
    lacks = [f"it lacks {_name(each)}" for each in found.gone]
    problems = lacks + [f"{_name(each)} {each.problem}" for each in found.misfits]
    ways = [f"{each.remedy[0].upper()}{each.remedy[1:]} ({_name(each)})." for each in found.misfits]
    ways += [f"Return {_name(each)} too, as NULL AS {_sql(each.path[-1])} if nothing fills it." for each in found.gone]
    if found.gone and found.added:
        ways.append(f"If a column was renamed (new: {', '.join(map(_name, found.added))}), restore its old name.")
    if target is not None:
        ways += _ways_to_change(target, name, found)
    return FrameColumnsError(table=table, problems=tuple(problems), remedy=" ".join(ways))


def _ways_to_change(target: TableMetadata, name: str, found: Fit) -> Iterator[str]:
    drop = f"ALTER TABLE {name} DROP COLUMN"
    unwritten = target.unwritten_columns()
    if empty := ", ".join(_sql(*each.path) for each in found.gone if _name(each) in unwritten):
        yield f"No published run has filled {empty}, so {drop} {empty} loses nothing."
    paths = [*(each.path for each in found.gone), *(each.path for each in found.misfits)]
    if fixed := sorted(target.layout_columns & {path[0] for path in paths}):
        yield (
            f"To change the table instead, which is partitioned or sorted by {', '.join(fixed)}: DROP TABLE {name}. "
            f"The next run computes everything."
        )
        return
    yield (
        f"To change the table instead: {drop} {', '.join(_sql(*path) for path in paths)}. Then recompute everything: "
        f"{full_run(target.table)}."
    )


def _name(each: Added | Gone | Misfit) -> str:
    return ".".join(each.path)


def _sql(*path: str) -> str:
    """A column as it is pasted into SQL, in backquotes if it needs them."""
    return ".".join(part if _PLAIN.fullmatch(part) else quoted(part) for part in path)
