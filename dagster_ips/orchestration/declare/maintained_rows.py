"""What the function of a ``sql_asset`` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_ips.core.write_mode import WriteMode

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame

REFRESH, WHY_NOT_BETTER = "refresh", "refresh, why not better"
"""Metadata of a run: the strategy that it used, and why not a better one."""
IS_BEST = "this is the best strategy"
"""Why not, if there is none."""


@dataclass(frozen=True)
class MaintainedRows:
    """Rows that bring a table up to date if they are written in this mode, as its query's plan determined.

    ``affected`` are the distinct keys to replace, if the mode replaces by keys. ``may_cancel`` is as in ``Change``.
    ``is_due`` says that existing rows may differ from them although no row of a source changed.
    """

    frame: DataFrame
    write_mode: WriteMode
    affected: DataFrame | None = None
    may_cancel: bool = False
    is_due: bool = False
