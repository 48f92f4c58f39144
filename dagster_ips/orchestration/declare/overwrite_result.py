"""What an asset function may return instead of a frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame


@dataclass(frozen=True)
class Overwrite:
    """Replace exactly the rows of the asset's table that match ``where`` with ``frame``, atomically.

    ``where`` is a condition on the table's columns: from the ``since`` and ``between`` of change ranges, or SQL text.
    In SQL text prefer ``=`` to ``IN``, which fails in Iceberg if a partition of a string column is null. Every row of
    ``frame`` must match it; null doesn't. A condition that matches nothing leaves the table unchanged. In mode ``full``
    every row is replaced, regardless of ``where``.

    Annotate the asset with ``-> Overwrite`` and declare no write mode: this is one. Build its frame on ``source`` of
    its incremental inputs, because their other frames hold only some of the rows behind the matching ones. If the
    condition names only identity partition columns of the table, whole files are replaced, which is cheapest.

    Example:
        >>> def account_running_total(daily: IcdcView, plans: IcdcView) -> Overwrite:
        ...     scope = (daily.range("event_date") | plans.range("valid_on")).since("event_date")
        ...     return Overwrite(totals(daily.source, plans.source).where(scope), where=scope)
    """

    frame: DataFrame
    where: str
