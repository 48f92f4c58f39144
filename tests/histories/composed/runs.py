"""Runs of assets, by Dagster or as the IO manager does them. They can sleep between capture and publication."""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_ips.core.capture import Capture, EdgeState, Mode
from dagster_ips.core.edge import Edge
from dagster_ips.core.ownership import ASSET, Consent
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import StateUnreadableError, TargetChangedError, UnknownPublicationError
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.lost_files import unreadable
from dagster_ips.exactly_once.capture.partition_captures import RunPartitions
from dagster_ips.exactly_once.capture.partitioned_input import PartitionedInput, look_at
from dagster_ips.exactly_once.capture.row_counts import count_rows
from dagster_ips.exactly_once.capture.tables_together import capture_together
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.publish.publisher import Publisher
from dagster_ips.exactly_once.publish.result_publication import AssetTable, create_target, publish_result
from dagster_ips.exactly_once.publish.statement_block import block
from dagster_ips.exactly_once.snapshot_rows import snapshot_rows
from dagster_ips.iceberg.stamps import owner_properties
from dagster_ips.orchestration.declare.consumers import Consumer, capturing_consumers, consumers_of
from dagster_ips.orchestration.declare.declarations import description_of, write_mode_of
from dagster_ips.orchestration.declare.partition_definitions import partition_keys
from dagster_ips.orchestration.declare.partition_mappings import partition_expression
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.orchestration.run.io_manager import returned
from dagster_ips.orchestration.run.own_sql import OwnSql
from dagster_ips.progress.advance import Advance
from dagster_ips.progress.cursor import known_progress, state_of
from dagster_ips.progress.made_rows import MadeBy
from dagster_ips.progress.table_progress import TableProgress, table_progress
from dagster_ips.run_view import RunView
from dagster_ips.spark.targets import empty_frame
from tests.histories.composed.assets import ASSETS, COUNTED, TOGETHER, count, definitions
from tests.support.lake import Lake
from tests.support.partitioned import SENSOR

OWN_SQL = {"counted": (COUNTED, count)}
"""The columns and the statements of each asset that writes with its own SQL."""


@dataclass
class Begun:
    """A run that has captured and computed but not published. ``looked_up`` are the heads of its lookups at that time.

    ``returned`` is the return value of the asset's function: a frame that hasn't computed any row yet.
    """

    asset: str
    captured: Mapping[str, CapturedInput]
    views: Mapping[str, RunView]
    looked_up: Mapping[str, int | None]
    run_id: str
    keys: tuple[str, ...]
    accept: int | None = None
    returned: Any = None

    @property
    def mode(self) -> Mode:
        """The mode of all the run's captures."""
        return next(iter(self.captured.values())).capture.mode

    @property
    def owner(self) -> Mapping[str, str]:
        """The properties of the run's commits that name the owner, and others' commits that the run accepts."""
        return owner_properties(self.asset, next(iter(self.captured.values())).accepted.head)

    @property
    def advance(self) -> Advance:
        """What the run adds to the progress of its table."""
        return next(iter(self.captured.values())).advance

    @property
    def captures(self) -> list[Capture]:
        """The captures to commit once the result is published."""
        return [capture for each in self.captured.values() for capture in each.captures]


@dataclass(frozen=True)
class Assets:
    """The assets on one lake, and a Dagster instance that keeps their cursors."""

    lake: Lake
    instance: dg.DagsterInstance

    @cached_property
    def definitions(self) -> dg.Definitions:
        return definitions(self.lake.folder, self.lake.spark_folder)

    @cached_property
    def _job(self) -> dg.JobDefinition:
        return self.definitions.resolve_implicit_global_asset_job_def()

    @cached_property
    def _graph(self) -> Any:  # noqa: ANN401  # Dagster's asset graph has no public type
        return self._job.asset_layer.asset_graph

    @cached_property
    def by_name(self) -> dict[str, dg.AssetsDefinition]:
        """The definition of each asset."""
        keys = [key for each in ASSETS for key in each.keys]
        return {key.to_user_string(): self._graph.get(key).assets_def for key in keys}

    @cached_property
    def _consumers(self) -> dict[str, Consumer]:
        metadata = {key: self._graph.get(key).metadata for key in self._graph.get_all_asset_keys()}
        found = [
            consumer
            for each in self.by_name.values()
            for consumers in (consumers_of, capturing_consumers)
            for consumer in consumers(each, metadata, "default")
        ]
        return {each.name: each for each in found}

    @property
    def store(self) -> CursorStore:
        """The cursors."""
        return CursorStore(self.instance)

    def inputs(self, asset: str) -> dict[str, TrackedInput]:
        """The inputs that the asset reads incrementally."""
        return self._consumers[asset].tracked(self._graph, self.instance)

    def lookups(self, asset: str) -> list[str]:
        """The inputs that the asset reads whole."""
        return sorted(set(self.by_name[asset].keys_by_input_name) - set(self.inputs(asset)))

    def pending(self, asset: str) -> frozenset[str]:
        """The partitions that the sensor would request."""
        return frozenset[str]().union(*[self.looked(asset, name).pending for name in self.inputs(asset)])

    # What is consumed

    def known(self, asset: str) -> TableProgress | None:
        """What the asset's table contains; None if nothing says so."""
        target = self.lake.catalog.find(f"media.{asset}")
        try:
            found = table_progress(target, asset=asset, storage=self.lake.catalog.storage)
        except (TargetChangedError, UnknownPublicationError, StateUnreadableError):
            return None
        return known_progress(found, self.store.get(asset), target)

    def looked(self, asset: str, name: str) -> PartitionedInput:
        """What the sensor finds of an input of a partitioned asset."""
        tracked = self.inputs(asset)[name]
        source = self.lake.catalog.load(tracked.table, asset=asset)
        return look_at(self.lake.catalog.storage, source, tracked, self.known(asset), asset)

    def state(self, asset: str, name: str) -> EdgeState:
        """How far an asset without partitions has consumed an input."""
        return state_of(Edge(asset, name), self.known(asset), self.store.get(asset))

    def consumed(self, asset: str, name: str, keys: Sequence[str]) -> dict[str, Watermark | None]:
        """Up to where each of the partitions ``keys`` has consumed an input; without ``keys``, the whole table."""
        if not keys:
            return {"": self.state(asset, name).committed}
        looked = self.looked(asset, name)
        return {key: looked.start_of(key) for key in keys}

    def marks(self, asset: str, name: str) -> list[Watermark]:
        """Every watermark from which an asset still reads an input."""
        known = self.known(asset)
        found = known.progress.inputs.get(name) if known else None
        at = self.state(asset, name).committed
        untaken = [mark for mark in found.untaken.values() if mark is not None] if found else []
        return [*(found.marks if found else ()), *untaken, *([at] if at else [])]

    # Runs

    def run_by_dagster(self, asset: str, keys: Sequence[str], *, full: bool) -> None:
        """Run the partitions from the first to the last of ``keys``, as the sensor requests it."""
        tags = dict(SENSOR)
        if full:
            tags["dagster_ips/mode"] = "full"
        if keys:
            tags |= {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]}
        key = dg.AssetKey.from_user_string(asset)
        self._job.execute_in_process(instance=self.instance, asset_selection=[key], tags=tags)

    def begin(self, asset: str, keys: Sequence[str], *, full: bool, accept: int | None = None) -> Begun:
        """Capture like ``Runs.capture``, and call the asset's function.

        The run accepts what others wrote to the asset's table up to ``accept``.
        """
        (begun,) = self.begin_together([asset], keys, full=full, accept=accept)
        return begun

    def begin_together(
        self, assets: Sequence[str], keys: Sequence[str] = (), *, full: bool = False, accept: int | None = None
    ) -> list[Begun]:
        """Like ``begin``, for the tables of one step, except those that are ahead and wait for the others."""
        lake, run_id, inputs = self.lake, str(uuid.uuid4()), self.inputs(assets[0])
        consumers = [self._consumers[each] for each in assets]
        requests = [
            CaptureRequest(
                each.name,
                list(inputs.values()),
                target=each.table,
                asked_for=Mode.FULL if full else None,
                partitions=RunPartitions(tuple(keys), named_by_person=False) if each.is_partitioned else None,
                consent=Consent(accept),
                maker=each.maker,
            )
            for each in consumers
        ]
        captured = capture_together(Capturer(lake.catalog, self.store), requests, run_id=run_id)
        weighs = any(each.weighs_live_rows for each in consumers)
        first = next(iter(captured.values()))
        views = [
            RunView(found, lake.session, lake.catalog.name, storage=lake.catalog.storage, weighs_live_rows=weighs)
            for found in first
        ]
        for found in first:
            count_rows(found, lake.session, lake.catalog.name)
        heads = {name: self._head(name) for name in self.lookups(assets[0])}
        begun = [
            Begun(
                name,
                dict(zip(inputs, each, strict=True)),
                {key: view.of_another_table(one) for key, view, one in zip(inputs, views, each, strict=True)},
                heads,
                run_id,
                tuple(keys),
                accept,
            )
            for name, each in captured.items()
        ]
        return [each if each.asset in OWN_SQL else replace(each, returned=self._computed(each)) for each in begun]

    def end(self, begun: Begun) -> bool:
        """Write and publish like ``IcdcIOManager.handle_output``; returns whether something is published by now."""
        try:
            return self._end_own_sql(begun) if begun.asset in OWN_SQL else self._end(begun)
        except Exception as error:
            if lost := unreadable(error, begun.captured.values(), self.lake.catalog):
                raise lost from error
            raise
        finally:
            for view in begun.views.values():
                view.release()

    def _end(self, begun: Begun) -> bool:
        name, key = begun.asset, dg.AssetKey(begun.asset)
        made, maker = self.by_name[name], self._consumers[name].maker
        metadata = made.metadata_by_key[key]
        found = begun.returned.value if isinstance(begun.returned, dg.Output) else begun.returned
        result = returned(found, write_mode_of(metadata, name), key, begun.mode, is_consumer=True)
        result = replace(result, inputs=[view.change for view in begun.views.values()])
        table = AssetTable(
            name,
            f"media.{name}",
            description_of(metadata),
            result.write_mode,
            maker.code,
            maker.declared,
            shares_views=name in TOGETHER,
        )
        if begun.keys:
            assert made.partitions_def
            divided = partition_keys(made.partitions_def, partition_expression(metadata), self.instance, asset=name)
            table = replace(table, divided=divided, partitions=begun.keys)
        publication = publish_result(self._publisher(begun), table, result, begun.captures, looked_up={})
        return bool(publication.snapshots)

    def _end_own_sql(self, begun: Begun) -> bool:
        """Write and publish like ``capture``."""
        lake, name, table = self.lake.catalog, begun.asset, f"media.{begun.asset}"
        columns, statements = OWN_SQL[name]
        if lake.find(table) is None:
            description = description_of(self.by_name[name].metadata_by_key[dg.AssetKey(name)])
            nothing = empty_frame(self.lake.session, columns)
            create_target(lake, self.lake.session, table, nothing, description.with_property(ASSET, name))
        maker = self._consumers[name].maker
        publisher = replace(self._publisher(begun), origin=MadeBy(maker.code, maker.declared))
        with (
            block(publisher, table, begun.captures, consumer=name, check=lambda _: None) as written,
            contextlib.ExitStack() as files,
        ):
            statements(OwnSql(self._consumers[name], begun.views, self.lake.session, written, files))
        return bool(written.publication and written.publication.snapshots)

    def _publisher(self, begun: Begun) -> Publisher:
        lake, consent = self.lake, Consent(begun.accept)
        return Publisher(
            lake.catalog, self.store, lake.session, begun.run_id, begun.owner, consent, advance=begun.advance
        )

    def _computed(self, begun: Begun) -> Any:  # noqa: ANN401  # a frame or an Overwrite
        lookups = {}
        for name, head in begun.looked_up.items():
            table = self.lake.catalog.load(f"media.{name}", asset="test")
            at = table.snapshots[head] if head is not None else None
            lookups[name] = snapshot_rows(self.lake.session, self.lake.catalog.name, table, at)
        if begun.asset in TOGETHER:
            return TOGETHER[begun.asset](**begun.views)
        compute = self.by_name[begun.asset].node_def.compute_fn.decorated_fn  # type: ignore[union-attr]
        return compute(**begun.views, **lookups)

    def _head(self, name: str) -> int | None:
        return self.lake.catalog.load(f"media.{name}", asset="test").head_snapshot_id()

    # The contents of Dagster's database

    def cursors(self) -> list[tuple[str, str]]:
        """The rows of the cursor table, for a backup."""
        with sqlite3.connect(self._database) as database:
            return database.execute("SELECT key, value FROM kvs").fetchall()

    def restore(self, cursors: Sequence[tuple[str, str]]) -> None:
        """Restore a backup of Dagster's database."""
        with sqlite3.connect(self._database, timeout=30) as database:
            database.execute("DELETE FROM kvs")
            database.executemany("INSERT INTO kvs (key, value) VALUES (?, ?)", cursors)

    @property
    def _database(self) -> Path:
        return Path(self.instance.root_directory) / "history" / "runs.db"
