"""Everything that can happen to a table, each as a named function on a real one.

An operation's arguments are plain values that keep their meaning when earlier steps are left out: rows are numbers,
columns are named as they began, snapshots are counted. ``@operation`` says with which values to try it, and on which
format versions it exists.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec

import pyarrow as pa
from hypothesis import strategies as st
from pyiceberg.expressions import AlwaysTrue, BooleanExpression, EqualTo, IsNaN, IsNull
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

from tests.histories import handmade
from tests.histories.table import HistoryTable, NotNow
from tests.histories.values import COLUMNS, ROWS, spark_type, sql_value

P = ParamSpec("P")
Where = tuple[str, int] | None
"""Rows whose column (as it began) has the value that a row of that number has there; None is every row."""
MAIN = "main"


@dataclass(frozen=True)
class Operation:
    """A function on a table, the format versions that have it, and what to call it with."""

    apply: Callable[..., None]
    family: str
    versions: frozenset[int]
    arguments: st.SearchStrategy[dict[str, Any]]
    refused: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.apply.__name__


OPERATIONS: dict[str, Operation] = {}


def operation(
    family: str,
    *,
    versions: Sequence[int] = (1, 2, 3),
    refused: Sequence[str] = (),
    **arguments: st.SearchStrategy[Any],
) -> Callable[[Callable[Concatenate[HistoryTable, P], None]], Callable[Concatenate[HistoryTable, P], None]]:
    """Make a function one of the OPERATIONS. ``refused`` are what an engine says when it won't do it to this table."""

    def register(apply: Callable[Concatenate[HistoryTable, P], None]) -> Callable[Concatenate[HistoryTable, P], None]:
        chosen = st.fixed_dictionaries(arguments)
        OPERATIONS[apply.__name__] = Operation(apply, family, frozenset(versions), chosen, tuple(refused))
        return apply

    return register


def apply(table: HistoryTable, name: str, arguments: Mapping[str, Any]) -> None:
    """Do it.

    Raises:
        NotNow: it isn't possible on the table as it is; the table is unchanged.
    """
    chosen = OPERATIONS[name]
    if table.version not in chosen.versions:
        raise NotNow
    try:
        chosen.apply(table, **arguments)
    except Exception as error:
        if any(text in str(error) for text in (*chosen.refused, *_REFUSED_BY_PYICEBERG)):
            raise NotNow from error
        raise


_REFUSED_BY_PYICEBERG = (
    "PyIceberg does not yet support equality deletes",
    "pyiceberg_core needs to be installed",  # for bucket and truncate
)

rows = st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=5).map(tuple)
one_row = st.integers(0, ROWS - 1)
roles = st.sampled_from([column.name for column in COLUMNS])
comparable = st.sampled_from(["number", "day", "title", "amount", "_change_type"])
wheres = st.tuples(comparable, one_row)
updates = st.tuples(st.sampled_from([column.name for column in COLUMNS]), one_row)
transforms = st.sampled_from(
    ["day", "title", "bucket(2, number)", "truncate(1, title)", "days(day)", "months(day)", "number"]
)
copy_or_merge = st.sampled_from(["copy-on-write", "merge-on-read"])


# Appending


@operation("append", rows=rows)
def append_by_spark(table: HistoryTable, *, rows: Sequence[int]) -> None:
    table.sql(f"INSERT INTO {table.sql_name} {table.sql_rows(rows)}")


@operation("append", versions=(1, 2), rows=rows)
def append_by_pyiceberg(table: HistoryTable, *, rows: Sequence[int]) -> None:
    table.by_pyiceberg().append(table.arrow_rows(rows))


@operation("append", rows=rows)
def append_merging_manifests_by_spark(table: HistoryTable, *, rows: Sequence[int]) -> None:
    with _merging(table):
        append_by_spark(table, rows=rows)


@operation("append", versions=(1, 2), rows=rows)
def append_merging_manifests_by_pyiceberg(table: HistoryTable, *, rows: Sequence[int]) -> None:
    table.by_pyiceberg()
    with _merging(table):
        append_by_pyiceberg(table, rows=rows)


@operation("append")
def append_no_row(table: HistoryTable) -> None:
    append_by_spark(table, rows=())


@contextlib.contextmanager
def _merging(table: HistoryTable) -> Iterator[None]:
    name = "commit.manifest-merge.enabled"
    before = table.raw["properties"][name]
    handmade.set_properties(table, {name: "true"})
    try:
        yield
    finally:
        handmade.set_properties(table, {name: before})


# Overwriting


@operation("overwrite", rows=rows)
def insert_overwrite_everything(table: HistoryTable, *, rows: Sequence[int]) -> None:
    with _session(table, {"spark.sql.sources.partitionOverwriteMode": "static"}):
        table.sql(f"INSERT OVERWRITE {table.sql_name} {table.sql_rows(rows)}")


@operation("overwrite", rows=rows)
def insert_overwrite_partitions(table: HistoryTable, *, rows: Sequence[int]) -> None:
    with _session(table, {"spark.sql.sources.partitionOverwriteMode": "dynamic"}):
        table.sql(f"INSERT OVERWRITE {table.sql_name} {table.sql_rows(rows)}")


@operation("overwrite", refused=["some, but not all, rows match"], rows=rows, where=wheres)
def overwrite_by_filter(table: HistoryTable, *, rows: Sequence[int], where: Where) -> None:
    condition = F.expr(_condition(table, where))
    table.sql(table.sql_rows(rows)).writeTo(table.sql_name).overwrite(condition)


@operation("overwrite", versions=(1, 2), rows=rows, where=st.none() | wheres)
def overwrite_by_pyiceberg(table: HistoryTable, *, rows: Sequence[int], where: Where) -> None:
    table.by_pyiceberg().overwrite(table.arrow_rows(rows), _pyiceberg_condition(table, where))


@operation(
    "overwrite", versions=(1, 2), refused=["non-identity-transform field", "on an unpartitioned table"], rows=rows
)
def overwrite_partitions_by_pyiceberg(table: HistoryTable, *, rows: Sequence[int]) -> None:
    table.by_pyiceberg().dynamic_partition_overwrite(table.arrow_rows(rows))


@operation("overwrite")
def truncate(table: HistoryTable) -> None:
    table.sql(f"TRUNCATE TABLE {table.sql_name}")


# Changing rows


@operation("delete", versions=(1, 2), where=wheres)
def delete_by_pyiceberg(table: HistoryTable, *, where: Where) -> None:
    table.by_pyiceberg().delete(_pyiceberg_condition(table, where))


@operation("delete", where=wheres)
def delete_copy_on_write(table: HistoryTable, *, where: Where) -> None:
    _set_mode(table, "copy-on-write")
    table.sql(f"DELETE FROM {table.sql_name} WHERE {_condition(table, where)}")


@operation("delete", versions=(2, 3), where=wheres)
def delete_merge_on_read(table: HistoryTable, *, where: Where) -> None:
    """By position delete files for each data file in v2, by deletion vectors in v3."""
    _set_mode(table, "merge-on-read", granularity="file")
    table.sql(f"DELETE FROM {table.sql_name} WHERE {_condition(table, where)}")


@operation("delete", versions=(2,), where=wheres)
def delete_merge_on_read_by_partition(table: HistoryTable, *, where: Where) -> None:
    _set_mode(table, "merge-on-read", granularity="partition")
    table.sql(f"DELETE FROM {table.sql_name} WHERE {_condition(table, where)}")


@operation("delete")
def delete_everything(table: HistoryTable) -> None:
    table.sql(f"DELETE FROM {table.sql_name}")


@operation("update", where=wheres, to=updates)
def update_copy_on_write(table: HistoryTable, *, where: Where, to: tuple[str, int]) -> None:
    _set_mode(table, "copy-on-write")
    table.sql(f"UPDATE {table.sql_name} SET {_assignment(table, to)} WHERE {_condition(table, where)}")


@operation("update", versions=(2, 3), where=wheres, to=updates)
def update_merge_on_read(table: HistoryTable, *, where: Where, to: tuple[str, int]) -> None:
    _set_mode(table, "merge-on-read", granularity="file")
    table.sql(f"UPDATE {table.sql_name} SET {_assignment(table, to)} WHERE {_condition(table, where)}")


@operation("update", where=wheres, mode=copy_or_merge)
def update_to_the_same(table: HistoryTable, *, where: Where, mode: str) -> None:
    """Files may be written anew, and no row changes."""
    _set_mode(table, mode if table.version > 1 else "copy-on-write")
    name = f"`{table.field('title').name}`"
    table.sql(f"UPDATE {table.sql_name} SET {name} = {name} WHERE {_condition(table, where)}")


keys = st.sampled_from(["number", "title", "day"])


@operation("merge", rows=rows, on=keys)
def merge_copy_on_write(table: HistoryTable, *, rows: Sequence[int], on: str) -> None:
    _set_mode(table, "copy-on-write")
    _merge(table, rows, on, "MATCHED THEN UPDATE SET *", "NOT MATCHED THEN INSERT *")


@operation("merge", versions=(2, 3), rows=rows, on=keys)
def merge_merge_on_read(table: HistoryTable, *, rows: Sequence[int], on: str) -> None:
    _set_mode(table, "merge-on-read", granularity="file")
    _merge(table, rows, on, "MATCHED THEN UPDATE SET *", "NOT MATCHED THEN INSERT *")


@operation("merge", rows=rows, on=keys, mode=copy_or_merge)
def merge_deleting(table: HistoryTable, *, rows: Sequence[int], on: str, mode: str) -> None:
    """What matches goes, the rest comes."""
    _set_mode(table, mode if table.version > 1 else "copy-on-write")
    _merge(table, rows, on, "MATCHED THEN DELETE", "NOT MATCHED THEN INSERT *")


@operation("merge", rows=rows, on=keys)
def merge_inserting(table: HistoryTable, *, rows: Sequence[int], on: str) -> None:
    """Commits an append."""
    _merge(table, rows, on, "NOT MATCHED THEN INSERT *")


@operation("merge", rows=rows, on=keys, mode=copy_or_merge)
def merge_changing_nothing(table: HistoryTable, *, rows: Sequence[int], on: str, mode: str) -> None:
    _set_mode(table, mode if table.version > 1 else "copy-on-write")
    title = table.field("title").name
    _merge(table, rows, on, f"MATCHED THEN UPDATE SET `{title}` = t.`{title}`")


def _merge(table: HistoryTable, rows: Sequence[int], on: str, *clauses: str) -> None:
    key = table.field(on)
    of_each_key = {table.value(key, row): row for row in rows}
    when = " ".join(f"WHEN {clause}" for clause in clauses)
    source = table.sql_rows(tuple(of_each_key.values()))
    table.sql(f"MERGE INTO {table.sql_name} t USING ({source}) s ON t.`{key.name}` <=> s.`{key.name}` {when}")


# Deletes that only other writers make


@operation(
    "by hand",
    versions=(2, 3),
    where=st.tuples(st.sampled_from(["number", "title", "day"]), one_row),
    file=st.integers(0, 5),
)
def delete_by_equality(table: HistoryTable, *, where: Where, file: int) -> None:
    """In the partition of one of the data files."""
    _delete_by_equality(table, where, _a_live_file(table, file))


@operation("by hand", versions=(2, 3), where=st.tuples(st.sampled_from(["number", "title", "day"]), one_row))
def delete_by_equality_everywhere(table: HistoryTable, *, where: Where) -> None:
    """A global equality delete: unpartitioned, it applies to every partition."""
    _a_live_file(table, 0)
    _delete_by_equality(table, where, None)


def _delete_by_equality(table: HistoryTable, where: Where, beside: handmade.LiveFile | None) -> None:
    assert where
    column = table.field(where[0])
    kind = {"int": pa.int32(), "long": pa.int64(), "string": pa.string(), "date": pa.date32()}[str(column.type)]
    handmade.delete_equal(table, column, pa.array([table.value(column, where[1])], kind), beside)


@operation(
    "by hand",
    versions=(2,),
    file=st.integers(0, 5),
    positions=st.sets(st.integers(0, 4), min_size=1).map(sorted).map(tuple),
)
def delete_positions_by_hand(table: HistoryTable, *, file: int, positions: Sequence[int]) -> None:
    """One delete file for all of a partition's data files; some of the rows may be deleted already."""
    chosen = _a_live_file(table, file)
    beside = [f for f in handmade.live_files(table) if (f.spec_id, f.partition) == (chosen.spec_id, chosen.partition)]
    found = {f.path: sorted({position % f.rows for position in positions}) for f in beside}
    handmade.delete_positions(table, found, chosen)


def _a_live_file(table: HistoryTable, number: int) -> handmade.LiveFile:
    files = [file for file in handmade.live_files(table) if file.rows]
    if not files:
        raise NotNow
    return files[number % len(files)]


# Maintenance


@operation("maintenance")
def compact_everything(table: HistoryTable) -> None:
    _compact(table, {"rewrite-all": "true"})


@operation("maintenance", where=wheres)
def compact_some_partitions(table: HistoryTable, *, where: Where) -> None:
    _compact(table, {"rewrite-all": "true"}, where=_condition(table, where))


@operation("maintenance")
def compact_small_files(table: HistoryTable) -> None:
    """Files that are alone in their partition stay."""
    _compact(table, {"min-input-files": "2"})


@operation("maintenance")
def compact_in_parts(table: HistoryTable) -> None:
    """One commit for each partition."""
    _compact(table, {"rewrite-all": "true", "partial-progress.enabled": "true", "partial-progress.max-commits": "9"})


@operation("maintenance")
def compact_with_new_sequence_numbers(table: HistoryTable) -> None:
    _compact(table, {"rewrite-all": "true", "use-starting-sequence-number": "false"})


@operation("maintenance", versions=(2, 3))
def compact_what_has_deletes(table: HistoryTable) -> None:
    _compact(table, {"delete-file-threshold": "1", "min-input-files": "99", "remove-dangling-deletes": "true"})


@operation("maintenance")
def compact_sorted(table: HistoryTable) -> None:
    name = table.field("number").name
    _compact(table, {"rewrite-all": "true"}, strategy="sort", sort_order=f"`{name}` DESC NULLS LAST")


@operation("maintenance")
def rewrite_manifests(table: HistoryTable) -> None:
    table.sql(f"CALL lake.system.rewrite_manifests('{table.name}')")


@operation("maintenance", versions=(2, 3))
def rewrite_position_deletes(table: HistoryTable) -> None:
    options = "map('rewrite-all', 'true')"
    table.sql(f"CALL lake.system.rewrite_position_delete_files(table => '{table.name}', options => {options})")


def _compact(table: HistoryTable, options: Mapping[str, str], **more: str) -> None:
    listed = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
    arguments = {"table": table.name, **more}
    named = ", ".join(f"{key} => {sql_value(value, 'string')}" for key, value in arguments.items())
    table.sql(f"CALL lake.system.rewrite_data_files({named}, options => map({listed}))")


# Publishing


@operation("publish", rows=rows, between=rows)
def cherry_pick(table: HistoryTable, *, rows: Sequence[int], between: Sequence[int]) -> None:
    """A staged append, picked after another commit."""
    staged = _stage(table, "append_by_spark", rows)
    append_by_spark(table, rows=between)
    table.sql(f"CALL lake.system.cherrypick_snapshot('{table.name}', {staged})")


@operation("publish", refused=["Cannot cherry-pick replace partitions with changed partition"], rows=rows)
def cherry_pick_an_overwrite(table: HistoryTable, *, rows: Sequence[int]) -> None:
    staged = _stage(table, "insert_overwrite_partitions", rows)
    table.sql(f"CALL lake.system.cherrypick_snapshot('{table.name}', {staged})")


@operation("publish", rows=rows, between=rows)
def publish_by_wap_id(table: HistoryTable, *, rows: Sequence[int], between: Sequence[int]) -> None:
    staged = _stage(table, "append_by_spark", rows)
    append_by_spark(table, rows=between)
    table.sql(f"CALL lake.system.publish_changes('{table.name}', '{_wap_id(table, staged)}')")


@operation("publish", rows=rows)
def stage_and_forget(table: HistoryTable, *, rows: Sequence[int]) -> None:
    """A snapshot that is in the table and in no ancestry."""
    _stage(table, "append_by_spark", rows)


@operation("publish", rows=rows, where=wheres)
def fast_forward_a_branch(table: HistoryTable, *, rows: Sequence[int], where: Where) -> None:
    """An append and a delete, both published at once."""
    condition = _condition(table, where)
    with _branch(table) as branch:
        table.sql(f"INSERT INTO {branch} {table.sql_rows(rows)}")
        table.sql(f"DELETE FROM {branch} WHERE {condition}")
        table.sql(f"CALL lake.system.fast_forward('{table.name}', 'main', '{branch.rpartition('_')[2]}')")


@operation("publish", rows=rows)
def write_to_a_branch_and_drop_it(table: HistoryTable, *, rows: Sequence[int]) -> None:
    with _branch(table) as branch:
        table.sql(f"INSERT INTO {branch} {table.sql_rows(rows)}")


def _stage(table: HistoryTable, name: str, rows: Sequence[int]) -> int:
    """The id of a snapshot that is written and not published."""
    if table.head is None:
        raise NotNow
    handmade.set_properties(table, {"write.wap.enabled": "true"})
    known = set(table.snapshots())
    try:
        with _session(table, {"spark.wap.id": f"wap_{len(known)}_{table.raw['last-updated-ms']}"}):
            OPERATIONS[name].apply(table, rows=rows)
    finally:
        handmade.set_properties(table, {"write.wap.enabled": "false"})
    (staged,) = set(table.snapshots()) - known
    return staged


def _wap_id(table: HistoryTable, snapshot_id: int) -> str:
    summary = next(s["summary"] for s in table.raw["snapshots"] if s["snapshot-id"] == snapshot_id)
    return str(summary["wap.id"])


@contextlib.contextmanager
def _branch(table: HistoryTable) -> Iterator[str]:
    if table.head is None:
        raise NotNow
    table.sql(f"ALTER TABLE {table.sql_name} CREATE BRANCH side")
    try:
        yield f"{table.sql_name}.branch_side"
    finally:
        table.sql(f"ALTER TABLE {table.sql_name} DROP BRANCH side")


# Moving main


@operation("move", back=st.integers(1, 3))
def roll_back(table: HistoryTable, *, back: int) -> None:
    ancestry = table.ancestry()
    if len(ancestry) < 2:
        raise NotNow
    to = ancestry[min(back, len(ancestry) - 1)]
    table.sql(f"CALL lake.system.rollback_to_snapshot('{table.name}', {to})")


@operation("move", newest=st.integers(0, 6))
def set_current_snapshot(table: HistoryTable, *, newest: int) -> None:
    """Back, aside, or forward again: ``newest`` counts in the order of commits."""
    snapshots = table.snapshots()
    if len(snapshots) < 2:
        raise NotNow
    to = snapshots[-1 - newest % len(snapshots)]
    if to == table.head:
        raise NotNow
    table.sql(f"CALL lake.system.set_current_snapshot('{table.name}', {to})")


# Expiring


@operation("expire")
def expire_what_is_consumed(table: HistoryTable) -> None:
    """Every snapshot before the oldest watermark, which stays."""
    ancestry = table.ancestry()
    places = [ancestry.index(found) for found in table.watermarks() if found in ancestry]
    _expire(table, ancestry[max(places) + 1 :] if places else [])


@operation("expire", consumer=st.integers(0, 2))
def expire_a_watermark(table: HistoryTable, *, consumer: int) -> None:
    """Exactly the snapshot up to which a consumer has consumed."""
    watermarks = table.watermarks()
    _expire(table, [watermarks[consumer % len(watermarks)]] if watermarks else [])


@operation("expire", newest=st.integers(1, 4))
def expire_in_the_middle(table: HistoryTable, *, newest: int) -> None:
    """One snapshot of main's, neither its head nor its oldest."""
    _expire(table, table.ancestry()[1:-1][newest - 1 : newest])


@operation("expire")
def expire_all_but_the_head(table: HistoryTable) -> None:
    _expire(table, table.ancestry()[1:])


@operation("expire", versions=(1, 2))
def expire_by_pyiceberg(table: HistoryTable) -> None:
    """All but the head, from the metadata alone: the files stay."""
    by_pyiceberg, old = table.by_pyiceberg(), table.ancestry()[1:]
    if not old:
        raise NotNow
    by_pyiceberg.maintenance.expire_snapshots().by_ids(old).commit()


def _expire(table: HistoryTable, snapshot_ids: Sequence[int]) -> None:
    retained = table.snapshots()
    doomed = [found for found in snapshot_ids if found in retained and found != table.head]
    if not doomed:
        raise NotNow
    ids = ", ".join(str(found) for found in dict.fromkeys(doomed))
    table.sql(f"CALL lake.system.expire_snapshots(table => '{table.name}', snapshot_ids => array({ids}))")


# Evolving the schema


@operation("schema", kind=st.sampled_from(["int", "bigint", "string", "double", "date"]))
def add_column(table: HistoryTable, *, kind: str) -> None:
    _alter(table, f"ADD COLUMN {_new_name(table)} {kind}")


@operation("schema", versions=(3,))
def add_column_with_default(table: HistoryTable) -> None:
    handmade.add_column_with_default(table, _new_name(table), "int", 7)


@operation("schema", refused=["Cannot drop"], role=roles)
def drop_column(table: HistoryTable, *, role: str) -> None:
    _never_partitioned_by(table, role)
    _alter(table, f"DROP COLUMN `{table.field(role).name}`")


@operation("schema", role=roles)
def drop_and_add_again(table: HistoryTable, *, role: str) -> None:
    """The name comes back, the values don't."""
    _never_partitioned_by(table, role)
    dropped = table.field(role)
    _alter(table, f"DROP COLUMN `{dropped.name}`")
    _alter(table, f"ADD COLUMN `{dropped.name}` {spark_type(dropped.type)}")


@operation("schema", role=roles)
def rename_column(table: HistoryTable, *, role: str) -> None:
    _alter(table, f"RENAME COLUMN `{table.field(role).name}` TO {_new_name(table)}")


@operation("schema", one=roles, other=roles)
def swap_names(table: HistoryTable, *, one: str, other: str) -> None:
    for role in (one, other):
        _never_partitioned_by(table, role)
    names = table.field(one).name, table.field(other).name
    if one == other:
        raise NotNow
    for before, after in ((names[0], "held"), (names[1], names[0]), ("held", names[1])):
        _alter(table, f"RENAME COLUMN `{before}` TO `{after}`")


@operation("schema", role=roles)
def move_column_first(table: HistoryTable, *, role: str) -> None:
    _alter(table, f"ALTER COLUMN `{table.field(role).name}` FIRST")


_WIDER = {"int": "bigint", "float": "double", "decimal(9, 2)": "decimal(12, 2)"}


@operation("schema", role=st.sampled_from(["number", "ratio", "price"]))
def widen_column(table: HistoryTable, *, role: str) -> None:
    found = table.field(role)
    if str(found.type) not in _WIDER:
        raise NotNow
    _alter(table, f"ALTER COLUMN `{found.name}` TYPE {_WIDER[str(found.type)]}")


@operation("schema")
def add_nested_field(table: HistoryTable) -> None:
    _alter(table, f"ADD COLUMN `{table.field('place').name}`.{_new_name(table)} string")


@operation("schema")
def drop_nested_field(table: HistoryTable) -> None:
    """Of a struct none of whose fields is in a file, no reader can tell whether it was null: one always stays."""
    place = table.field("place")
    assert isinstance(place.type, dict)
    names = [field["name"] for field in place.type["fields"]]
    if names[0] == "code" or len(names) < 2:
        raise NotNow
    _alter(table, f"DROP COLUMN `{place.name}`.`{place.type['fields'][0]['name']}`")


# Evolving the partitioning and the format


@operation("spec", refused=["Cannot add redundant partition", "Cannot add duplicate partition"], transform=transforms)
def add_partition_field(table: HistoryTable, *, transform: str) -> None:
    _alter(table, f"ADD PARTITION FIELD {_with_current_name(table, transform)} AS by_{_new_name(table)}")


@operation("spec")
def drop_partition_field(table: HistoryTable) -> None:
    spec = next(s for s in table.raw["partition-specs"] if s["spec-id"] == table.raw["default-spec-id"])
    names = [field["name"] for field in spec["fields"] if field["transform"] != "void"]
    if not names:
        raise NotNow
    _alter(table, f"DROP PARTITION FIELD `{names[0]}`")


@operation("format", versions=(1,))
def upgrade_to_v2(table: HistoryTable) -> None:
    _alter(table, "SET TBLPROPERTIES ('format-version' = '2')")


@operation("format", versions=(2,))
def upgrade_to_v3(table: HistoryTable) -> None:
    _alter(table, "SET TBLPROPERTIES ('format-version' = '3')")


# Starting over


@operation("replace", rows=rows)
def create_or_replace(table: HistoryTable, *, rows: Sequence[int]) -> None:
    """The uuid stays, the ancestry is cut."""
    properties = f"TBLPROPERTIES ('format-version' = '{table.version}', 'commit.manifest-merge.enabled' = 'false')"
    table.sql(f"CREATE OR REPLACE TABLE {table.sql_name} USING iceberg {properties} AS {table.sql_rows(rows)}")


@operation("replace")
def drop_and_create_again(table: HistoryTable) -> None:
    table.drop()
    table.create()


def _with_current_name(table: HistoryTable, transform: str) -> str:
    for column in COLUMNS:
        name = rf"\b{column.name}\b"
        if re.search(name, transform):
            return re.sub(name, f"`{table.field(column.name).name}`", transform)
    raise NotNow


def _never_partitioned_by(table: HistoryTable, role: str) -> None:
    """A column that any spec ever used can't go: Spark could no longer read the table."""
    used = {field["source-id"] for spec in table.raw["partition-specs"] for field in spec["fields"]}
    if table.field(role).id in used or len(table.fields) < 3:
        raise NotNow


def _new_name(table: HistoryTable) -> str:
    raw = table.raw
    return f"new_{len(raw['schemas'])}_{len(raw['partition-specs'])}"


def _alter(table: HistoryTable, change: str) -> None:
    table.sql(f"ALTER TABLE {table.sql_name} {change}")


def _condition(table: HistoryTable, where: Where) -> str:
    if where is None:
        return "TRUE"
    column = table.field(where[0])
    value = table.value(column, where[1])
    name = f"`{column.name}`"
    return f"{name} IS NULL" if value is None else f"{name} = {sql_value(value, column.type)}"


def _pyiceberg_condition(table: HistoryTable, where: Where) -> BooleanExpression:
    if where is None:
        return AlwaysTrue()
    column = table.field(where[0])
    value = table.value(column, where[1])
    if value is None:
        return IsNull(column.name)
    return IsNaN(column.name) if value != value else EqualTo(column.name, value)  # noqa: PLR0124  # not a number


def _assignment(table: HistoryTable, to: tuple[str, int]) -> str:
    column = table.field(to[0])
    return f"`{column.name}` = {sql_value(table.value(column, to[1]), column.type)}"


def _set_mode(table: HistoryTable, mode: str, granularity: str = "file") -> None:
    """How Spark deletes, updates and merges from now on."""
    modes = {f"write.{change}.mode": mode for change in ("delete", "update", "merge")}
    handmade.set_properties(table, {**modes, "write.delete.granularity": granularity})


@contextlib.contextmanager
def _session(table: HistoryTable, configuration: Mapping[str, str]) -> Iterator[None]:
    conf = table.lake.session.conf
    for key, value in configuration.items():
        conf.set(key, value)
    try:
        yield
    finally:
        for key in configuration:
            conf.unset(key)
