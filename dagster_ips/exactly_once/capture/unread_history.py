"""What the consumers of a table, also those in other code locations, still have to read of its history."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from dagster_ips.core.ancestry import MAIN
from dagster_ips.core.edge import Edge
from dagster_ips.core.expiry_limit import Need
from dagster_ips.core.watermark import Watermark
from dagster_ips.exactly_once.capture.interval_tables import NOBODY
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.icdc.icdc_dropping import icdc_origins
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.progress.cursor import Cursors
from dagster_ips.progress.progress import InputProgress


def needs_of(edge: Edge, progress: InputProgress | None, source: TableMetadata) -> Iterator[Need]:
    """The needs of a consumer that is as far as ``progress`` says.

    A first read takes the table as it is then. Once some of its files are consumed, the rest is in that snapshot.
    """
    return needs_of_marks(edge, progress.marks if progress is not None else (), source)


def needs_of_marks(edge: Edge, marks: Iterable[Watermark], source: TableMetadata) -> Iterator[Need]:
    """The needs of a consumer that reads on from ``marks``."""
    of_source = [mark for mark in marks if mark.table_uuid == source.uuid]
    return (Need(edge.consumer, mark.ref, mark.snapshot_id, mark.sequence_number) for mark in of_source)


def needs_of_others(  # noqa: PLR0913  # all are independent
    lake: LakeCatalog,
    store: Cursors,
    source: TableMetadata,
    *,
    icdc_namespace: str,
    but: Collection[Edge],
    is_at_work: Callable[[str, str], bool],
) -> Iterator[Need]:
    """The needs of runs at work and of consumers in other code locations, whose captures are in ``icdc_namespace``.

    ``store`` says what they consumed, if they share the Dagster instance. Otherwise their newest capture says where it
    began. For a partitioned consumer, that covers only some partitions, so nothing is known. Tables that belong to no
    consumer need what they were made from, each of them. ``is_at_work`` asks by consumer and run.

    Raises:
        CatalogUnreachableError: the catalog did not answer.
    """
    origins = icdc_origins(lake, source.uuid, namespace=icdc_namespace)
    for origin in origins:
        start = origin.from_exclusive or origin.to_inclusive
        if start is not None and origin.run_id and is_at_work(origin.edge.consumer, origin.run_id):
            yield Need(origin.edge.consumer, MAIN, start)
    newest = {origin if origin.edge.consumer == NOBODY else origin.edge: origin for origin in origins}
    for origin in newest.values():
        edge = origin.edge
        if edge in but:
            continue
        copy = store.get(edge.consumer).copy
        progress = copy.progress.inputs.get(edge.upstream) if copy is not None else None
        if progress is not None:
            unknown = None in progress.behind.values()
            yield from [Need(edge.consumer, MAIN, None)] if unknown else needs_of(edge, progress, source)
        elif origin.is_partitioned:
            yield Need(edge.consumer, MAIN, None)
        else:
            # Snapshots back to there are kept, counted from main's head, even if the consumer follows another branch.
            yield Need(edge.consumer, MAIN, origin.from_exclusive or origin.to_inclusive)
