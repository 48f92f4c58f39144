"""``dagster-ips icdc``: the changes in any interval as a table, independent of consumers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click

from dagster_ips.cli.context import table_name
from dagster_ips.cli.next_commands import with_workspace
from dagster_ips.cli.text_format import at_json, at_text, json_text
from dagster_ips.core.history_place import Place
from dagster_ips.core.size_text import counted, size_text
from dagster_ips.errors import InstanceError
from dagster_ips.exactly_once.capture.interval_tables import IntervalTable, IntervalTables
from dagster_ips.orchestration.run.known_consumers import KnownTable
from dagster_ips.spark.branches import sql_name


def make(  # noqa: PLR0913  # one per option
    tables: Sequence[KnownTable], source: str, *, start: Place | None, end: Place | None, ref: str, as_json: bool
) -> None:
    """Create the table of an interval, and print how to read and drop it."""
    known = _table_named(tables, source)
    lake = known.manager.catalog.open()
    made = IntervalTables(lake, known.manager.icdc_namespace).make(known.table, start=start, end=end, ref=ref)
    name = sql_name(lake.name, made.name)
    click.echo(json_text(_as_json(made, name)) if as_json else _text(made, name))


def show(tables: Sequence[KnownTable], source: str, *, as_json: bool) -> None:
    """List the tables that were created for ``source`` and not dropped."""
    known = _table_named(tables, source)
    names = IntervalTables(known.manager.catalog.open(), known.manager.icdc_namespace).names(known.table)
    click.echo(json_text(names) if as_json else "\n".join(names) or f"No tables for {known.table}.")


def remove(tables: Sequence[KnownTable], name: str) -> None:
    """Drop one of these tables; ``name`` may include the catalog, as it was printed."""
    catalogs = {id(each.manager): each.manager for each in tables}
    managers = list(catalogs.values())
    for manager in managers:
        lake = manager.catalog.open()
        given = table_name(name)
        first, _, rest = given.partition(".")
        # The catalog may be called like the namespace.
        is_full = first == lake.name and "." in rest and lake.find(given) is None
        plain = rest if is_full else given
        if manager is managers[-1] or lake.find(plain) is not None:
            of = IntervalTables(lake, manager.icdc_namespace).remove(plain)
            click.echo(f"Dropped {plain}. The data files of {of} are untouched.")
            return
    problem = f"These definitions have no tables, so they don't say which catalog {name} is in."
    raise InstanceError(problem=problem, remedy="Specify the definitions with which it was created.")


def _table_named(tables: Sequence[KnownTable], source: str) -> KnownTable:
    found = next((each for each in tables if source in (each.table, each.asset)), None)
    if found is None and tables:
        catalogs = {each.manager.catalog.name_of("") for each in tables}
        if len(catalogs) == 1:  # Any table of the catalog will do, even if no asset reads it.
            return KnownTable(source, table_name(source), tables[0].manager, is_outside=True)
    if found is None:
        known = ", ".join(sorted(each.asset for each in tables)) or "none"
        remedy = f"Use an asset or table from these definitions: {known}."
        raise InstanceError(problem=f"{source} isn't in these definitions.", remedy=remedy)
    return found


def _as_json(made: IntervalTable, name: str) -> dict[str, object]:
    changes = made.changes
    return {
        "table": name,
        "source": made.source,
        "from_exclusive": at_json(made.from_exclusive),
        "to_inclusive": at_json(made.to_inclusive),
        "files": len(changes.touched),
        "rows_in_added_files": changes.row_count,
        "may_remove_rows": changes.may_remove_rows,
        "tags": {str(tag): str(snapshot_id) for tag, snapshot_id in made.tags.items()},
        "sql": _statements(made, name),
    }


def _text(made: IntervalTable, name: str) -> str:
    changes = made.changes
    start = f"after snapshot {at_text(made.from_exclusive)}" if made.from_exclusive else "from the beginning"
    gone = ", and rows of other files may have been removed" if changes.may_remove_rows else ""
    files, rows = counted(len(changes.added), "added file"), counted(changes.row_count, "row")
    added = f"{files} with {rows}, {size_text(changes.size_bytes)}"
    lines = [
        f"{made.source} {start} up to snapshot {at_text(made.to_inclusive)}: {added}{gone}.",
        f"Read it from {name}, which has no data files of its own:",
        *(f"  {what:8} {sql}" for what, sql in _statements(made, name).items()),
        "While it exists, ips_hygiene keeps those snapshots. To drop it:",
        with_workspace(f"  dagster-ips icdc --drop {shlex.quote(made.name)}"),
    ]
    return "\n".join(lines)


def _statements(made: IntervalTable, name: str) -> dict[str, str]:
    """SQL for exactly the rows that were added and removed."""
    if not made.changes.may_remove_rows:
        return {"added": f"SELECT * FROM {name}"}  # noqa: S608  # its parts are quoted
    before, after = (f"SELECT * FROM {name} VERSION AS OF '{tag}'" for tag in ("before", "after"))  # noqa: S608  # as above
    return {"added": f"{after} EXCEPT ALL {before}", "removed": f"{before} EXCEPT ALL {after}"}
