"""``dagster-ips doctor``: runs every check, whatever the others find."""

from __future__ import annotations

from collections.abc import Iterator

import click

from dagster_ips.cli.context import Workplace
from dagster_ips.cli.doctor import dagster_instance, lake_tables, local_machine
from dagster_ips.cli.doctor.finding import Finding
from dagster_ips.cli.doctor.lake_tables import guarded
from dagster_ips.cli.next_commands import with_workspace
from dagster_ips.cli.progress import shown_while
from dagster_ips.cli.text_format import json_text
from dagster_ips.core.size_text import counted
from dagster_ips.orchestration.platform.resources import LocalSparkConnect


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
    for table in workplace.known_tables:
        if id(table.manager.catalog) not in mute:
            yield from guarded("storage", table.table, lake_tables.storage(table))
            yield from guarded("leftover branches", table.table, lake_tables.branches(workplace, table))
    for name, known in sorted(workplace.consumers.items()):
        if id(known.manager.catalog) not in mute:
            yield from guarded("next run", name, lake_tables.edges(workplace, known))
        yield from guarded("failed runs", name, lake_tables.failures(workplace, known))
