"""What the consumers of a table, also those in other code locations, still have to read of its history."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from dagster_ips.core.capture import EdgeState
from dagster_ips.core.edge import Edge
from dagster_ips.core.expiry_limit import Need
from dagster_ips.core.touched import LineState
from dagster_ips.core.watermark import Watermark
from dagster_ips.exactly_once.capture.interval_tables import NOBODY
from dagster_ips.exactly_once.capture.tracked_input import MAIN
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.icdc.icdc_dropping import IcdcOrigin, icdc_origins
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.state.store import EdgeStore


def needs_of_state(state: EdgeState, source: TableMetadata) -> Iterator[Need]:
    """The needs of a consumer without partitions, or of one partition.

    A first read takes the table as it is then. Once some of its files are consumed, the rest is in that snapshot.
    """
    rest = state.file_set.to_inclusive if state.file_set else None
    return _needs(state.edge, [state.committed or rest, read_from(state)], source)


def read_from(state: EdgeState) -> Watermark | None:
    """From where a run in flight reads; if it reads everything, the snapshot that it reads; None without a run."""
    held = state.in_flight
    return (held.from_exclusive or held.to_inclusive) if held else None


def needs_of_line(line: LineState, starts: Iterable[Watermark | None], source: TableMetadata) -> Iterator[Need]:
    """The needs of a partitioned consumer: its last look, each pending partition's start and each unread file's."""
    marks = [line.scanned, *starts, *(each.changed.since for each in line.unread.values())]
    return _needs(line.edge, marks, source)


def needs_of_others(
    lake: LakeCatalog, store: EdgeStore, source: TableMetadata, *, icdc_namespace: str, but: Collection[Edge]
) -> Iterator[Need]:
    """The needs of consumers in other code locations, if their captures are kept in ``icdc_namespace``.

    ``store`` says what they consumed, if they share the Dagster instance. Otherwise their newest capture says where it
    began. For a partitioned consumer, that covers only some partitions, so nothing is known. Tables that belong to no
    consumer need what they were made from, each of them.

    Raises:
        CatalogUnreachableError: the catalog did not answer.
    """
    origins = icdc_origins(lake, source.uuid, namespace=icdc_namespace)
    newest = {origin if origin.edge.consumer == NOBODY else origin.edge: origin for origin in origins}
    for origin in newest.values():
        if origin.edge not in but:
            yield from _needs_of_other(origin, store, source)


def _needs_of_other(origin: IcdcOrigin, store: EdgeStore, source: TableMetadata) -> Iterator[Need]:
    edge = origin.edge
    state, line = store.get(edge), store.get_line(edge)
    if line.scanned is not None:
        starts = [each.since for each in line.touched.values()]
        unknown = [Need(edge.consumer, MAIN, None)] if None in starts else []
        yield from (*unknown, *needs_of_line(line, starts, source))
    elif state != EdgeState(edge):
        yield from needs_of_state(state, source)
    elif origin.is_partitioned:
        yield Need(edge.consumer, MAIN, None)
    else:
        # Snapshots back to there are kept, counted from main's head, even if the consumer follows another branch.
        yield Need(edge.consumer, MAIN, origin.from_exclusive or origin.to_inclusive)


def _needs(edge: Edge, marks: Iterable[Watermark | None], source: TableMetadata) -> Iterator[Need]:
    of_source = [mark for mark in marks if mark is not None and mark.table_uuid == source.uuid]
    return (Need(edge.consumer, mark.ref, mark.snapshot_id, mark.sequence_number) for mark in of_source)
