"""Whether catalogs answer, their storage is writable, and the tables in them are as consumers need them."""

from __future__ import annotations

import datetime as dt
import re
import shlex
import time
import uuid
from collections.abc import Iterator, Sequence

import dagster as dg

from dagster_ips.cli.context import Workplace
from dagster_ips.cli.doctor.finding import Finding, Severity
from dagster_ips.cli.pending_changes import waiting_partitions
from dagster_ips.core.backfill_plan import backfill_of_branch, before_tag
from dagster_ips.core.edge import Edge
from dagster_ips.core.ranges import quoted
from dagster_ips.core.size_text import listed
from dagster_ips.core.time_text import age
from dagster_ips.errors import CatalogUnreachableError, IpsError, NoRegisterError, UnknownTableError
from dagster_ips.exactly_once.inspect.edge_status import EdgeStatus, require_continuable
from dagster_ips.exactly_once.inspect.storage_probe import try_branches, try_storage
from dagster_ips.iceberg.icdc import icdc_names
from dagster_ips.iceberg.icdc.icdc_dropping import icdc_tables
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.orchestration.run.io_manager import IcdcIOManager
from dagster_ips.orchestration.run.known_consumers import KnownConsumer, KnownTable
from dagster_ips.orchestration.watch.run_at_work import WORKING
from dagster_ips.spark.branches import Branch, is_branch_of_run

_EXPIRY = "history.expire.max-snapshot-age-ms"
_USUAL_EXPIRY_MS = 5 * 24 * 60 * 60 * 1000
"""The age at which Iceberg's own maintenance expires snapshots by default."""
_STAYED = re.compile(r"\b(?:[Nn]othing (?:more )?was|[Nn]o state) .*?\. ")


def catalog(manager: IcdcIOManager) -> Iterator[Finding]:
    """Whether the catalog answers, and can register ICDC tables."""
    lake = manager.catalog.open_for_ticks()
    try:
        lake.metadata_locations([f"{manager.icdc_namespace}.nothing"])
        lake.require_register()
    except CatalogUnreachableError as error:
        fix = "Check its address, credentials and the network, both from this machine and from where runs execute."
        yield Finding("catalog", lake.name, str(error), fix)
    except NoRegisterError as error:
        fix = "Keep the tables that are read incrementally in a catalog that can; a project may have several."
        yield Finding("catalog", lake.name, str(error), fix)


def storage(known: KnownTable) -> Iterator[Finding]:
    """Whether ICDC tables can be written where every capture of the table writes them."""
    lake = known.manager.catalog.open()
    metadata = lake.find(known.table)
    if metadata is None:
        return
    if others := lake.other_names_of(known.table, metadata.location):
        yield Finding(
            "catalog",
            known.table,
            f"catalog {', '.join(others)} in the same database has a table of this name in the same folder, "
            f"{metadata.location}: they overwrite and delete each other's files.",
            "Give one of the catalogs another warehouse folder, and create its table there again.",
        )
    table = f"{known.manager.icdc_namespace}.doctor"
    location = icdc_names.location(metadata, table, under=lake.icdc_location)
    if (cause := try_storage(lake.storage, location, table=known.table)) is not None:
        yield Finding(
            "storage",
            known.table,
            f"files can't be written, read and deleted under {location}, where its ICDC tables are stored ({cause}).",
            "Grant runs write access there, or free disk space, or set an icdc_location in its IcebergCatalog; no rows "
            "are ever written there.",
        )


def kept_branches(tables: Sequence[KnownTable]) -> Iterator[Finding]:
    """Whether the catalog of ``tables`` keeps what is written to a branch."""
    written = (each for each in tables if not each.is_outside)
    found = ((each, each.manager.catalog.open().find(each.table)) for each in written)
    known, metadata = next(((each, metadata) for each, metadata in found if metadata is not None), (None, None))
    if known is None or metadata is None:
        return
    lake, table = known.manager.catalog.open(), f"{known.manager.icdc_namespace}.doctor_{uuid.uuid4().hex[:8]}"
    if not try_branches(lake, table, icdc_names.location(metadata, table, under=lake.icdc_location)):
        yield Finding(
            "catalog",
            lake.name,
            "it doesn't keep branches: what was written to one of a table made for this was lost, or replaced main.",
            "Keep the tables that assets write in a catalog that stores a table's metadata as it is committed.",
        )


def owners(tables: Sequence[KnownTable]) -> Iterator[Finding]:
    """Whether two assets write the same table."""
    by_table: dict[object, str] = {}
    for known in sorted((each for each in tables if not each.is_outside), key=lambda each: each.asset):
        name = known.manager.catalog.name_of(known.table)
        other = by_table.setdefault(name, known.asset)
        if other != known.asset:
            yield Finding(
                "two writers",
                known.table,
                f"{other} and {known.asset} both write it: they delete each other's rows.",
                'Give one of them its own table with table("...") in its metadata.',
            )


def edges(workplace: Workplace, known: KnownConsumer) -> Iterator[Finding]:
    """What makes the consumer's next run fail, and what may make later runs fail."""
    consumer = known.consumer
    if consumer.is_partitioned:
        yield from _of_partitions(workplace, known)
        yield from _retention_of_lag(known, [])
        return
    inspector = workplace.inspector(known)
    found = [inspector.status(consumer.name, tracked) for tracked in consumer.inputs.values()]
    for status in found:
        if status.problem is not None:
            what, fix = _problem_and_fix(status.problem)
            yield Finding("next run", str(status.edge), what, fix)
        if status.is_waiting:
            yield from _awaited(workplace, known, status.edge, status.table)
        yield from _dropped_icdc(workplace, known, status)
    yield from _retention_of_lag(known, found)


def _of_partitions(workplace: Workplace, known: KnownConsumer) -> Iterator[Finding]:
    """What keeps runs of the partitions from being requested, or makes them fail."""
    contained = list(guarded("next run", known.consumer.name, _owned(workplace, known)))
    yield from contained
    for tracked in known.consumer.inputs.values() if not contained else ():
        edge = Edge(known.consumer.name, tracked.upstream)
        try:
            unreached = waiting_partitions(workplace, known, tracked).unreached
        except IpsError as error:
            if isinstance(error, UnknownTableError) and error.consumed_snapshot_id is None:
                yield from _awaited(workplace, known, edge, tracked.table)
            else:
                what, fix = _problem_and_fix(str(error))
                yield Finding("next run", str(edge), what, fix)
        else:
            for text in unreached:
                fix = (
                    f"To see more: dagster-ips pending {shlex.quote(edge.consumer)}. Make the files readable, or give "
                    'the rows a partition; on_unmapped="ignore" leaves such rows out.'
                )
                yield Finding("next run", str(edge), f"{text}.", fix)


def _awaited(workplace: Workplace, known: KnownConsumer, edge: Edge, table: str) -> Iterator[Finding]:
    """That the consumer waits for an outside table that never existed: its name may be wrong."""
    if not any(each.is_outside and each.table == table for each in workplace.known_tables):
        return  # An asset writes it in its first run.
    try:
        known.manager.catalog.open().load(table, asset=edge.consumer)
    except UnknownTableError as error:
        what = f"{edge.consumer} waits for {table}, which doesn't exist. {error.there_is}".strip()
        fix = "Write the table, or correct its name in iceberg_asset(..., table=...)."
        yield Finding("next run", str(edge), what, fix, Severity.WARNING)


def _owned(workplace: Workplace, known: KnownConsumer) -> Iterator[Finding]:
    """Nothing; raises if it is unknown what the consumer's table contains, others wrote to it, or columns changed."""
    name, progress = known.consumer.name, workplace.progress(known)
    target = known.manager.catalog.open().find(known.consumer.table)
    if target is not None:
        require_continuable(target, name, progress, workplace.store.get(name))
    yield from ()


def failures(workplace: Workplace, known: KnownConsumer) -> Iterator[Finding]:
    """Whether the consumer's last run failed, or yielded nothing although something is pending."""
    found, blocked = workplace.failed(known), workplace.blocked(known)
    failed = {key: each for key, each in found.items() if not each.dagster_run.is_success or key in blocked}
    if not failed:
        return
    run = next(iter(failed.values())).dagster_run
    keys = [key for key in sorted(failed) if key]
    of = f"of {len(keys)} partitions ({listed(keys, 5)}) " if keys else ""
    held = ", and automation is holding it back" if blocked else ""
    yield Finding(
        "failed runs",
        known.consumer.name,
        f"the last run {of}{'succeeded, but yielded nothing' if run.is_success else 'failed'}{held}.",
        f"To see why: dagster-ips explain {run.run_id}. Automation tries again after 30 seconds, then ever later; "
        "after five failures, only new data, new code or a manual run does.",
    )


def branches(workplace: Workplace, known: KnownTable) -> Iterator[Finding]:
    """Whether finished runs or cancelled backfills left branches behind."""
    lake = known.manager.catalog.open()
    metadata = lake.find(known.table)
    if metadata is None or known.is_outside:
        return
    at_work = workplace.instance.get_run_records(dg.RunsFilter(statuses=WORKING))
    working = {record.dagster_run.run_id for record in at_work}
    left = [name for name in metadata.branches if is_branch_of_run(name) and not _is_at_work(name, working)]
    for name in left:
        drop = f"ALTER TABLE {Branch(lake.name, known.table, name).table_sql_name} DROP BRANCH IF EXISTS {quoted(name)}"
        yield Finding(
            "leftover branches",
            known.table,
            f"the branch {name} belongs to no active run; it keeps files that nobody reads.",
            "ips_hygiene, or any snapshot expiry, drops it after a day, or later by as long as the table hadn't been "
            "written when it was created. If a job wrote to it after its run had ended, ips_hygiene drops it at once, "
            f"and so does the asset's next run. To drop it now: {drop}",
            Severity.WARNING,
        )
    for name in metadata.branches:
        backfill = backfill_of_branch(name)
        if backfill is not None and before_tag(backfill) not in metadata.tags:
            yield Finding(
                "leftover branches",
                known.table,
                f"the branch {name} is left of backfill {backfill}, which was cancelled or has expired.",
                f"To drop it: dagster-ips backfill cancel {backfill}",
                Severity.WARNING,
            )


def _is_at_work(branch: str, runs: set[str]) -> bool:
    return any(branch.startswith(f"ips_{run_id[:8]}_") for run_id in runs)


def _problem_and_fix(problem: str) -> tuple[str, str]:
    """Split an error's message into the problem and the fix.

    The fix is what follows the sentence that says what stayed as it was; without such a sentence, the last one.
    """
    if stayed := _STAYED.search(problem):
        return problem[: stayed.end()].rstrip(), problem[stayed.end() :]
    what, _, fix = problem.rpartition(". ")
    return (f"{what}.", fix) if what else (problem, "See the message.")


def _dropped_icdc(workplace: Workplace, known: KnownConsumer, status: EdgeStatus) -> Iterator[Finding]:
    """Whether someone dropped the ICDC table that a job reads, or the newest, which is always kept."""
    lake, job = known.manager.catalog.open(), workplace.store.get(known.consumer.name).job
    for held in job.captures if job is not None and job.progress.number > status.state.number else ():
        if held.edge == status.edge and lake.find(held.icdc_table) is None:
            yield Finding(
                "ICDC tables",
                held.icdc_table,
                f"the table of capture {held.number} of {status.edge}, taken by {held.run_id}, is gone.",
                "Make sure that only dagster_ips drops tables in that namespace. Capture again: dagster-ips capture "
                f"{shlex.quote(known.consumer.name)}",
            )
            return
    namespace = known.manager.icdc_namespace
    if status.state.has_begun and not icdc_tables(lake, status.edge, namespace=namespace):
        yield Finding(
            "ICDC tables",
            str(status.edge),
            f"its newest ICDC table, which is always kept, is gone from namespace {namespace}.",
            "Make sure that only dagster_ips drops tables there. Nothing is lost: the next capture creates a new one.",
            Severity.WARNING,
        )


def _retention_of_lag(known: KnownConsumer, found: Sequence[EdgeStatus]) -> Iterator[Finding]:
    """Whether snapshots may expire before they are consumed."""
    consumer, lake = known.consumer, known.manager.catalog.open()
    oldest = {each.table: each.pending.oldest_ms for each in found if each.pending}
    for tracked in consumer.inputs.values():
        source = lake.find(tracked.table)
        if source is None:
            continue
        kept_ms, now_ms = _kept_ms(source), time.time_ns() // 1_000_000
        waits_since = oldest.get(tracked.table)
        waited_ms = now_ms - waits_since if waits_since is not None else 0
        lag_ms = round(consumer.target_lag / dt.timedelta(milliseconds=1))
        if waited_ms > kept_ms:
            what = f"changes have been waiting for {age(waited_ms)}"
        elif lag_ms > kept_ms:
            what = f"changes may wait for {age(lag_ms)}, its target lag"
        else:
            continue
        yield Finding(
            "retention",
            f"{consumer.name} ← {tracked.upstream}",
            f"{what}, but snapshots of {tracked.table} expire after {age(kept_ms)}. Changes not consumed by then may "
            "be lost, and then the run fails.",
            f"Keep them longer, ALTER TABLE … SET TBLPROPERTIES ('{_EXPIRY}' = '{2 * max(waited_ms, lag_ms)}'), or let "
            "ips_hygiene expire them: it keeps what consumers need.",
            Severity.WARNING,
        )


def _kept_ms(source: TableMetadata) -> int:
    try:
        return int(source.properties.get(_EXPIRY, _USUAL_EXPIRY_MS))
    except ValueError:
        return _USUAL_EXPIRY_MS


def guarded(check: str, where: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """The findings; if a check itself fails, that is a finding too, so that the other checks still run."""
    try:
        yield from findings
    except IpsError as error:
        what, fix = _problem_and_fix(str(error))
        yield Finding(check, where, what, fix)
    except Exception as error:  # noqa: BLE001  # whatever it is, the other checks must still run
        yield Finding(check, where, f"the check itself failed: {type(error).__name__}: {error}", "See the message.")
