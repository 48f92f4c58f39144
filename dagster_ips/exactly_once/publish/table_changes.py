"""What a run changes of a table before it writes to it, and how it takes that back if it fails."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagster_ips.core.columns import Added, Fit, Widened, fit
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.exactly_once.publish.publisher import is_empty_root
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import RUN
from dagster_ips.spark.targets import drop_columns, drop_table, set_properties, unset_properties

if TYPE_CHECKING:
    from dagster_ips.spark.session import SparkSession


@dataclass
class TableChanges:
    """A run's changes of ``table`` itself, which everyone sees, before it writes to a branch of it.

    ``before`` is the table as it was; None if the run creates it.
    """

    catalog: LakeCatalog
    session: SparkSession
    table: str
    before: TableMetadata | None
    _followed: TableMetadata | None = field(default=None, init=False)
    _columns: list[Added | Widened] = field(default_factory=list, init=False)
    _properties: set[str] = field(default_factory=set, init=False)

    def will_follow(self, target: TableMetadata, columns: Fit) -> None:
        """Remember that ``target``, as the table is now, gets other ``columns``."""
        self._followed = self._followed or target
        self._columns += [*columns.added, *columns.widened]

    def will_set(self, *properties: str) -> None:
        """Remember that these properties get other values."""
        self._properties |= {*properties}

    @contextlib.contextmanager
    def taken_back_on_error(self) -> Iterator[None]:
        """Around all that the run does to the table: an error leaves it as it was, or says in a note what stays.

        Nothing is taken back once the table has newer snapshots, whose rows may need it.
        """
        try:
            yield
        except Exception as error:
            try:
                stays = self._take_back()
            except Exception as problem:  # noqa: BLE001  # the run's own error is the one to be raised
                stays = f"what the run changed before it wrote couldn't be undone ({type(problem).__name__})"
            if stays:
                error.add_note(f"{self.table} isn't as it was: {stays}.")
            raise

    def _take_back(self) -> str | None:
        """Undo the changes; return what stays, and why."""
        before, now = self.before, self.catalog.on_branch(None).find(self.table)
        if now is None or (before is not None and self._is_same(before, now)):
            return None
        heads = [now.head_snapshot_id(ref) for ref in ("main", *now.branches, *now.tags)]
        is_new = any(head is not None and (before is None or head not in before.snapshots) for head in heads)
        if is_new and not (before is None and _has_only_a_root(now)):
            return "it has newer snapshots, so what the run changed of it before it wrote stays"
        with effect(Effect.ALTER_TARGET):
            if before is None:
                drop_table(self.session, self.catalog.name, self.table)
                return None
            self._take_properties_back(before)
            return self._take_columns_back(self._followed or before, now)

    def _is_same(self, before: TableMetadata, now: TableMetadata) -> bool:
        has_same = all(before.properties.get(key) == now.properties.get(key) for key in self._properties)
        return has_same and before.current_schema_id == now.current_schema_id

    def _take_columns_back(self, before: TableMetadata, now: TableMetadata) -> str | None:
        new = fit(before.struct, now.struct, is_case_sensitive=True)
        own = {each.path for each in self._columns}
        if not {each.path for each in new.added} <= own or now.columns_of_other_meaning(before.current_schema_id) != ():
            return "someone else changed columns, too, so those that the run added stay"
        if new.added:
            drop_columns(self.session, self.catalog.name, self.table, [each.path for each in new.added])
        wider = ", ".join(".".join(each.path) for each in new.widened)
        return f"{wider} keeps the wider type, in which every value is the same" if wider else None

    def _take_properties_back(self, before: TableMetadata) -> None:
        old = {key: before.properties[key] for key in self._properties if key in before.properties}
        new = self._properties - old.keys()
        if old:
            set_properties(self.session, self.catalog.name, self.table, old)
        if new:
            unset_properties(self.session, self.catalog.name, self.table, new)


def _has_only_a_root(table: TableMetadata) -> bool:
    """Whether its only snapshot is the empty one by which a run's branch was created, and ``main`` is there.

    It is if the catalog doesn't keep branches.
    """
    head = table.ancestry().head
    is_alone = head is not None and set(table.snapshots) == {head.snapshot_id} and table.branches in ((), ("main",))
    return is_alone and head is not None and is_empty_root(head, None) and RUN not in head.summary
