"""What every command needs: the consumers, the instance, and the user's name."""

from __future__ import annotations

import contextlib
import getpass
import os
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from shlex import quote
from typing import Any

import click
import dagster as dg
from dagster import RunRecord

from dagster_ips._compat import definitions_at, knowing_partitions
from dagster_ips.core.code_of_rows import OlderRows
from dagster_ips.core.size_text import counted, size_text
from dagster_ips.core.table_name import name_of, parts_of
from dagster_ips.errors import (
    InstanceError,
    MetadataUnreadableError,
    StateUnreadableError,
    StateVersionError,
    TargetChangedError,
    UnknownPublicationError,
    UnsupportedTableError,
)
from dagster_ips.exactly_once.administration import Administrator
from dagster_ips.exactly_once.inspect.edge_status import Inspector, Pending
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.orchestration.automate.blocked_condition import blocked_at_last_tick
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.orchestration.run.known_consumers import (
    KnownConsumer,
    KnownTable,
    consumer_named,
    known_consumers,
    known_tables,
)
from dagster_ips.orchestration.watch.failed_runs import failed_runs
from dagster_ips.orchestration.watch.run_at_work import RunsAtWork, run_at_work
from dagster_ips.orchestration.watch.watched_tables import partitions_with_rows_in
from dagster_ips.progress.cursor import progress_of
from dagster_ips.progress.made_rows import older_rows_of
from dagster_ips.progress.table_progress import TableProgress

# What is wrong with one table alone: commands that show several report it and show the others.
UNREADABLE = (MetadataUnreadableError, UnsupportedTableError)
UNKNOWN = (*UNREADABLE, TargetChangedError, UnknownPublicationError, StateUnreadableError, StateVersionError)
"""What is raised if it is unknown what one table contains."""
_MOST_LINES, _LONGEST = 4, 600
_CHOOSE = "--catalog NAME or --folder FOLDER."
_WHERE = "Specify the definitions as for dagster: -m MODULE, -f FILE or -w WORKSPACE, or in pyproject.toml."


@dataclass(frozen=True, slots=True)
class ReadTables:
    """The metadata of the tables that could be read, and why others couldn't."""

    read: list[TableMetadata]
    problems: list[str]


@dataclass(frozen=True)
class Workplace:
    """The consumers of the definitions and the instance that runs them."""

    consumers: Mapping[str, KnownConsumer]
    known_tables: Sequence[KnownTable]
    definitions: Sequence[dg.Definitions]
    instance: dg.DagsterInstance

    @cached_property
    def tables(self) -> ReadTables:
        """Each existing table that the definitions name; once, even if several locations name it."""
        named = {each.manager.catalog.name_of(each.table): each for each in self.known_tables}
        found = ReadTables([], [])
        for each in named.values():
            try:
                metadata = each.manager.catalog.open().find(each.table)
            except UNREADABLE as error:
                found.problems.append(str(error))
            else:
                found.read.extend([metadata] if metadata else [])
        return found

    @property
    def store(self) -> CursorStore:
        """The instance's cursors."""
        return CursorStore(self.instance)

    def consumer(self, asset: str) -> KnownConsumer:
        """The consumer with the asset key ``asset``.

        Raises:
            UnknownConsumerError: there is none.
        """
        return consumer_named(self.consumers, asset)

    def unpartitioned(self, asset: str) -> KnownConsumer:
        """Like ``consumer``, for commands that don't work on partitioned assets.

        Raises:
            UnknownConsumerError: there is none.
            InstanceError: the asset is partitioned.
        """
        known = self.consumer(asset)
        if known.consumer.is_partitioned:
            raise InstanceError(
                problem=f"{asset} is partitioned, and each of its partitions is consumed separately.",
                remedy=f"To recompute them all: dagster-ips run {quote(asset)} --full; or some: dagster-ips run "
                f"{quote(asset)} --partitions FIRST...LAST",
            )
        return known

    def inspector(self, known: KnownConsumer) -> Inspector:
        """The inspector of the consumer's edges."""
        table, namespace = known.consumer.table, known.manager.icdc_namespace
        return Inspector(self._lake(known), self.store, table, namespace, self.runs_at_work(known))

    def runs_at_work(self, known: KnownConsumer) -> RunsAtWork:
        """Whether runs of the consumer may be at work."""
        return RunsAtWork(self.instance, self.store, known.consumer.name)

    def progress(self, known: KnownConsumer) -> TableProgress | None:
        """What the consumer's table contains; None if nothing was ever published to it.

        Raises:
            IpsError: that is unknown.
        """
        name, cursor = known.consumer.name, self.store.get(known.consumer.name)
        lake = self._lake(known)
        target = lake.find(known.consumer.table)
        return progress_of(target, cursor, asset=name, storage=lake.storage)

    def partitions(self, known: KnownConsumer) -> list[str] | None:
        """The consumer's partitions, in their order; None if it isn't partitioned."""
        definition = known.graph.get(known.consumer.key).partitions_def
        return None if definition is None else [*definition.get_partition_keys(dynamic_partitions_store=self.instance)]

    def administrator(self, known: KnownConsumer) -> Administrator:
        """The administrator, which changes the consumer's edges."""
        return Administrator(self._lake(known), self.store, known.consumer.table, known.manager.icdc_namespace)

    def everything(self, known: KnownConsumer) -> Mapping[str, Pending]:
        """What a full recompute of the consumer's table would read, by upstream, without tables that don't exist."""
        inspector, lake = self.inspector(known), self._lake(known)
        inputs = [each for each in known.consumer.inputs.values() if lake.find(each.table) is not None]
        return {each.upstream: inspector.everything(each, known.consumer.name) for each in inputs}

    def everything_text(self, known: KnownConsumer) -> str:
        """Like ``everything``, as text."""
        found = self.everything(known)
        read = [
            f"{counted(p.files, 'file')}, {counted(p.rows, 'row')}, {size_text(p.size_bytes)} of {name}"
            for name, p in found.items()
        ]
        return " and ".join(read) or "nothing, because no table exists yet"

    def older_rows(self, known: KnownConsumer) -> OlderRows | None:
        """The rows that the consumer's current code would compute differently; None if none are known.

        Raises:
            IpsError: the table can't be read, or what it contains is unknown.
        """
        lake, consumer = self._lake(known), known.consumer
        target = lake.find(consumer.table)
        if target is None:
            return None
        code, partitions, declared = known.code_version, self.partitions(known), consumer.maker.declared
        with_rows = partial(partitions_with_rows_in, target, lake.storage, known.graph, consumer.key, self.instance)
        with knowing_partitions(self.instance):
            return older_rows_of(target, code, partitions, declared=declared, with_rows=with_rows)

    def failed(self, known: KnownConsumer) -> Mapping[str, RunRecord]:
        """The runs in which the consumer failed or yielded nothing last, by partition, as ``failed_runs`` has them."""
        return failed_runs(self.instance, known.consumer.key, is_partitioned=known.consumer.is_partitioned)

    def blocked(self, known: KnownConsumer) -> frozenset[str]:
        """The failed partitions that automation doesn't retry now; ``""`` stands for an asset without partitions."""
        failed = self.failed(known)
        return blocked_at_last_tick(self.instance, known.consumer.key) & failed.keys() if failed else frozenset()

    def require_idle(self, known: KnownConsumer) -> None:
        """Fail if a run is working on the consumer, because its work would be lost.

        Raises:
            InstanceError: a run is working on the consumer.
        """
        if (run_id := run_at_work(self.instance, known.consumer.key)) is not None:
            raise InstanceError(
                problem=f"Run {run_id} is processing {known.consumer.name}, and its work would be lost.",
                remedy="Wait until it has finished, or terminate it.",
            )

    def _lake(self, known: KnownConsumer) -> LakeCatalog:
        return known.manager.catalog.open()


@contextlib.contextmanager
def workplace_at(options: dict[str, Any]) -> Iterator[Workplace]:
    """The workplace for the definitions that Dagster's ``options`` name; removes these options from the dict.

    Raises:
        InstanceError: there are no definitions, or there is no instance.
    """
    consumers, tables, definitions = known_at(options)
    with _instance() as instance:
        yield Workplace(consumers, tables, definitions, instance)


def known_at(
    options: dict[str, Any],
) -> tuple[Mapping[str, KnownConsumer], Sequence[KnownTable], Sequence[dg.Definitions]]:
    """The consumers, tables and definitions that Dagster's ``options`` name; removes these options from the dict.

    Raises:
        InstanceError: the definitions can't be loaded.
        click.UsageError: nothing says where they are, or options exclude each other.
    """
    skipped: list[str] = []
    try:
        with contextlib.redirect_stdout(sys.stderr):  # What their code prints must not mix with what a command prints.
            definitions = list(definitions_at(options, skipped.append))
        if not definitions:
            raise _no_definitions(skipped)
        if skipped:
            click.echo(f"Not looked at, because code servers have them: {', '.join(skipped)}", err=True)
        return known_consumers(*definitions), known_tables(*definitions), definitions
    except click.UsageError as error:
        message = f"{error.message} {_WHERE}"
        raise click.UsageError(message) from error
    except (FileNotFoundError, dg.DagsterError) as error:
        raise InstanceError(problem=f"The definitions can't be loaded: {_sentence(error)}", remedy=_WHERE) from error


def _no_definitions(skipped: Sequence[str]) -> InstanceError:
    problem = "There are no Definitions here."
    if skipped:
        problem = f"Only code servers have the definitions ({', '.join(skipped)}), so they can't be loaded here."
    return InstanceError(problem=problem, remedy="Specify them by their code: -m MODULE or -f FILE.")


def catalog_of(options: dict[str, Any], *, folder: str | None, name: str | None) -> LakeCatalog:
    """The catalog in ``folder``, or the one for which PyIceberg is configured as ``name``, or else the definitions'.

    Raises:
        InstanceError: there are no definitions, their tables are in several catalogs, or there is none in ``folder``.
        click.UsageError: nothing says where definitions are.
    """
    if folder is not None:
        if not Path(folder, "catalog.db").exists():  # It would be created.
            problem = f"There is no catalog in {folder}."
            raise InstanceError(problem=problem, remedy="Give the folder of an IcebergCatalog(folder=...).")
        return LakeCatalog.embedded(name or _its_name(Path(folder)), Path(folder))
    if name is not None:
        return LakeCatalog.configured(name)
    try:
        _, tables, _ = known_at(options)
    except click.UsageError as error:
        message = f"{error.message} Without definitions: {_CHOOSE}"
        raise click.UsageError(message) from error
    catalogs = {each.manager.catalog.name_of(""): each.manager.catalog for each in tables}
    if len(catalogs) != 1:
        problem = f"The definitions have tables in {len(catalogs)} catalogs."
        raise InstanceError(problem=problem, remedy=f"Choose one: {_CHOOSE}")
    return next(iter(catalogs.values())).open()


def _its_name(folder: Path) -> str:
    """The name of the catalog in a folder; the usual one if it has no tables, or several catalogs are in it."""
    with contextlib.closing(sqlite3.connect(folder / "catalog.db")) as database:
        try:
            found = database.execute("SELECT DISTINCT catalog_name FROM iceberg_tables").fetchall()
        except sqlite3.DatabaseError:
            found = []
    return str(found[0][0]) if len(found) == 1 else "lake"


def table_name(given: str) -> str:
    """A table's name in the form in which names are stored.

    Raises:
        InstanceError: no table can have such a name.
    """
    try:
        return name_of(parts_of(given))
    except ValueError as error:
        remedy = "Write a table's name as in Spark SQL: media.playback, or media.`my.table`."
        raise InstanceError(problem=f"{error}.", remedy=remedy) from None


def _instance() -> dg.DagsterInstance:
    try:
        return dg.DagsterInstance.get()
    except dg.DagsterError as error:
        problem = f"There is no Dagster instance here: {_sentence(error)}"
        remedy = "Set DAGSTER_HOME to the absolute path of the folder that contains the instance's dagster.yaml."
        raise InstanceError(problem=problem, remedy=remedy) from error
    except Exception as error:  # of its storage's driver, or of YAML; drivers' messages may contain passwords
        problem = f"The Dagster instance in {os.environ.get('DAGSTER_HOME')} can't be opened ({type(error).__name__})."
        remedy = "Correct its dagster.yaml, or wait until the database of its storage answers."
        raise InstanceError(problem=problem, remedy=remedy) from error


def _sentence(error: Exception) -> str:
    """An error's message as one sentence, without what follows its first lines."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    text = " ".join(lines[:_MOST_LINES])
    return f"{text[:_LONGEST]}…" if len(text) > _LONGEST else f"{text.rstrip(' .')}."


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is changed, unless an option says ``yes``; ends the command if the answer is no."""
    if not yes:
        click.confirm(question, abort=True)


def who_is_asking() -> str:
    """The operating system's name for the user, or the user's number if there is no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"
