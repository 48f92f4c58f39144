"""An operation: a function on a table, and the arguments to try."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec

from hypothesis import strategies as st

from tests.histories.table import HistoryTable, NotNow
from tests.histories.values import COLUMNS, ROWS

P = ParamSpec("P")
Where = tuple[str, int] | None
"""A column (by its first name) and a row number: all rows with that row's value in the column. None is every row."""
MAIN = "main"


@dataclass(frozen=True)
class Operation:
    """A function on a table, the format versions that have it, and the arguments to try."""

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
    """Add a function to OPERATIONS. ``refused`` are texts of errors with which an engine refuses it on some tables."""

    def register(apply: Callable[Concatenate[HistoryTable, P], None]) -> Callable[Concatenate[HistoryTable, P], None]:
        chosen = st.fixed_dictionaries(arguments)
        OPERATIONS[apply.__name__] = Operation(apply, family, frozenset(versions), chosen, tuple(refused))
        return apply

    return register


def apply(table: HistoryTable, name: str, arguments: Mapping[str, Any]) -> None:
    """Do the operation.

    Raises:
        NotNow: the operation isn't possible on the table as it is; the table is unchanged.
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
