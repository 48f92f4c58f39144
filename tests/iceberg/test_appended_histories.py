"""For any history of appends, captures contain exactly the new rows, each once, and ranges include all of them."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType

from dagster_ips.core.backlog import is_pending
from dagster_ips.core.capture import Mode
from dagster_ips.core.ranges import ChangeRange, RangeKind
from tests.iceberg.sources import SCHEMA, SPECS, TABLE, Row, Source, as_multiset

FIRST = dt.datetime(2026, 1, 1)  # noqa: DTZ001  # an Iceberg timestamp without time zone
hours = st.integers(-50, 50).map(lambda n: FIRST + dt.timedelta(days=n, seconds=n, microseconds=n * 7))
VALUES: dict[int, st.SearchStrategy[Any]] = {
    1: st.integers(-9, 9),
    2: hours.map(lambda moment: moment.date()),
    3: st.text(alphabet="ab/ =é'", max_size=24),
    4: st.sampled_from([0.0, -1.5, 2.25, math.inf, -math.inf, math.nan]),
    5: st.integers(-300, 300).map(lambda cents: Decimal(cents).scaleb(-2)),
    6: hours,
    7: hours.map(lambda moment: moment.replace(tzinfo=dt.UTC)),
    8: st.booleans(),
}


@st.composite
def rows(draw: st.DrawFn, partitioned_by: str) -> list[Row]:
    """Rows with nulls anywhere. The partition column has few values, so that files contain several rows."""
    own = next((f.field_id for f in SCHEMA.fields if f.name.removeprefix("the ") == partitioned_by), None)
    few = draw(st.lists((st.none() | VALUES[own]).filter(lambda v: v == v), min_size=1, max_size=2)) if own else []  # noqa: PLR0124  # PyIceberg can't write a partition of NaN
    columns = {number: st.none() | (st.sampled_from(few) if number == own else of) for number, of in VALUES.items()}
    return draw(st.lists(st.fixed_dictionaries(columns), max_size=5))


class AppendedHistory(RuleBasedStateMachine):
    """A table that is appended to and evolves, and a consumer that captures at any time."""

    @initialize(
        spec=st.sampled_from(list(SPECS)),
        version=st.sampled_from("12"),
        several_files=st.booleans(),
        merging=st.booleans(),
    )
    def create(self, *, spec: str, version: str, several_files: bool, merging: bool) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.spec = spec
        self.source = Source(Path(self.folder.name), spec, format_version=version)
        properties = {"commit.manifest.min-count-to-merge": "2", "commit.manifest-merge.enabled": str(merging).lower()}
        if several_files:
            properties["write.target-file-size-bytes"] = "200"
        with self.source.table.transaction() as transaction:
            transaction.set_properties(properties)
        self.consumed = 0
        self.added = 0

    def teardown(self) -> None:
        with contextlib.suppress(AttributeError):  # nothing was created
            self.folder.cleanup()

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        drawn = data.draw(rows(self.spec))
        present = {field.field_id for field in self.source.fields}
        more = {number: data.draw(st.none() | st.integers(0, 3)) for number in present - set(VALUES)}
        self.source.append([{n: value for n, value in {**row, **more}.items() if n in present} for row in drawn])

    @rule(data=st.data())
    def evolve(self, data: st.DataObject) -> None:
        changes = [self.add_a_column, self.rename_a_column, self.widen_a_column]
        changes += [self.drop_a_column] if len(self.never_partitioned_by()) > 1 else []
        changes += [self.partition_by_another_column] if self.added < 3 else []
        changes += [self.stop_partitioning] if self.source.table.spec().fields else []
        changes += [self.upgrade_to_v2] if self.source.table.format_version == 1 else []
        data.draw(st.sampled_from(changes))(data)

    def add_a_column(self, _: st.DataObject) -> None:
        """Add a column, sometimes with the name of a dropped one."""
        names = {field.name for field in self.source.fields}
        names |= {field.name for spec in self.source.table.specs().values() for field in spec.fields}
        name = next((n for n in ("amount", "price", "at") if n not in names), f"extra_{self.new_number()}")
        with self.source.table.update_schema() as update:
            update.add_column(name, IntegerType())

    def rename_a_column(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([field.name for field in self.source.fields]))
        with self.source.table.update_schema() as update:
            update.rename_column(name, f"renamed_{self.new_number()}")

    def drop_a_column(self, data: st.DataObject) -> None:
        with self.source.table.update_schema() as update:
            update.delete_column(data.draw(st.sampled_from(self.never_partitioned_by())))

    def never_partitioned_by(self) -> list[str]:
        used = {field.source_id for spec in self.source.table.specs().values() for field in spec.fields}
        return [field.name for field in self.source.fields if field.field_id not in used]

    def widen_a_column(self, _: st.DataObject) -> None:
        narrow = [field.name for field in self.source.fields if isinstance(field.field_type, IntegerType)]
        with self.source.table.update_schema() as update:
            for name in narrow[:1]:
                update.update_column(name, LongType())

    def stop_partitioning(self, _: st.DataObject) -> None:
        with self.source.table.update_spec() as update:
            for field in self.source.table.spec().fields:
                if str(field.transform) != "void":  # a v1 table keeps this for a removed field
                    update.remove_field(field.name)

    def partition_by_another_column(self, data: st.DataObject) -> None:
        used = {field.source_id for field in self.source.table.spec().fields}
        free = [field.name for field in self.source.fields if field.field_id not in {*used, 4}]
        with self.source.table.update_spec() as update:
            update.add_field(data.draw(st.sampled_from(free)), IdentityTransform(), f"by-{self.new_number()}")

    def upgrade_to_v2(self, _: st.DataObject) -> None:
        with self.source.table.transaction() as transaction:
            transaction.upgrade_table_version(2)

    def new_number(self) -> int:
        self.added += 1
        return self.added

    @rule(consume=st.booleans(), asked_for=st.sampled_from([None, None, None, Mode.FULL]))
    def capture(self, *, consume: bool, asked_for: Mode | None) -> None:
        source = self.source
        # A table without a snapshot counts as consumed: later rows are new.
        is_full = asked_for is Mode.FULL or source.state.number == 0
        is_watched = source.state.committed is not None
        new = source.rows if is_full else source.rows[self.consumed :]
        metadata = source.lake.load(TABLE, asset="daily")
        pending = is_pending(source.state, table_uuid=metadata.uuid, ancestry=metadata.ancestry())

        captured = source.capture(*[field.name for field in source.fields], asked_for=asked_for)
        table = captured.capture.icdc_table
        assert captured.capture.mode is (Mode.FULL if is_full else Mode.INCREMENTAL)
        assert source.scan() == source.expected(source.rows)
        assert source.scan(table) == source.scan_with_duckdb(table) == source.expected(new)
        assert captured.files.changes.row_count == len(new)
        for field in source.fields:
            check_range(captured.ranges[field.name], [row.get(field.field_id) for row in new])
        if not is_full and is_watched:
            assert pending == bool(new)
        if consume:
            source.consume(captured)
            self.consumed = len(source.rows)


def check_range(found: ChangeRange, values: list[Any]) -> None:
    """The range includes every changed value, and the bounds of an exact range occur."""
    assert found.is_empty == (not values)
    if any(value is None for value in values):
        assert found.has_null or found.between("x") == "TRUE"
        assert found.has_null or found.since("x") == "TRUE"
    if any(value != value for value in values):  # noqa: PLR0124  # NaN, greater than every number in Spark
        assert found.highest is None
    known = [value for value in values if value is not None and value == value]  # noqa: PLR0124  # not NaN
    assert all(found.lowest is None or found.lowest <= value for value in known)
    assert all(found.highest is None or value <= found.highest for value in known)
    if found.kind is RangeKind.EXACT:
        assert as_multiset([(found.lower, found.upper)]) == as_multiset([(min(known), max(known))])


TestAppendedHistory = AppendedHistory.TestCase
TestAppendedHistory.settings = settings(max_examples=15, stateful_step_count=12, deadline=None)
