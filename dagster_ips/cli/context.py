"""What every command needs: the consumers, the instance, and who is asking."""

from __future__ import annotations

import contextlib
import getpass
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_ips._compat import definitions_at
from dagster_ips.cli.known_consumers import KnownConsumer, consumer_named, known_consumers
from dagster_ips.core.capture import EdgeState
from dagster_ips.core.code_of_rows import OlderRows
from dagster_ips.errors import InstanceError
from dagster_ips.exactly_once.administration import Administrator
from dagster_ips.exactly_once.inspect.edge_status import Inspector
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.code_stamps import older_rows_of
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.orchestration.watch.failed_runs import failed_runs
from dagster_ips.orchestration.watch.run_at_work import run_at_work


@dataclass(frozen=True)
class Workplace:
    """The consumers of the definitions and the instance that runs them."""

    consumers: Mapping[str, KnownConsumer]
    instance: dg.DagsterInstance

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
                problem=f"{asset} is partitioned, and each of its partitions is consumed by itself.",
                remedy="Launch a backfill of the partitions from Dagster's UI: they are computed anew.",
            )
        return known

    def inspector(self, known: KnownConsumer) -> Inspector:
        """Looks at the consumer's edges."""
        return Inspector(self._lake(known), self.store, known.consumer.table, known.manager.icdc_namespace)

    def administrator(self, known: KnownConsumer) -> Administrator:
        """Changes the consumer's edges."""
        return Administrator(self._lake(known), self.store, known.consumer.table, known.manager.icdc_namespace)

    def older_rows(self, known: KnownConsumer) -> OlderRows | None:
        """What of the consumer's table its code of now would make otherwise; None if nothing is known to be."""
        target = self._lake(known).find(known.consumer.table)
        return older_rows_of(target, known.code_version) if target else None

    def failed(self, known: KnownConsumer) -> Mapping[str, str]:
        """The runs in which the consumer failed last, by partition; by an empty text that of one without."""
        consumer = known.consumer
        found = failed_runs(self.instance, consumer.key, is_partitioned=consumer.is_partitioned)
        return {key: record.dagster_run.run_id for key, record in found.items()}

    def require_idle(self, known: KnownConsumer, states: list[EdgeState]) -> None:
        """Refuse what a run's work would be lost by.

        Raises:
            InstanceError: a run is working on the consumer.
        """
        if (run_id := run_at_work(self.instance, known.consumer.key, states)) is not None:
            raise InstanceError(
                problem=f"Run {run_id} is working on {known.consumer.name}, and its work would be lost.",
                remedy="Wait until it has ended, or terminate it.",
            )

    def _lake(self, known: KnownConsumer) -> LakeCatalog:
        return known.manager.catalog.open()


@contextlib.contextmanager
def workplace_at(options: dict[str, Any]) -> Iterator[Workplace]:
    """Where Dagster's ``options`` say that definitions are; they are taken out of it.

    Raises:
        InstanceError: there are no definitions, or there is no instance.
    """
    consumers = _consumers_at(options)
    with _instance() as instance:
        yield Workplace(consumers, instance)


def _consumers_at(options: dict[str, Any]) -> Mapping[str, KnownConsumer]:
    try:
        return known_consumers(*definitions_at(options))
    except (FileNotFoundError, dg.DagsterError) as error:
        remedy = "Say where they are as for dagster: -m MODULE, -f FILE or -w WORKSPACE, or in pyproject.toml."
        raise InstanceError(problem=f"The definitions can't be loaded: {_sentence(error)}", remedy=remedy) from error


def _instance() -> dg.DagsterInstance:
    try:
        return dg.DagsterInstance.get()
    except dg.DagsterError as error:
        problem = f"There is no Dagster instance here: {_sentence(error)}"
        remedy = "Set DAGSTER_HOME to the absolute path of the folder with the instance's dagster.yaml."
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
