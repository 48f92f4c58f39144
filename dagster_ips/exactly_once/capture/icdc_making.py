"""Makes the ICDC table of captures: written and registered before any work starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagster_ips.core.capture import Capture
from dagster_ips.exactly_once.capture.backlog_share import BacklogShare
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.icdc import icdc_names
from dagster_ips.iceberg.icdc.icdc_tables import Tag, author_icdc_table
from dagster_ips.iceberg.metadata import TableMetadata


def make_icdc_table(  # noqa: PLR0913  # independent parameters
    catalog: LakeCatalog,
    captures: Sequence[Capture],
    number: int,
    source: TableMetadata,
    share: BacklogShare,
    *,
    target: str | None = None,
) -> Mapping[Tag, int]:
    """Write and register the ICDC table ``number`` that ``captures`` name, with a ``share`` of ``source``.

    ``target`` is the table that the consumer makes of it; None if there is none.
    """
    name = captures[0].icdc_table
    with effect(Effect.WRITE_ICDC_FILES):
        authored = author_icdc_table(
            catalog.storage,
            source,
            share.files,
            head=share.to,
            location=icdc_names.location(source, name, under=catalog.icdc_location),
            properties=icdc_names.properties(captures, number, target=target),
        )
    with effect(Effect.REGISTER_ICDC_TABLE):
        catalog.register(name, authored.metadata_location)
    return authored.tags
