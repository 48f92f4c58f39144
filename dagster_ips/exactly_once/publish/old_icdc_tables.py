"""Retention: drops the edge's old ICDC tables after a commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from dagster_ips.core.capture import Capture
from dagster_ips.core.edge import Edge
from dagster_ips.core.retention import IcdcTable, Retention, expired
from dagster_ips.core.table_name import namespace_of
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.icdc.icdc_dropping import drop_icdc_table, names_by_number, tables_named
from dagster_ips.state.store import EdgeStore

_LOG = logging.getLogger(__name__)


def drop_expired_tables(catalog: LakeCatalog, store: EdgeStore, capture: Capture, retention: Retention) -> None:
    """Drop the ICDC tables of ``capture``'s edge that ``retention`` no longer keeps.

    ``capture`` is the one just committed; its table, and that of a capture in flight, stay. This is best effort and
    never an error: what can't be dropped now is logged, and the edge's next run tries again.
    """
    edge = capture.edge.line
    try:
        names = names_by_number(catalog, edge, namespace=namespace_of(capture.icdc_table))
        # Read after the tables were listed, so that a capture whose table is listed is seen in flight.
        in_flight = store.get(edge).in_flight
        spared = {held.number for held in (capture, in_flight) if held is not None}
        now_ms = time.time_ns() // 1_000_000
        tables = _read_if_old(catalog, edge, names, retention, now_ms=now_ms)
        gone = expired(tables, retention, spared=spared, now_ms=now_ms)
        gone = tuple(table for table in gone if not _is_in_flight(store, edge, table))
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


def drop_tables_of(catalog: LakeCatalog, captures: Sequence[Capture]) -> None:
    """Try to drop the ICDC tables of ``captures``, which no run can publish: a next run captures again."""
    for capture in captures:
        try:
            with effect(Effect.DROP_ICDC_TABLE):
                drop_icdc_table(catalog, capture.icdc_table, capture.edge.line)
        except Exception as error:  # noqa: BLE001  # the run fails anyway, for a better reason
            _LOG.warning("ICDC table %s could not be dropped (%s)", capture.icdc_table, type(error).__name__)


def _read_if_old(
    catalog: LakeCatalog, edge: Edge, names: Mapping[int, Sequence[str]], retention: Retention, *, now_ms: int
) -> list[IcdcTable]:
    """The ICDC tables ``names``, which begin with the newest capture's. Each is read only if it may have to go.

    Captures are made in the order of their numbers. So once one of the newest is young, those after it are too.
    """
    found: list[IcdcTable] = []
    is_kept = False
    for place, (number, of_capture) in reversed([*enumerate(names.items())]):
        if is_kept or not place:
            found += [IcdcTable(name, number, now_ms) for name in of_capture]
            continue
        tables = tables_named(catalog, edge, of_capture)
        found += tables
        is_kept = place < retention.keep_last and retention.is_young(tables, now_ms=now_ms)
    return found


def _is_in_flight(store: EdgeStore, edge: Edge, table: IcdcTable) -> bool:
    """Whether a run of any of the table's partitions is working on it."""
    states = store.get_many([edge.of(partition) for partition in table.partitions])
    return any(state.in_flight is not None and state.in_flight.icdc_table == table.name for state in states.values())
