"""What every command needs: the consumers, the instance, and who is asking."""

from __future__ import annotations

import contextlib
import getpass
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_ips._compat import definitions_at
from dagster_ips.core.capture import EdgeState
from dagster_ips.core.code_of_rows import OlderRows
from dagster_ips.core.size_text import size_text
from dagster_ips.errors import InstanceError
from dagster_ips.exactly_once.administration import Administrator
from dagster_ips.exactly_once.inspect.edge_status import Inspector, Pending
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.code_stamps import older_rows_of
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
from dagster_ips.orchestration.watch.run_at_work import run_at_work


@dataclass(frozen=True)
class Workplace:
    """The consumers of the definitions and the instance that runs them."""

    consumers: Mapping[str, KnownConsumer]
    known_tables: Sequence[KnownTable]
    definitions: Sequence[dg.Definitions]
    instance: dg.DagsterInstance

    def tables(self) -> list[TableMetadata]:
        """The metadata of every table that the definitions name and that is there."""
        found = (each.manager.catalog.open().find(each.table) for each in self.known_tables)
        return [metadata for metadata in found if metadata is not None]

    @property
    def store(self) -> CursorStore:
        """The instance's cursors."""
        return CursorStore(self.instance)

    def consumer(self, asset: str) -> KnownConsumer:
        """The consumer of that asset key.

        Raises:
            UnknownConsumerError: there is none.
        """
        return consumer_named(self.consumers, asset)

    def unpartitioned(self, asset: str) -> KnownConsumer:
        """As ``consumer``, for what can't be done to a partitioned asset as a whole.

        Raises:
            UnknownConsumerError: there is none.
            InstanceError: it is partitioned.
        """
        known = self.consumer(asset)
        if known.consumer.is_partitioned:
            raise InstanceError(
                problem=f"{asset} is partitioned, and each of its partitions is consumed separately.",
                remedy="To recompute the partitions, launch a backfill of them from Dagster's UI.",
            )
        return known

    def inspector(self, known: KnownConsumer) -> Inspector:
        """Looks at the consumer's edges."""
        return Inspector(self._lake(known), self.store, known.consumer.table, known.manager.icdc_namespace)

    def administrator(self, known: KnownConsumer) -> Administrator:
        """Changes the consumer's edges."""
        return Administrator(self._lake(known), self.store, known.consumer.table, known.manager.icdc_namespace)

    def everything(self, known: KnownConsumer) -> Mapping[str, Pending]:
        """What a run that computes all of the consumer's table would read, by upstream; of tables that are there."""
        inspector, lake = self.inspector(known), self._lake(known)
        inputs = [each for each in known.consumer.inputs.values() if lake.find(each.table) is not None]
        return {each.upstream: inspector.everything(each, known.consumer.name) for each in inputs}

    def everything_text(self, known: KnownConsumer) -> str:
        """As ``everything``, in words."""
        found = self.everything(known)
        read = [f"{p.files} files, {p.rows} rows, {size_text(p.size_bytes)} of {name}" for name, p in found.items()]
        return " and ".join(read) or "nothing, because no table exists yet"

    def older_rows(self, known: KnownConsumer) -> OlderRows | None:
        """What of the consumer's table its code of now would make otherwise; None if nothing is known to be."""
        target = self._lake(known).find(known.consumer.table)
        declared = known.consumer.maker.declared
        return older_rows_of(target, known.code_version, declared=declared) if target else None

    def failed(self, known: KnownConsumer) -> Mapping[str, str]:
        """The runs in which the consumer failed last, by partition; by an empty text that of one without."""
        consumer = known.consumer
        found = failed_runs(self.instance, consumer.key, is_partitioned=consumer.is_partitioned)
        return {key: record.dagster_run.run_id for key, record in found.items()}

    def blocked(self, known: KnownConsumer) -> frozenset[str]:
        """Of those that failed, what automation doesn't try again by itself, or not yet."""
        failed = self.failed(known)
        return blocked_at_last_tick(self.instance, known.consumer.key) & failed.keys() if failed else frozenset()

    def require_idle(self, known: KnownConsumer, states: list[EdgeState]) -> None:
        """Refuse what a run's work would be lost by.

        Raises:
            InstanceError: a run is working on the consumer.
        """
        if (run_id := run_at_work(self.instance, known.consumer.key, states)) is not None:
            raise InstanceError(
                problem=f"Run {run_id} is processing {known.consumer.name}, and its work would be lost.",
                remedy="Wait until it has finished, or terminate it.",
            )

    def _lake(self, known: KnownConsumer) -> LakeCatalog:
        return known.manager.catalog.open()


@contextlib.contextmanager
def workplace_at(options: dict[str, Any]) -> Iterator[Workplace]:
    """Where Dagster's ``options`` say that definitions are; they are taken out of it.

    Raises:
        InstanceError: there are no definitions, or there is no instance.
    """
    consumers, tables, definitions = known_at(options)
    with _instance() as instance:
        yield Workplace(consumers, tables, definitions, instance)


def known_at(
    options: dict[str, Any],
) -> tuple[Mapping[str, KnownConsumer], Sequence[KnownTable], Sequence[dg.Definitions]]:
    """The consumers, the tables and the definitions that Dagster's ``options`` name; they are taken out of it.

    Raises:
        InstanceError: there are none.
    """
    try:
        definitions = list(definitions_at(options))
        return known_consumers(*definitions), known_tables(*definitions), definitions
    except (FileNotFoundError, dg.DagsterError) as error:
        remedy = "Specify them as for dagster: -m MODULE, -f FILE or -w WORKSPACE, or in pyproject.toml."
        raise InstanceError(problem=f"The definitions can't be loaded: {_sentence(error)}", remedy=remedy) from error


def catalog_of(options: dict[str, Any], *, folder: str | None, name: str | None) -> LakeCatalog:
    """The catalog in ``folder``, the one that PyIceberg knows by ``name``, or by default that of the definitions.

    Raises:
        InstanceError: there are no definitions, or their tables are in several catalogs.
    """
    if folder is not None:
        return LakeCatalog.embedded(name or "lake", Path(folder))
    if name is not None:
        return LakeCatalog.configured(name)
    _, tables, _ = known_at(options)
    catalogs = {each.manager.catalog.name_of(""): each.manager.catalog for each in tables}
    if len(catalogs) != 1:
        problem = f"The definitions have tables in {len(catalogs)} catalogs."
        raise InstanceError(problem=problem, remedy="Choose one: --catalog NAME or --folder FOLDER.")
    return next(iter(catalogs.values())).open()


def _instance() -> dg.DagsterInstance:
    try:
        return dg.DagsterInstance.get()
    except dg.DagsterError as error:
        problem = f"There is no Dagster instance here: {_sentence(error)}"
        remedy = "Set DAGSTER_HOME to the absolute path of the folder that contains the instance's dagster.yaml."
        raise InstanceError(problem=problem, remedy=remedy) from error


def _sentence(error: Exception) -> str:
    """What it says at first."""
    return f"{str(error).strip().splitlines()[0].rstrip(' .')}."


def who_is_asking() -> str:
    """The operating system's name of the user, or the number if there is no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"
