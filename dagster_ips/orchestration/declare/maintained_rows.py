"""What the function of an asset that is declared by its query returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_ips.core.write_mode import WriteMode

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame


@dataclass(frozen=True)
class MaintainedRows:
    """Rows that bring a table up to date if they are written in this mode, by the plan of its query.

    ``affected`` are the distinct keys to replace, if it is by keys.
    """

    frame: DataFrame
    write_mode: WriteMode
    affected: DataFrame | None = None
