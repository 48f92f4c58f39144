"""A pipeline whose code changes, run and backfilled the way Dagster's daemon does it, with ``dagster-ips`` on it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
from click.testing import CliRunner, Result

from dagster_ips.cli.main import main
from tests.support.lake import Event, Lake
from tests.support.partitioned import DAYS, SENSOR, run
from tests.support.ticks import tick

PARTITION_TAGS = ("partition", "asset_partition_range_start", "asset_partition_range_end")


class BackfilledPipeline(ABC):
    """A pipeline that follows ``media.playback``; each test has its own.

    It writes ``TABLES``. A staged backfill ends with the stage ``LAST``.
    """

    TABLES: tuple[str, ...]
    LAST: str

    def __init__(self, lake: Lake, instance: dg.DagsterInstance, folder: Path) -> None:
        self.lake, self.instance, self.folder = lake, instance, folder
        self.events: list[Event] = []
        self._cursor: str | None = None

    @property
    @abstractmethod
    def definitions(self) -> dg.Definitions:
        """The definitions with the current code."""

    @property
    @abstractmethod
    def file(self) -> Path:
        """The file of the definitions, for a command line."""

    def arrive(self, *rows: Event) -> None:
        """Append events from outside and run all stages that follow."""
        self.land(*rows)
        self.follow()

    def land(self, *rows: Event) -> None:
        """Append events from outside."""
        self.lake.append(list(rows))
        self.events += rows

    def follow(self) -> list[tuple[str, ...]]:
        """Run what automation requests until nothing is pending."""
        definitions = self.definitions
        job, runs = definitions.resolve_implicit_global_asset_job_def(), []
        while True:
            data = tick(definitions, self.instance, cursor=self._cursor)
            self._cursor = data.cursor
            if not data.run_requests:
                return runs
            for request in data.run_requests:
                selected = list(request.asset_selection or ())
                job.execute_in_process(
                    instance=self.instance, asset_selection=selected, tags={**request.tags, **SENSOR}
                )
                keys = [request.tags.get(f"dagster/{tag}", "") for tag in PARTITION_TAGS]
                runs.append(("+".join(sorted(key.to_user_string() for key in selected)), *keys))

    def rows(self) -> dict[str, Counter[tuple[Any, ...]]]:
        return {table: self.lake.rows(table) for table in self.TABLES}

    def run(self, asset: str, first: str, last: str = "", **tags: str) -> None:
        run(self.definitions, self.instance, asset, first, last, **tags)

    def backfill(self, backfill_id: str) -> None:
        """Do what the daemon does for a launched backfill: run its partitions once, then complete it."""
        found = self.instance.get_backfill(backfill_id)
        assert found is not None
        assert found.asset_backfill_data is not None
        subset = found.asset_backfill_data.target_subset
        ((key, partitions),) = subset.partitions_subsets_by_asset_key.items()
        keys = sorted(partitions.get_partition_keys())
        assert keys == list(DAYS.get_partition_keys_in_range(dg.PartitionKeyRange(keys[0], keys[-1])))
        tags = {**found.tags, "dagster/backfill": backfill_id}
        self.run(key.to_user_string(), keys[0], keys[-1], **tags)
        self.instance.update_backfill(found.with_status(type(found.status).COMPLETED_SUCCESS))

    def stage(self, backfill_id: str, *assets: str) -> None:
        """Do what the daemon does for a staged backfill: run each asset once; after the last one, complete it."""
        found = self.instance.get_backfill(backfill_id)
        assert found is not None
        assert found.asset_backfill_data is not None
        subset = found.asset_backfill_data.target_subset
        tags = {**found.tags, "dagster/backfill": backfill_id}
        for asset in assets:
            if dg.AssetKey(asset) in subset.non_partitioned_asset_keys:
                job = self.definitions.resolve_implicit_global_asset_job_def()
                job.execute_in_process(instance=self.instance, asset_selection=[dg.AssetKey(asset)], tags=tags)
                continue
            keys = sorted(subset.partitions_subsets_by_asset_key[dg.AssetKey(asset)].get_partition_keys())
            self.run(asset, keys[0], keys[-1], **tags)
        if self.LAST in assets:
            self.instance.update_backfill(found.with_status(type(found.status).COMPLETED_SUCCESS))

    def command(self, name: str, *words: str, answer: str = "") -> Result:
        return CliRunner().invoke(main, ["backfill", name, "-f", str(self.file), *words], input=answer)

    def says(self, name: str, *words: str, answer: str = "") -> str:
        """The output of a command that succeeds."""
        result = self.command(name, *words, answer=answer)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    def told(self, name: str, *words: str) -> dict[str, Any]:
        """The JSON output of a command."""
        found: dict[str, Any] = json.loads(self.says(name, *words, "--json"))
        return found

    def refuses(self, name: str, *words: str) -> str:
        """The error output of a command that ends with one of the library's errors."""
        result = self.command(name, *words)
        assert result.exit_code in (1, 2), result.output
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.stderr

    def plan(self, *words: str) -> str:
        """Make a plan; returns its id."""
        plan: str = self.told("plan", *words)["id"]
        return plan
