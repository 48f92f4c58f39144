"""A job that maintains the tables of incremental assets: downstream sees no change, and what it needs is kept.

No ``from __future__ import annotations`` here: Dagster reads the annotations of ``context`` and ``config`` without
resolving them.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg
from pydantic import Field

from dagster_ips.core.backfill_plan import backfill_of_branch, backfill_of_tag
from dagster_ips.core.expiry_limit import Need, expiry, refs_to_hold
from dagster_ips.errors import DeclarationError, IpsError
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.capture.unread_history import needs_of, needs_of_others
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.orchestration.declare.consumers import WrittenTable
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.orchestration.run.io_manager import IcdcIOManager
from dagster_ips.orchestration.run.leftover_branches import drop_leftover_branches
from dagster_ips.orchestration.watch.run_at_work import RunsAtWork, run_at_work
from dagster_ips.orchestration.watch.watched_tables import WatchedInputs
from dagster_ips.progress.cursor import progress_of
from dagster_ips.progress.table_progress import progress_before
from dagster_ips.spark.branches import branch_of_run
from dagster_ips.spark.maintenance import compact, expire_snapshots

HYGIENE_JOB = "ips_hygiene"
_HOUR_MS = 60 * 60 * 1000
_DAY_MS = 24 * _HOUR_MS


class HygieneConfig(dg.Config):
    """What to tidy up, and how much.

    ``assets`` are keys; by default all assets written through an ``IcdcIOManager``. Snapshots that no consumer needs
    are kept for ``keep_days``. A partition is compacted if it has ``min_input_files`` small files.
    """

    assets: list[str] = Field(default_factory=list)
    compact: bool = True
    min_input_files: int = 5
    expire: bool = True
    keep_days: float = 7


def hygiene_job(
    tables: Sequence[WrittenTable],
    watched: Sequence[WatchedInputs],
    managers: Mapping[str, Any],
    definitions: Callable[[], dg.Definitions],
) -> dg.JobDefinition:
    """The job, for all of ``tables`` or those that a run names; ``definitions`` is called only within a run.

    Only users start or schedule it.
    """

    @dg.op(
        name="tidy_up",
        required_resource_keys=set(managers),
        description="Compacts tables and expires snapshots that no consumer needs.",
        out=dg.Out(dg.Nothing),
    )
    def tidy_up(context: dg.OpExecutionContext, config: HygieneConfig) -> Iterator[Any]:
        failed = []
        for each in _chosen(tables, config.assets):
            manager = getattr(context.resources, each.manager)
            try:
                yield from _Tidying(context, config, each, manager, watched, definitions).tidied_up()
            except Exception as error:  # noqa: BLE001  # one table doesn't hold up the others
                said = str(error) if isinstance(error, IpsError) else f"{type(error).__name__}: {error}"
                context.log.error("%s: %s", each.table, said)  # noqa: TRY400  # Spark's stack trace adds nothing
                failed.append(each.table)
        if failed:
            names = ", ".join(failed)
            raise dg.Failure(
                description=f"Maintenance failed for {names}; the run's log says why. The other tables are done."
            )
        yield dg.Output(None)

    @dg.job(
        name=HYGIENE_JOB,
        description="Compacts the tables of incremental assets and expires snapshots that none of their consumers "
        "needs.",
        executor_def=dg.in_process_executor,
    )
    def ips_hygiene() -> None:
        tidy_up()

    return ips_hygiene


def _chosen(tables: Sequence[WrittenTable], assets: Sequence[str]) -> list[WrittenTable]:
    known = {each.key.to_user_string(): each for each in tables}
    if unknown := [name for name in assets if name not in known]:
        raise DeclarationError(
            asset=unknown[0],
            problem=f"it has no table in these definitions; known are {', '.join(sorted(known)) or 'none'}.",
            remedy="Name the keys of assets that are written through an IcdcIOManager.",
        )
    return [known[name] for name in assets or sorted(known)]


@dataclass(frozen=True)
class _Tidying:
    """The maintenance of one table."""

    context: dg.OpExecutionContext
    config: HygieneConfig
    written: WrittenTable
    manager: IcdcIOManager
    watched: Sequence[WatchedInputs]
    definitions: Callable[[], dg.Definitions]

    def tidied_up(self) -> Iterator[dg.AssetObservation]:
        """Compact, then expire, and report it in the asset's timeline."""
        lake = self.manager.catalog.open()
        found = lake.find(self.written.table)
        if found is None:
            self.context.log.info("%s doesn't exist yet.", self.written.table)
            return
        says: dict[str, Any] = {}
        drop_leftover_branches(found, lake.name, self.manager.session(), self.context.instance)
        if self.config.compact:
            says |= self._compact(lake)
        if self.config.expire:
            says |= self._expire(lake)
        said = ", ".join(f"{name} {value}" for name, value in says.items())
        self.context.log.info("%s: %s", self.written.table, said)
        told = {"table": self.written.table, **says}
        yield dg.AssetObservation(asset_key=self.written.key, description="maintenance done", metadata=told)

    def _table(self, lake: LakeCatalog) -> TableMetadata:
        return lake.load(self.written.table, asset=self.written.key.to_user_string())

    def _compact(self, lake: LakeCatalog) -> dict[str, Any]:
        """Compact the table, unless a run is writing it: the run would find its table changed and fail to publish."""
        if (run_id := run_at_work(self.context.instance, self.written.key)) is not None:
            return {"compaction": f"skipped: run {run_id} is writing the table"}
        table = self._table(lake)
        if staged := [branch for branch in table.branches if backfill_of_branch(branch)]:
            return {"compaction": f"skipped: it would make the staged branch {staged[0]} unpublishable"}
        session = self.manager.session()
        with effect(Effect.TIDY_UP):
            done = compact(session, lake.name, self.written.table, min_input_files=self.config.min_input_files)
        return {"data files rewritten": done.rewritten, "into data files": done.added}

    def _expire(self, lake: LakeCatalog) -> dict[str, Any]:
        before, now_ms = self._table(lake), time.time_ns() // 1_000_000
        refs = {ref: before.ancestry(ref) for ref in before.branches}
        needs = list(self._needs(lake, before))
        until = expiry(needs, before.snapshots, refs, wanted_ms=now_ms - int(self.config.keep_days * _DAY_MS))
        kept_from_ms = {ref: now_ms - age_ms + _HOUR_MS for ref, age_ms in before.branch_ages_ms.items()}
        held = refs_to_hold(needs, before.snapshots, refs, kept_from_ms=kept_from_ms)
        session = self.manager.session()
        with self._holding(held, before, lake.name), effect(Effect.TIDY_UP):
            expire_snapshots(session, lake.name, self.written.table, before_ms=until.before_ms)
        after = self._table(lake)
        gone = len(before.snapshots) - len(before.snapshots.keys() & after.snapshots.keys())
        held_by = until.held_by or next(iter(held.values()), None)
        by = {"extra snapshots kept for": held_by} if held_by else {}
        return {"snapshots expired": gone, "snapshots kept": len(after.snapshots), **by}

    @contextlib.contextmanager
    def _holding(self, refs: Collection[str], table: TableMetadata, catalog: str) -> Iterator[None]:
        """Keep what ``refs`` contain from expiring by their own settings.

        Iceberg expires a branch's snapshots by the branch's own age, if it has one. A second branch at the same
        snapshot, without such an age, keeps them as the expiry asks.
        """
        session = self.manager.session()
        holding = [branch_of_run(catalog, table.table, self.context.run_id) for _ in refs]
        try:
            for branch, ref in zip(holding, refs, strict=True):
                head = table.snapshots[table.head_snapshot_id(ref) or 0]
                with effect(Effect.TIDY_UP):
                    branch.create(session, head=head)
            yield
        finally:
            for branch in holding:
                with effect(Effect.TIDY_UP):
                    branch.drop(session)

    def _needs(self, lake: LakeCatalog, source: TableMetadata) -> Iterator[Need]:
        store = CursorStore(self.context.instance)
        for tag in source.tags:
            if backfill_of_tag(tag) is not None:  # A revert must see the commits after the state that it restores.
                yield Need(tag, "main", source.head_snapshot_id(tag))
        mine, known = self.manager.catalog.name_of(self.written.table), set()
        graph = self.definitions().resolve_asset_graph()
        for each in self.watched:
            for tracked in each.consumer.tracked(graph, self.context.instance).values():
                if each.watched.catalog.name_of(tracked.table) == mine:
                    known.add(each.edge(tracked))
                    yield from _needs_of_consumer(each, tracked, source, store)

        def is_at_work(consumer: str, run_id: str) -> bool:
            return RunsAtWork(self.context.instance, store, consumer)(run_id)

        yield from needs_of_others(
            lake, store, source, icdc_namespace=self.manager.icdc_namespace, but=known, is_at_work=is_at_work
        )


def _needs_of_consumer(
    each: WatchedInputs, tracked: TrackedInput, source: TableMetadata, store: CursorStore
) -> Iterator[Need]:
    """What a consumer still has to read, and would have to read again if a backfill of it were reverted.

    If its table can't be read, what Dagster's copy of its progress says: that must not hold up the others.
    """
    cursor, edge = store.get(each.name), each.edge(tracked)
    copied = cursor.copy.progress.inputs.get(tracked.upstream) if cursor.copy is not None else None
    try:
        lake = each.watched.catalog.open()
        target = lake.find(each.consumer.table)
        found = progress_of(target, cursor, asset=each.name, storage=lake.storage)
    except IpsError:
        yield from needs_of(edge, copied, source)
        return
    yield from needs_of(edge, found.progress.inputs.get(tracked.upstream) if found is not None else copied, source)
    for tag in target.tags if target else ():
        head = target.head_snapshot_id(tag) if target and backfill_of_tag(tag) is not None else None
        before = progress_before(target, head) if target and head is not None else None
        then = before.progress.inputs.get(tracked.upstream) if before is not None else None
        for need in needs_of(edge, then, source):
            yield replace(need, consumer=tag)
