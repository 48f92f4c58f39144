"""What an asset function may return instead of a frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame


@dataclass(frozen=True)
class Overwrite:
    """Replace exactly the rows of the asset's table that match ``where`` by ``frame``, at once or not at all.

    ``where`` is a condition on the table's columns: what change ranges give by ``since`` and ``between``, or SQL text,
    in which ``IN`` is better said by ``=``: Iceberg fails on it where a partition of a string column is null. Every row
    of ``frame`` must match it; null doesn't. A condition that matches nothing leaves the table as it is. In mode
    ``full`` every row is replaced, whatever ``where`` says.

    The asset is annotated ``-> Overwrite`` and declares no write mode: this is one. Its frame is built on ``source`` of
    its incremental inputs, because their other frames hold only a part of what the matching rows are made of. Where
    the condition names only columns by which the table is partitioned, as they are, files are replaced as a whole,
    which is the cheapest.

    Example:
        >>> def account_running_total(daily: IcdcView, plans: IcdcView) -> Overwrite:
        ...     scope = (daily.range("event_date") | plans.range("valid_on")).since("event_date")
        ...     return Overwrite(totals(daily.source, plans.source).where(scope), where=scope)
    """

    frame: DataFrame
    where: str
