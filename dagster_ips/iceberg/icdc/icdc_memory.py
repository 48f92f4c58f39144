"""What an edge's ICDC tables still say about its captures when nothing else does."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ips.core.edge import Edge
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.icdc.icdc_dropping import names_by_number, tables_named
from dagster_ips.iceberg.icdc.icdc_names import SOURCE_UUID, interval_of


@dataclass(frozen=True, slots=True)
class RememberedCapture:
    """A capture, known by its ICDC table: it was taken, so everything up to ``from_snapshot_id`` was consumed."""

    table: str
    number: int
    source_uuid: str | None
    from_snapshot_id: int | None
    to_snapshot_id: int | None


def newest_capture(catalog: LakeCatalog, edge: Edge, *, namespace: str, target: str | None) -> RememberedCapture | None:
    """The edge's newest capture by number, the first if it was tried several times; None if no ICDC table is left.

    Only captures for the consumer's table ``target`` count, unless it is None: in another deployment, an asset of the
    same key may write another table. Tables of an earlier release don't say for which one they were made.

    Raises:
        CatalogUnreachableError: the catalog did not answer.
    """
    of_each = (tables_named(catalog, edge, n) for n in names_by_number(catalog, edge, namespace=namespace).values())
    own = ([each for each in tables if target is None or each.target in (None, target)] for tables in of_each)
    tables = next(filter(None, own), None)
    if tables is None:
        return None
    newest = min(tables, key=lambda table: table.created_ms)
    metadata = catalog.load(newest.name, asset=edge.consumer)
    source_uuid = metadata.properties.get(SOURCE_UUID) or None
    return RememberedCapture(newest.name, newest.number, source_uuid, *interval_of(metadata))
