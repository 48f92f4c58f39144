"""Columns of which Iceberg (1.11, 1.12) takes conditions to mean something else than Spark does.

Spark leaves it to Iceberg which rows match where partitions decide it, and which files can match at all. To Iceberg,
``x <> 'a'`` holds for a null, NaN isn't above any number, -0.0 is less than 0.0, UUIDs are ordered as signed numbers,
and a column is null in rows from before it even if it has a default for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dagster_ips.core.columns import Path
from dagster_ips.core.ranges import quoted

ANY_TYPE = "element_at(array({0}), 1)"
_MOST_READ_APART = 3
"""By how many columns rows with null are read apart; each doubles the number of scans."""
_HIDING = {"float": "nanvl({0}, {0})", "double": "nanvl({0}, {0})", "uuid": ANY_TYPE}


def hiding(kind: str) -> str | None:
    """How a column of the type is written in SQL so that Iceberg doesn't look at it; None if it may look.

    It is the same value. For numbers, this takes a tenth of the time of an array.
    """
    return _HIDING.get(kind)


@dataclass(frozen=True, slots=True)
class MisreadColumns:
    """The misread columns of some rows of a table, and fields of its structs, each as the names that lead to it.

    ``hidden`` maps those that any condition may misread to the SQL that hides them from Iceberg, with ``{0}`` in place
    of the column. ``null_in_partitions`` are those by which a partition has null: conditions are right for all other
    rows. Each is mapped to its type in SQL.
    """

    hidden: Mapping[Path, str] = field(default_factory=dict)
    null_in_partitions: Mapping[Path, str] = field(default_factory=dict)

    def hiding_also(self, hidden: Mapping[Path, str]) -> MisreadColumns:
        """A copy that hides more columns."""
        nulls = {path: kind for path, kind in self.null_in_partitions.items() if path not in hidden}
        return MisreadColumns({**self.hidden, **hidden}, nulls)

    @property
    def are_any(self) -> bool:
        """Whether there are any."""
        return bool(self.hidden or self.null_in_partitions)

    @property
    def to_hide(self) -> dict[Path, str]:
        """``hidden``, and what would divide the rows into too many parts."""
        return {**self.hidden, **dict.fromkeys(list(self.null_in_partitions)[_MOST_READ_APART:], ANY_TYPE)}

    @property
    def parts(self) -> list[tuple[str, dict[str, str]]]:
        """Conditions that divide the rows by where partitions have null, each with the columns that are null there.

        These are mapped to SQL that is null, too. Without such partitions, it is one empty condition.
        """
        found = [("", dict[str, str]())]
        for path, kind in list(self.null_in_partitions.items())[:_MOST_READ_APART]:
            name = dotted(path)
            null = f"CAST(NULL AS {kind})" if len(path) == 1 else ANY_TYPE.format(quoted(path[0]))
            halves = [(f"{name} IS NOT NULL", dict[str, str]()), (f"{name} IS NULL", {path[0]: null})]
            found = [
                (f"{condition} AND {half}" if condition else half, {**nulls, **more})
                for condition, nulls in found
                for half, more in halves
            ]
        return found


def dotted(path: Path) -> str:
    """The column, or field of a struct, in SQL."""
    return ".".join(map(quoted, path))
