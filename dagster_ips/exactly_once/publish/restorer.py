"""Restores rows of a target from an earlier snapshot, with the progress that they had then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dagster_ips.core.ownership import ForeignWrites, told
from dagster_ips.core.partition_keys import Slicing
from dagster_ips.core.ranges import Predicate
from dagster_ips.errors import RevertError
from dagster_ips.exactly_once.publish.publisher import Publication, Publisher
from dagster_ips.exactly_once.snapshot_rows import stored_rows
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import REVERTED
from dagster_ips.progress.advance import Advance
from dagster_ips.progress.made_rows import restored_made
from dagster_ips.progress.progress import Progress
from dagster_ips.progress.table_progress import TableProgress
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.writes.overwrite import replace_rows
from dagster_ips.spark.writes.overwrite_where import overwrite_matching


@dataclass(frozen=True, slots=True)
class Restoration:
    """What is restored in a ``table`` of ``asset``: ``rows`` as they are in ``snapshot_id``; None stands for all rows.

    ``partitions`` are theirs, none without partitions. ``progress`` is what the table contained then: what came later
    is consumed again. ``head`` is the snapshot up to which it is known that nothing of others is lost; None if that
    isn't asked.
    """

    backfill: str
    asset: str
    table: str
    snapshot_id: int
    rows: Predicate | None
    partitions: Sequence[str]
    progress: Progress
    head: int | None = None


def restore(publisher: Publisher, wanted: Restoration) -> Publication:
    """Publish the rows as they were: on a branch, at once or not at all.

    Raises:
        RevertError: the table has lost columns since, or someone else wrote meanwhile.
        PublishError: ``main`` kept moving.
    """
    before = publisher.catalog.load(wanted.table, asset=wanted.asset)
    require_restorable_columns(before, wanted)

    def write(branch: Branch, target: TableMetadata) -> None:
        require_nothing_newer(target, wanted)
        session = publisher.session
        snapshot, storage = target.snapshots[wanted.snapshot_id], publisher.catalog.storage
        old = stored_rows(session, branch.catalog, target, snapshot, storage=storage)
        if wanted.rows is None:
            replace_rows(old, branch, table_is_empty=False)
        else:
            rows = old.where(wanted.rows)
            files = target.whole_file_columns()
            overwrite_matching(rows, branch, where=wanted.rows, whole_file_columns=files, hidden=target.hidden_names)

    restoring = replace(
        publisher,
        properties={**publisher.properties, REVERTED: wanted.backfill},
        advance=Advance(partitions=tuple(wanted.partitions)),
        sealed=lambda now: restored_progress(now, wanted),
    )
    return restoring.publish(wanted.table, (), write, consumer=wanted.asset)


def restored_progress(now: TableProgress | None, wanted: Restoration) -> Progress:
    """What the table contains once the rows are restored, if that is what it contains ``now``."""
    then, known = wanted.progress, now.progress if now is not None else Progress()
    if wanted.rows is None:
        inputs, lookups = dict(then.inputs), dict(then.lookups)
    else:
        inputs = {
            upstream: each.joined({key: then.inputs[upstream].position(key) for key in wanted.partitions})
            if upstream in then.inputs
            else each
            for upstream, each in known.inputs.items()
        }
        lookups = {name: state if then.lookups.get(name) == state else None for name, state in known.lookups.items()}
    made = restored_made(known, then, wanted.partitions or [None])
    return replace(known, number=known.number + 1, inputs=inputs, made=made, lookups=lookups)


def with_lacking(then: Progress, slicings: Mapping[str, Slicing]) -> Progress:
    """``then``, but partitions that lacked rows, as their keys had no partition before, are to be computed anew."""
    inputs = {
        upstream: replace(each, behind={**each.behind, **dict.fromkeys(slicings[upstream].made_of(each.untaken))})
        if upstream in slicings
        else each
        for upstream, each in then.inputs.items()
    }
    return replace(then, inputs=inputs)


def require_restorable_columns(target: TableMetadata, wanted: Restoration) -> None:
    """Fail unless the table still has all columns of the rows to restore.

    Raises:
        RevertError: the table has lost columns since.
    """
    snapshot = target.snapshots[wanted.snapshot_id]
    others = target.columns_of_other_meaning(snapshot.schema_id)
    lost = target.columns_lost_since(snapshot.schema_id)
    problems = [f"it is unknown whether {wanted.table} still has the same columns"] if others is None else []
    problems += [f"column {name} is a different column now" for name in others or ()]
    problems += [f"column {name} has since been dropped or renamed" for name in lost]
    if problems:
        remedy = "Recompute the partitions with the code that produced them."
        raise RevertError(wanted.backfill, wanted.table, tuple(problems), remedy)


def require_nothing_newer(target: TableMetadata, wanted: Restoration) -> None:
    """Fail if someone else changed the table after it was found out what a revert would lose.

    Raises:
        RevertError: someone did.
    """
    known = [] if wanted.head is None else [wanted.head]
    newer = ForeignWrites.of(target.ancestry(), wanted.asset).after(known) if known else ()
    if newer:
        problems = (f"someone else has changed the table in the meantime, in {told(newer[0])}",)
        raise RevertError(wanted.backfill, wanted.table, problems, "Revert again: it then says what would be lost.")
