"""What an asset function receives for an upstream that it reads incrementally."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from dagster_ips.core.capture import Mode
from dagster_ips.core.ranges import Bound, ChangeRange, Predicate, literal, quoted
from dagster_ips.errors import UnknownColumnError
from dagster_ips.iceberg.column_ranges import change_range, partition_values
from dagster_ips.spark.branches import sql_name
from dagster_ips.spark.frames import rows_with_keys, table_frame
from dagster_ips.spark.session import DataFrame, SparkSession
from dagster_ips.tracking.capturing import CapturedInput
from dagster_ips.tracking.writing import PartialFrame

_MOST_LITERALS = 1000


@dataclass(frozen=True, slots=True)
class ViewStats:
    """How much changed, beside how much there is. The latter is None where the source's snapshot doesn't say."""

    files: int
    rows: int
    size_bytes: int
    source_files: int | None
    source_rows: int | None
    source_size_bytes: int | None


class IcdcView:
    """An upstream's change since the consumer last looked, and ways to read it.

    Every frame is lazy: what isn't asked for costs nothing. In mode ``full`` every frame holds the run's whole scope,
    so that the same asset function recomputes the table.
    """

    def __init__(self, captured: CapturedInput, session: SparkSession, catalog: str) -> None:
        self._captured = captured
        self._session = session
        self._catalog = catalog
        self._partial_frames: list[PartialFrame] = []

    @property
    def mode(self) -> Mode:
        """``full`` or ``incremental``."""
        return self._captured.capture.mode

    @property
    def is_empty(self) -> bool:
        """Whether no file changed."""
        return self._captured.files.changes.is_empty

    @property
    def table(self) -> str:
        """The ICDC table's name for Spark SQL."""
        return sql_name(self._catalog, self._captured.capture.icdc_table)

    @property
    def icdc_table(self) -> str:
        """The ICDC table's name in the catalog, for PyIceberg and other engines."""
        return self._captured.capture.icdc_table

    @property
    def changes(self) -> DataFrame:
        """Every row of the ICDC table: the rows of the files that were added."""
        self._remember("changes", ())
        return self._changes

    @property
    def source(self) -> DataFrame:
        """The upstream as of the capture, whatever is committed to it meanwhile."""
        to = self._captured.capture.to_inclusive
        return table_frame(
            self._session, self._catalog, self._captured.source.table, snapshot_id=to.snapshot_id if to else None
        )

    def affected(self, *keys: str) -> DataFrame:
        """All live rows of the upstream whose ``keys`` occur in the change; null is a key like any other.

        Raises:
            UnknownColumnError: the upstream has no such column.
        """
        self._require_columns(keys)
        if self.mode is Mode.FULL:
            return self.source
        self._remember(f"affected({', '.join(keys)})", keys)
        return rows_with_keys(self.source, self._changes, keys, [self._pruning(key) for key in keys])

    @property
    def ranges(self) -> Mapping[str, ChangeRange]:
        """The ranges that ``incremental(ranges=...)`` asked for, by column; in mode ``full`` each is everything."""
        return {column: self.range(column) for column in self._captured.ranges}

    def range(self, column: str) -> ChangeRange:
        """Lower and upper value of ``column`` over the changed files; in mode ``full`` everything.

        Raises:
            UnknownColumnError: the upstream has no such column.
        """
        if self.mode is Mode.FULL:
            self._require_columns([column])
            return ChangeRange.everything(column)
        known = self._captured.ranges.get(column)
        return known or change_range(self._captured.files.changes, self._captured.source, column)

    @property
    def parameters(self) -> Mapping[str, str]:
        """All of this as strings, for SQL templates, Dagster Pipes and spark-submit arguments.

        Keys: ``mode``, ``icdc_table``, ``source_table``, ``from_snapshot_id_exclusive``, ``to_snapshot_id_inclusive``
        (empty where there is none), and per range ``<column>_kind``, ``<column>_lower``, ``<column>_upper``.
        """
        start, end = self._captured.capture.from_exclusive, self._captured.capture.to_inclusive
        values = {
            "mode": self.mode.value,
            "icdc_table": self.table,
            "source_table": sql_name(self._catalog, self._captured.source.table),
            "from_snapshot_id_exclusive": str(start.snapshot_id) if start else "",
            "to_snapshot_id_inclusive": str(end.snapshot_id) if end else "",
        }
        for column, found in self.ranges.items():
            values[f"{column}_kind"] = found.kind.value
            values[f"{column}_lower"] = _text(found.lowest)
            values[f"{column}_upper"] = _text(found.highest)
        return values

    @property
    def stats(self) -> ViewStats:
        """How much changed, beside how much there is."""
        changes = self._captured.files.changes
        summary = self._captured.head.summary if self._captured.head else {}
        return ViewStats(
            files=len(changes.added),
            rows=changes.row_count,
            size_bytes=changes.size_bytes,
            source_files=_number(summary.get("total-data-files")),
            source_rows=_number(summary.get("total-records")),
            source_size_bytes=_number(summary.get("total-files-size")),
        )

    @property
    def captured(self) -> CapturedInput:
        """The capture behind this view, for IO managers."""
        return self._captured

    @property
    def partial_frames(self) -> tuple[PartialFrame, ...]:
        """The frames taken so far that hold only some of the upstream's rows, for IO managers."""
        return tuple(self._partial_frames)

    @cached_property
    def _changes(self) -> DataFrame:
        return table_frame(self._session, self._catalog, self._captured.capture.icdc_table)

    def _remember(self, name: str, keys: tuple[str, ...]) -> None:
        if self.mode is Mode.INCREMENTAL:
            keys_frame = self._changes.select(*[quoted(key) for key in keys]) if keys else None
            self._partial_frames.append(PartialFrame(name, keys, keys_frame))

    def _pruning(self, column: str) -> Predicate:
        values = partition_values(self._captured.files.changes, self._captured.source, column)
        if values is None or len(values) > _MOST_LITERALS:
            return self.range(column).between(column)
        name = quoted(column)
        listed = ", ".join(literal(value) for value in sorted(v for v in values if v is not None))
        conditions = [f"{name} IN ({listed})"] if listed else []
        conditions += [f"{name} IS NULL"] if None in values else []
        return Predicate(f"({' OR '.join(conditions)})" if conditions else "FALSE")

    def _require_columns(self, columns: tuple[str, ...] | list[str]) -> None:
        known = self._captured.source.column_names
        for column in columns:
            if column not in known:
                raise UnknownColumnError(
                    where=self._captured.source.table,
                    column=column,
                    known=known,
                    remedy="Correct the name where the asset uses its IcdcView; nothing was written or consumed.",
                )


def _text(value: Bound | None) -> str:
    return "" if value is None else str(value)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None else None
