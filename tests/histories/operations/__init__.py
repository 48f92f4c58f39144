"""Everything that can happen to a table, each as a named function on a real one.

An operation's arguments are plain values that keep their meaning when earlier steps are left out: rows are numbers,
columns are named as they began, snapshots are counted. ``@operation`` says with which values to try it, and on which
format versions it exists.
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
):  # In this order they are drawn, so that a seed stays what it was.
    import_module(f"{__name__}.{_kind}")
