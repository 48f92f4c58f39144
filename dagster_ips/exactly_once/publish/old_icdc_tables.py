"""Drops ICDC tables: an edge's old ones after a commit, and those of a failed run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from dagster_ips.core.capture import Capture
from dagster_ips.core.edge import Edge
from dagster_ips.core.retention import IcdcTable, Retention, expired
from dagster_ips.core.table_name import namespace_of
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.icdc.icdc_dropping import drop_icdc_table, names_by_number, tables_named
from dagster_ips.iceberg.stamps import RUN

_LOG = logging.getLogger(__name__)


def drop_expired_tables(
    catalog: LakeCatalog, capture: Capture, retention: Retention, *, is_at_work: Callable[[str], bool]
) -> None:
    """Drop the ICDC tables of ``capture``'s edge that ``retention`` no longer keeps.

    ``capture`` is the one just published; its table, and those of runs that may be at work, stay. This is best effort
    and never an error: what can't be dropped now is logged, and the edge's next run tries again.
    """
    edge = capture.edge.line
    try:
        names = names_by_number(catalog, edge, namespace=namespace_of(capture.icdc_table))
        now_ms = time.time_ns() // 1_000_000
        tables = _read_if_old(catalog, edge, names, retention, now_ms=now_ms)
        gone = expired(tables, retention, spared={capture.icdc_table}, now_ms=now_ms)
        gone = tuple(table for table in gone if not is_at_work(table.run_id))
    except Exception as error:  # noqa: BLE001  # whatever it is, the run's outcome is decided already
        _LOG.warning(
            "old ICDC tables of %s were kept: could not determine which ones to drop (%s)", edge, type(error).__name__
        )
        return
    for table in gone:
        try:
            with effect(Effect.DROP_ICDC_TABLE):
                drop_icdc_table(catalog, table.name, edge)
        except Exception as error:  # noqa: BLE001  # as above; one table must not hold up the others
            _LOG.warning("ICDC table %s could not be dropped completely (%s)", table.name, type(error).__name__)


def drop_tables_of_refused(catalog: LakeCatalog, captures: Sequence[Capture], *, target: str) -> None:
    """Drop the ICDC tables of a run that failed, unless it had published.

    This is best effort and never an error.
    """
    try:
        written = catalog.find(target)
        runs = {capture.run_id for capture in captures}
        if written is not None and any(s.summary.get(RUN) in runs for s in written.ancestry().snapshots):
            return
        for name, edge in {capture.icdc_table: capture.edge.line for capture in captures}.items():
            with effect(Effect.DROP_ICDC_TABLE):
                drop_icdc_table(catalog, name, edge)
    except Exception as error:  # noqa: BLE001  # why the run failed is the error to be raised
        _LOG.warning("the ICDC tables of a failed run stay until a later run drops them (%s)", type(error).__name__)


def _read_if_old(
    catalog: LakeCatalog, edge: Edge, names: Mapping[int, Sequence[str]], retention: Retention, *, now_ms: int
) -> list[IcdcTable]:
    """The ICDC tables ``names``, which begin with the newest capture's. Each is read only if it may have to go.

    Captures are made in the order of their numbers. So once one of the newest is young, those after it are too. Only
    captures that led to no publication have the same number; these are read.
    """
    found: list[IcdcTable] = []
    is_kept = False
    for place, (number, of_capture) in reversed([*enumerate(names.items())]):
        if (is_kept or not place) and len(of_capture) == 1:
            found += [IcdcTable(name, number, now_ms) for name in of_capture]
            continue
        tables = tables_named(catalog, edge, of_capture)
        found += tables
        is_kept = place < retention.keep_last and retention.is_young(tables, now_ms=now_ms)
    return found
