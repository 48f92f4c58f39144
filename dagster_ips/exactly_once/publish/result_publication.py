"""Publishes what an asset returned: checks it, creates its table or has it follow the frame, writes and commits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_ips.core.capture import Capture, Mode
from dagster_ips.core.code_of_rows import Making, not_made_by_plan
from dagster_ips.core.ownership import ASSET
from dagster_ips.core.partials_property import PARTIALS
from dagster_ips.core.partition_keys import PartitionKeys
from dagster_ips.core.plan_version import PlanVersion, known_code
from dagster_ips.core.queries_property import PLANS, QUERIES, texts_in, texts_property
from dagster_ips.core.ranges import Predicate
from dagster_ips.core.table_name import namespace_of
from dagster_ips.core.write_mode import ByQuery, Combine, WriteMode
from dagster_ips.errors import DeclarationError, PlanChangedError
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.exactly_once.publish.column_evolution import follow_frame, require_columns_fit, require_rows_found
from dagster_ips.exactly_once.publish.publisher import Check, Publication, Publisher, unchecked
from dagster_ips.exactly_once.publish.result_writer import Result
from dagster_ips.exactly_once.publish.table_changes import TableChanges
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.file_spans import column_kinds
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.progress.advance import Advance
from dagster_ips.progress.lookups import LookedUp, are_news, unchanged
from dagster_ips.progress.made_rows import MadeBy, codes_of
from dagster_ips.progress.progress import Progress
from dagster_ips.spark.error_text import naming_lost_checkpoints
from dagster_ips.spark.targets import TableDescription, create_table, order_table, set_properties

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class AssetTable:
    """The table that an asset writes, and how the asset is declared.

    ``layout`` is how the table is to be laid out. ``code`` is the run's code, with the ``plan`` of what it returned if
    that is known, and ``declared`` is as in ``Maker``. ``shares_views`` is as in ``provenance``. If the asset has
    partitions, ``divided`` divides the table's rows among them, and the run computes ``partitions``.
    """

    asset: str
    name: str
    layout: TableDescription
    write_mode: WriteMode
    code: str | None
    declared: str | None
    plan: PlanVersion | None = None
    shares_views: bool = False
    divided: PartitionKeys | None = None
    partitions: Sequence[str] = ()

    @property
    def description(self) -> TableDescription:
        """What the table is created by: its layout, what suits the write mode, and whose table it is."""
        return self.layout.tuned_for(self.write_mode).with_property(ASSET, self.asset)


def publish_result(  # noqa: PLR0913  # all are independent
    publisher: Publisher,
    table: AssetTable,
    result: Result,
    captures: Sequence[Capture],
    *,
    looked_up: Mapping[str, LookedUp],
    check: Check = unchecked,
) -> Publication:
    """Write ``result`` to ``table`` and publish it if ``check`` allows it; ``looked_up`` is what else it was made of.

    Raises:
        PlanChangedError: the table's rows were made by another plan, so the change can't be added to them.
        IpsError: nothing was published and nothing was consumed.
    """
    lake = publisher.catalog
    existing = lake.find(table.name)
    # Checked before any frame is used: once other runs have published the change, the frame's input may be gone.
    if existing is not None and (superseded := publisher.superseded(existing, captures, table.asset)):
        return superseded
    if existing is not None:
        publisher.require_own(existing, captures, table.asset)
    publisher = publisher.settling(existing, table.asset)
    with naming_lost_checkpoints(table.asset):
        result, stored = _checked(replace(result, storage=lake.storage), table, existing, catalog=lake.name)
    if not captures:
        publisher = replace(publisher, advance=Advance(partitions=tuple(table.partitions)))
    found = publisher.known(existing, table.asset) if existing is not None else None
    known = found.progress if found is not None else None
    if existing is not None:
        table = replace(table, code=known_code(table.code, codes_of(known)))
        _require_same_plan(table, existing, known, captures, result)
    new = sorted({each.edge.key for each in captures if each.is_of_new_partition})
    if found is not None and not new and not publisher.are_news and result.changes_nothing():
        publisher.commit_without_writing(captures, table.asset)
        return Publication(existing)
    changes = TableChanges(lake, publisher.session, table.name, existing)
    with changes.taken_back_on_error():
        stored = _created_or_followed(publisher, table, existing, known, stored, changes)
        if not isinstance(result.write_mode, Combine):
            result = replace(result, frame=stored)
        result = replace(result, unchanged=unchanged(known, looked_up))
        publisher = replace(
            publisher,
            origin=MadeBy(table.code, table.declared, result.replaces_all),
            looked_up=looked_up,
            are_news=publisher.are_news or (not result.replaces_all and are_news(known, looked_up)),
        )
        if table.divided is not None:
            target = lake.load(table.name, asset=table.asset)
            partitions = _rows_of(table.divided, table.partitions, target)
            result = replace(
                result, partitions=partitions, new_partitions=_rows_of(table.divided, new, target) if new else None
            )
        return publisher.publish(table.name, captures, result.write, consumer=table.asset, check=check)


def _checked(
    result: Result, table: AssetTable, existing: TableMetadata | None, *, catalog: str
) -> tuple[Result, DataFrame]:
    """The result as it is to be written, and as it is stored; what is known to be wrong is refused."""
    _require_same_storage(existing, table.description.properties.get(PARTIALS), table.asset)
    columns = existing.identity_partition_columns() if existing else table.description.partition_by
    # This check comes first: a frame with two columns of the same name supports no other check.
    result = result.with_aggregates(table.name)
    stored = result.as_stored
    require_columns_fit(stored, existing, catalog=catalog, table=table.name)
    checked = result.checked(
        table.name,
        tuple(columns),
        catalog=catalog,
        shares_views=table.shares_views,
        key_columns=table.divided.columns if table.divided else (),
    )
    if existing is not None and result.mode is Mode.INCREMENTAL:
        groups = {key for change in checked.inputs for taken in change.taken for key in taken.keys_in_result}
        require_rows_found(stored, result.write_mode, existing, groups=groups)
    return checked, stored


def _require_same_plan(
    table: AssetTable, existing: TableMetadata, known: Progress | None, captures: Sequence[Capture], result: Result
) -> None:
    """Fail unless the plan that made the rows of a combine() is the one that computes the change to add to them.

    Raises:
        PlanChangedError: it is another one, or unknown.
    """
    if result.mode is Mode.FULL or not isinstance(table.write_mode, Combine) or table.code is None:
        return
    progress = known or Progress()
    going_on = {each.edge.partition for each in captures if not each.is_of_new_partition}
    making = {partition: progress.making(partition) or Making() for partition in going_on}
    if why := not_made_by_plan(making, table.code, table.plan, texts_in(PLANS, existing.properties)):
        raise PlanChangedError(table=table.name, problem=why)


def _require_same_storage(target: TableMetadata | None, partials: str | None, asset: str) -> None:
    """Refuse a change of storage: readers fold a table as its own property says, so it must be true of every row."""
    kept = target.properties.get(PARTIALS) if target else partials
    if target is None or kept == partials:
        return
    wanted = "whole rows" if partials is None else "partials of other aggregates" if kept else "partials"
    raise DeclarationError(
        asset=asset,
        problem=f"its table {target.table} stores {'partials' if kept else 'whole rows'}, but it declares {wanted}. "
        "Nothing was written and nothing was consumed.",
        remedy="Give it another table with table(...), or drop this one: the next run computes everything.",
    )


def _created_or_followed(  # noqa: PLR0913, PLR0917  # all are independent
    publisher: Publisher,
    table: AssetTable,
    existing: TableMetadata | None,
    known: Progress | None,
    stored: DataFrame,
    changes: TableChanges,
) -> DataFrame:
    """Create the table for rows like ``stored``, or have it follow them; returns them in the form that fits it."""
    lake, session = publisher.catalog, publisher.session
    texts = _texts(existing, known, table)
    description = table.description.with_properties(texts)
    if existing is None:
        create_target(lake, session, table.name, stored, description)
    else:
        if texts:
            changes.will_set(*texts)
            with effect(Effect.ALTER_TARGET):
                set_properties(session, lake.name, table.name, texts)
        stored = follow_frame(stored, lake, table.name, changes)
    order_new_target(session, lake.name, table.name, existing, description)
    return stored


def create_target(
    lake: LakeCatalog, session: SparkSession, table: str, like: DataFrame, description: TableDescription
) -> None:
    """Create ``table``, and its namespace, for rows like ``like``; it stays empty.

    Raises:
        LayoutError: as ``create_table``.
        SharedFolderError: the catalog keeps it in a folder of another table.
    """
    with effect(Effect.CREATE_TARGET):
        lake.create_namespace(namespace_of(table))
        create_table(session, lake.name, table, like, description)
    lake.require_own_folder(table, lake.load(table, asset=table).location)


def order_new_target(
    session: SparkSession, catalog: str, table: str, existing: TableMetadata | None, description: TableDescription
) -> None:
    """Set a new table's sort order; ``existing`` is the table before the run, None if the run created it.

    A table without a snapshot counts as new: a run that is killed right after creating it leaves it without an order.
    """
    if description.sort_by and (existing is None or existing.head_snapshot_id() is None):
        with effect(Effect.ORDER_TARGET):
            order_table(session, catalog, table, description.sort_by)


def _texts(existing: TableMetadata | None, known: Progress | None, table: AssetTable) -> dict[str, str]:
    """Table properties that record the query or the plan of the run's code; empty if they do, or it has neither."""
    properties, code = existing.properties if existing else {}, table.code
    match table.write_mode:
        case ByQuery(text):
            name = QUERIES
        case Combine() if table.plan is not None:
            name, text = PLANS, table.plan.summary
        case _:
            return {}
    if code is None or code in texts_in(name, properties):
        return {}
    return texts_property(name, properties, code, text, of_rows=codes_of(known))


def _rows_of(divided: PartitionKeys, keys: Collection[str], target: TableMetadata) -> Predicate:
    """A condition on the target for the rows of the partitions ``keys``."""
    return divided.predicate(keys, column_kinds(target, divided.columns))
