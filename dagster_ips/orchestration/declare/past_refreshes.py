"""What earlier runs of a ``sql_asset`` did, and how long they took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from dagster_ips.orchestration.declare.maintained_rows import REFRESH
from dagster_ips.orchestration.declare.run_numbers import PUBLISHED, WRITE_SECONDS
from dagster_ips.query.maintenance_plan import Strategy
from dagster_ips.query.refresh_choice import PastRefresh

ROWS = "refresh, rows of sources"
SHARE = "refresh, shares of rows that changed, added up over its sources"
SHARE_OF_KEYS = "refresh, share of keys that are affected, at least"
MOST_SHARE = "refresh, share from which a full refresh is assumed to be cheaper"
CODE_VERSION_TAG = "dagster/code_version"
_MOST = 20
"""Older runs don't count, so a strategy that was slow once is tried again."""


def past_refreshes(instance: dg.DagsterInstance, key: dg.AssetKey, code_version: str | None) -> list[PastRefresh]:
    """The newest runs of this ``code_version``, without those whose metadata doesn't say what they did.

    Nor those that wrote nothing, because rewritten files had the same rows: what they chose took no time.
    """
    found = []
    for record in instance.fetch_materializations(key, limit=_MOST).records:
        made = record.asset_materialization
        if made is not None and (made.tags or {}).get(CODE_VERSION_TAG) == code_version:
            told = _told(made.metadata)
            found += [told] if told else []
    return found


def _told(metadata: Mapping[str, Any]) -> PastRefresh | None:
    values = {name: getattr(each, "value", None) for name, each in metadata.items()}
    strategy, share, rows, seconds = (values.get(name) for name in (REFRESH, SHARE, ROWS, WRITE_SECONDS))
    numbers = [value for value in (share, rows, seconds) if isinstance(value, int | float)]
    is_told = len(numbers) == len((SHARE, ROWS, WRITE_SECONDS)) and PUBLISHED in values
    if strategy not in set(Strategy) or not is_told:
        return None
    return PastRefresh(Strategy(strategy), numbers[0], int(numbers[1]), numbers[2])
