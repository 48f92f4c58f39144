"""Everything that can happen to a table, each as a named function on a real table.

An operation's arguments are plain values that keep their meaning when earlier steps are left out: rows are numbers,
columns have their first names, snapshots are counted. ``@operation`` gives the values to try, and the format versions
that have the operation.
"""

from importlib import import_module

from tests.histories.operations.operation import OPERATIONS, Operation, apply

__all__ = ["OPERATIONS", "Operation", "apply"]

for _kind in (
    "appends",
    "overwrites",
    "row_changes",
    "deletes_by_hand",
    "maintenance",
    "publications",
    "moves_of_main",
    "expiries",
    "schema_changes",
    "spec_changes",
    "new_tables",
):  # Operations are drawn in this order, so that a seed keeps its meaning.
    import_module(f"{__name__}.{_kind}")
