"""A capture as strings, for programs that read its ICDC table outside of this process."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_ips.core.capture import Mode
from dagster_ips.core.ranges import Bound, ChangeRange
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.spark.branches import sql_name


def parameters(captured: CapturedInput, catalog: str) -> Mapping[str, str]:
    """The parameters that ``IcdcView.parameters`` describes; ``catalog`` is the catalog's name in Spark."""
    capture = captured.capture
    start, end = capture.from_exclusive, capture.to_inclusive
    values = {
        "mode": capture.mode.value,
        # Without comparing its rows to those before, a job would take rewritten ones for new.
        "icdc_table": "" if captured.files.changes.may_remove_rows else sql_name(catalog, capture.icdc_table),
        "source_table": sql_name(catalog, captured.source.table),
        "rows": captured.rows or "TRUE",
        "from_snapshot_id_exclusive": str(start.snapshot_id) if start else "",
        "to_snapshot_id_inclusive": str(end.snapshot_id) if end else "",
    }
    for column, changed in captured.ranges.items():
        found = ChangeRange.everything(column) if capture.mode is Mode.FULL else changed
        values[f"{column}_kind"] = found.kind.value
        values[f"{column}_lower"] = _text(found.lowest)
        values[f"{column}_upper"] = _text(found.highest)
    return values


def _text(value: Bound | None) -> str:
    return "" if value is None else str(value)
