"""Partitioned consumers: exactly the partitions that changed are computed, and their tables equal a full recompute."""

from __future__ import annotations

import dagster as dg

from tests.lake import Lake, events
from tests.partitioned import expected_day, expected_week, follow, key, partitioned
from tests.pipeline import expected_agg


def test_exactly_the_changed_partitions_run_stage_after_stage(lake: Lake, instance: dg.DagsterInstance) -> None:
    definitions = partitioned(lake.folder, lake.spark_folder)
    rows = [event for d in range(10) for event in events(range(d * 10, d * 10 + 10), day=d)]
    lake.create_playback(rows)

    assert follow(definitions, instance) == [
        ("day", key(0), key(9)),
        ("day_agg", key(0), key(9)),
        ("week", "2025-12-28", "2026-01-04"),
    ]

    late = events(range(100, 103), day=2) + events(range(103, 105), day=3) + events(range(105, 107), day=8)
    lake.append(late)
    assert follow(definitions, instance) == [
        ("day", key(2), key(3)),
        ("day", key(8), key(8)),
        ("day_agg", key(2), key(3)),
        ("day_agg", key(8), key(8)),
        ("week", "2025-12-28", "2026-01-04"),
    ]

    assert follow(definitions, instance) == []
    assert lake.rows("media.day") == expected_day(rows + late)
    assert lake.rows("media.day_agg") == expected_agg(rows + late)
    assert lake.rows("media.week") == expected_week(rows + late)
