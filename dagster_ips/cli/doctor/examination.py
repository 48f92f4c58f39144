"""``dagster-ips doctor``: runs every check, whatever the others find."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from dagster_ips.cli.context import Workplace
from dagster_ips.cli.doctor import dagster_instance, lake_tables, local_machine
from dagster_ips.cli.doctor.finding import Finding
from dagster_ips.cli.doctor.lake_tables import guarded
from dagster_ips.cli.next_commands import with_workspace
from dagster_ips.cli.shown_progress import shown_while
from dagster_ips.cli.text_format import json_text
from dagster_ips.core.size_text import counted
from dagster_ips.orchestration.platform.resources import LocalSparkConnect
from dagster_ips.orchestration.run.known_consumers import KnownTable


def doctor(workplace: Workplace, *, as_json: bool) -> bool:
    """Print the findings; returns whether there are none."""
    with shown_while("Checking the machine, the instance and the tables"):
        found = list(findings(workplace))
    if as_json:
        shown = [
            {"check": f.check, "severity": f.severity, "where": f.where, "what": f.what, "fix": f.fix} for f in found
        ]
        click.echo(json_text(shown))
        return not found
    for each in found:
        click.echo(f"{each.severity}: {each.check}: {each.where}\n  {each.what}\n  → {with_workspace(each.fix)}\n")
    count = counted(len(found), "finding") if found else "Nothing found"
    assets = counted(len(workplace.consumers), "incremental asset")
    tables = counted(len(workplace.known_tables), "table")
    click.echo(f"{count}. Checked {assets}, {tables}, this machine and the instance.")
    return not found


def findings(workplace: Workplace) -> Iterator[Finding]:
    """The findings of every check: the machine and the instance, then each catalog with its tables, then each consumer.

    Checks that need a catalog are left out if it has findings itself.
    """
    instance, home = workplace.instance, "DAGSTER_HOME"
    managers = {id(each.manager): each.manager for each in workplace.known_tables}
    sparks = [each.spark for each in managers.values() if isinstance(each.spark, LocalSparkConnect)]
    extras = sorted({extra for each in sparks for extra in each.extra_jars})
    if sparks:
        yield from guarded("java", "this machine", local_machine.java())
        yield from guarded("jars", "this machine", local_machine.jars(extras))
    for manager in managers.values():
        yield from guarded("jars", manager.catalog.shown_name, local_machine.extra_jars(manager))
    for spark in {each.server_folder: each for each in sparks}.values():
        yield from guarded("spark server", "this machine", local_machine.spark_server(spark))
    yield from guarded("cursor storage", home, dagster_instance.cursors(instance, workplace))
    yield from guarded("daemon", home, dagster_instance.daemon(instance))
    yield from guarded("sensors", home, dagster_instance.sensors(instance, workplace.definitions))
    warnings = {name: known.warning for name, known in workplace.consumers.items() if known.warning}
    yield from dagster_instance.triggers(warnings)
    yield from lake_tables.owners(workplace.known_tables)
    mute = set()
    for manager in managers.values():
        silent = list(guarded("catalog", manager.catalog.shown_name, lake_tables.catalog(manager)))
        yield from silent
        if silent:
            mute.add(id(manager.catalog))
    for manager in managers.values():
        if id(manager.catalog) not in mute:
            yield from _of_tables(workplace, [each for each in workplace.known_tables if each.manager is manager])
    for name, known in sorted(workplace.consumers.items()):
        if id(known.manager.catalog) not in mute:
            yield from guarded("next run", name, lake_tables.edges(workplace, known))
        yield from guarded("failed runs", name, lake_tables.failures(workplace, known))


def _of_tables(workplace: Workplace, tables: Sequence[KnownTable]) -> Iterator[Finding]:
    """The findings on ``tables``, which have one manager; a branch is only tried where files can be written."""
    is_writable = True
    for each in tables:
        stored = list(guarded("storage", each.table, lake_tables.storage(each)))
        is_writable = is_writable and not stored
        yield from stored
        yield from guarded("leftover branches", each.table, lake_tables.branches(workplace, each))
    if is_writable:
        yield from guarded("catalog", tables[0].manager.catalog.shown_name, lake_tables.kept_branches(tables))
