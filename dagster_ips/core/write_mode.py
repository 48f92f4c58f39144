"""How a result becomes part of its target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dagster_ips.core.aggregates import EXTREMES, Aggregate, ComputedColumn, Layout, layout_of, signature
from dagster_ips.core.sql_condition import mentions


class WritesRows:
    """What other code asks of any write mode. A new mode overrides what differs; no caller needs to know it by name."""

    __slots__ = ()

    @property
    def declaration(self) -> str:
        """The declaration as text; two differ if one can't continue with rows that the other has written.

        The code, and the signature of a combine() or a query, are compared separately (``code_of``).
        """
        return ""

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that tell rows apart; empty if none do."""
        return ()

    @property
    def adds_up(self) -> bool:
        """Whether rows computed from some of a change's files stay valid once the other files are consumed."""
        return False

    @property
    def may_repeat(self) -> bool:
        """Whether a change may be written a second time without duplicating rows."""
        return True

    @property
    def changes_rows_within_files(self) -> bool:
        """Whether single rows of large files change, so that delete files are cheaper than rewritten files."""
        return False

    def columns_needed(self, partition_columns: Sequence[str]) -> tuple[str, ...]:  # noqa: ARG002  # overwrites need it
        """The columns that a frame must have, whatever its inputs are."""
        return self.keys

    def finds_rows_by(self, column: str) -> bool:
        """Whether the value of ``column`` decides which rows of the target are replaced, updated or left out."""
        return column.lower() in {name.lower() for name in self.columns_needed(())}


@dataclass(frozen=True, slots=True)
class Append(WritesRows):
    """Add rows; with ``dedup_on``, leave out those whose key is already there.

    With ``remove_on``, rows that were removed upstream are deleted by that key.
    """

    dedup_on: tuple[str, ...] = ()
    remove_on: tuple[str, ...] = ()
    adds_up = True  # each row is computed from rows of one file
    may_repeat = False  # rows would be there twice

    @property
    def declaration(self) -> str:
        """With both keys."""
        return _called("append", dedup_on=self.dedup_on, remove_on=self.remove_on)

    @property
    def keys(self) -> tuple[str, ...]:
        """The key of which no value is added twice, or else the key by which removed rows are found."""
        return self.dedup_on or self.remove_on

    def columns_needed(self, partition_columns: Sequence[str]) -> tuple[str, ...]:  # noqa: ARG002  # as above
        """Both keys."""
        return (*self.dedup_on, *self.remove_on)


@dataclass(frozen=True, slots=True)
class Merge(WritesRows):
    """Update rows that differ and insert new ones, by the key ``on``."""

    on: tuple[str, ...]
    latest_by: str | None = None
    adds_up = True  # as in Append
    changes_rows_within_files = True  # rows are updated

    @property
    def declaration(self) -> str:
        """With the key, and what decides which row of a key wins."""
        return _called("merge", on=self.on, latest_by=self.latest_by)

    @property
    def keys(self) -> tuple[str, ...]:
        """The merge key."""
        return self.on

    def columns_needed(self, partition_columns: Sequence[str]) -> tuple[str, ...]:  # noqa: ARG002  # as above
        """The key, and what decides which row of a key wins."""
        return (*self.on, self.latest_by) if self.latest_by else self.on


@dataclass(frozen=True, slots=True)
class Combine(WritesRows):
    """Add the change's aggregates to the stored ones, by the key ``on``; without a key, to those of all rows.

    ``approximate`` allows floating-point sums, which depend on the order in which values come and go.
    ``keeps_partials`` says that a change's aggregates are appended to the stored ones, and all are folded when the
    table is read. ``computed`` columns are recomputed from keys and aggregates whenever these change.
    """

    on: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    approximate: bool = False
    keeps_partials: bool = False
    computed: tuple[ComputedColumn, ...] = ()
    may_repeat = False  # a change would count twice

    @property
    def declaration(self) -> str:
        """Without the aggregates, which are in its signature."""
        return _called("combine", on=self.on)

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that the rows of a group have in common."""
        return self.on

    @property
    def adds_up(self) -> bool:
        """Not if groups may be recomputed, because this also needs rows of other files."""
        return not self.may_compute_groups_again

    @property
    def changes_rows_within_files(self) -> bool:
        """Groups are updated, unless parts of them are only appended."""
        return not self.keeps_partials

    def finds_rows_by(self, column: str) -> bool:  # noqa: ARG002  # it is true of any column
        """True for any column: a new aggregate lacks the rows from before it."""
        return True

    @property
    def layout(self) -> Layout:
        """The columns that the table keeps."""
        return layout_of(self.aggregates, is_partial=self.keeps_partials)

    @property
    def may_compute_groups_again(self) -> bool:
        """Whether a removed row may leave a group whose value is only known from its live rows."""
        return self.approximate or any(kept.part in EXTREMES for kept in self.layout.columns)

    @property
    def signature(self) -> str:
        """The declaration as text; two differ if one can't add to a table that the other has written."""
        return signature(self.on, self.aggregates) + (" in partials" if self.keeps_partials else "")


@dataclass(frozen=True, slots=True)
class OverwritePartitions(WritesRows):
    """Replace exactly the affected partitions."""

    declaration = "overwrite_partitions()"

    def columns_needed(self, partition_columns: Sequence[str]) -> tuple[str, ...]:
        """The columns that decide to which partition a row belongs."""
        return tuple(partition_columns)


@dataclass(frozen=True, slots=True)
class OverwriteWhere(WritesRows):
    """Replace exactly the rows that match a SQL condition."""

    where: str

    def finds_rows_by(self, column: str) -> bool:
        """Whether the condition names it."""
        return any(mentions(self.where, [column]))


@dataclass(frozen=True, slots=True)
class ReplaceKeys(WritesRows):
    """Replace the rows of affected keys, by the columns ``on``; the keys are given together with the new rows."""

    on: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns by which rows are replaced; several rows may have the same key."""
        return self.on

    def finds_rows_by(self, column: str) -> bool:  # noqa: ARG002  # it is false of any column
        """False for any column: existing rows have null in a new one, and so have their affected keys.

        Example:
            >>> ReplaceKeys(("day", "plan")).finds_rows_by("plan"), Merge(("day", "plan")).finds_rows_by("plan")
            (False, True)
        """
        return False


@dataclass(frozen=True, slots=True)
class ByQuery(WritesRows):
    """Each run chooses one of the other modes, as is best for the query ``text``.

    Two signatures differ if one query can't continue with rows that the other has written. ``upstreams`` are the assets
    of the tables that the query reads, in its order.
    """

    text: str
    signature: str
    upstreams: tuple[str, ...]
    declaration = "a query"  # without the text, which is in its signature
    may_repeat = False  # rows may be appended or added to groups
    changes_rows_within_files = True  # groups may be updated, and rows of affected keys replaced


@dataclass(frozen=True, slots=True)
class Replace(WritesRows):
    """Replace all rows."""

    declaration = "replace()"


WriteMode: TypeAlias = Append | Merge | Combine | OverwritePartitions | OverwriteWhere | ReplaceKeys | ByQuery | Replace


def _called(function: str, **columns: tuple[str, ...] | str | None) -> str:
    """A declaration as text, without what isn't given."""
    given = [f"{name}={list(of) if isinstance(of, tuple) else repr(of)}" for name, of in columns.items() if of]
    return f"{function}({', '.join(given)})"


def may_repeat(write_mode: WriteMode | None) -> bool:
    """Whether a change may be written twice without duplicating rows; None is a mode that an Overwrite chooses.

    Example:
        >>> may_repeat(Merge(on=("account",))), may_repeat(Append())
        (True, False)
    """
    return write_mode is None or write_mode.may_repeat
