"""A partition that fails does not hold up the others, and is retried a bounded number of times."""

from __future__ import annotations

import dagster as dg
import pytest
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.core import retry
from dagster_ips.orchestration.watch.pending_checks import PENDING_SENSOR
from tests.support.lake import Lake, events
from tests.support.partitioned import DAYS, expected_day, key, partitioned
from tests.support.ticks import tick

BAD = key(3)


@dg.asset(
    partitions_def=DAYS,
    ins={"playback": ips.incremental()},
    metadata=ips.append() | ips.table("media.fussy", partition_by=["event_date"]) | {"partition_expr": "event_date"},
)
def fussy(playback: ips.IcdcView) -> DataFrame:
    if BAD in dg.AssetExecutionContext.get().partition_keys:
        message = f"it can't compute {BAD}"
        raise ValueError(message)
    return playback.added.selectExpr("*", "seconds div 60 AS minutes")


def follow(
    definitions: dg.Definitions, instance: dg.DagsterInstance, cursor: str | None
) -> tuple[list[str], str | None]:
    """Run ``fussy`` until no more runs are requested: the partitions of each run, and the cursor."""
    job, runs = definitions.resolve_implicit_global_asset_job_def(), []
    while True:
        data = tick(definitions, instance, cursor=cursor)
        cursor = data.cursor
        requests = [each for each in data.run_requests or () if fussy.key in (each.asset_selection or ())]
        if not requests:
            return runs, cursor
        for request in requests:
            tags = dict(request.tags)
            ends = [tags.get(f"dagster/asset_partition_range_{end}") for end in ("start", "end")]
            runs.append("...".join(end or "" for end in ends) if any(ends) else request.partition_key or "")
            job.execute_in_process(
                instance=instance,
                asset_selection=[fussy.key],
                partition_key=request.partition_key,
                tags={**tags, "dagster/sensor_name": "ips_automation"},
                raise_on_error=False,
            )


def test_the_pending_check_names_partitions_whose_last_run_failed_as_long_as_they_wait(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = partitioned(lake.folder, lake.spark_folder, fussy)
    lake.create_playback([*events(range(3), day=2), *events(range(3, 6), day=3)])
    job = definitions.resolve_implicit_global_asset_job_def()

    def said(*tags: tuple[str, str]) -> dg.AssetCheckEvaluation:
        for each in tags:
            ends = zip(("start", "end"), each, strict=True)
            job.execute_in_process(
                instance=instance,
                asset_selection=[fussy.key],
                tags={f"dagster/asset_partition_range_{end}": key for end, key in ends},
                raise_on_error=False,
            )
        found = tick(definitions, instance, PENDING_SENSOR).asset_events
        (check,) = [each for each in found if each.asset_key == fussy.key]
        assert isinstance(check, dg.AssetCheckEvaluation)
        return check

    assert "failed" not in said().metadata
    check = said((key(2), BAD))
    assert f"The last run of these partitions failed: {key(2)} (run " in str(check.description)
    assert f"[{BAD}](/runs/" in str(check.metadata["failed"].value)
    check = said((key(2), key(2)))
    assert f"failed: {BAD} (run " in str(check.description)


@pytest.mark.slow
def test_other_partitions_continue_and_the_failing_one_waits_until_its_own_rows_change(
    lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "_FIRST_WAIT_SECONDS", 0.0)
    definitions = partitioned(lake.folder, lake.spark_folder, fussy)
    rows = [row for number in range(6) for row in events(range(10 * number, 10 * number + 3), day=number)]
    lake.create_playback(rows)
    runs, cursor = follow(definitions, instance, None)
    range_of = f"{key(0)}...{key(5)}"
    assert runs[:4] == [range_of, f"{key(0)}...{key(1)}", f"{key(2)}...{key(3)}", f"{key(4)}...{key(5)}"]
    assert sorted(runs[4:]) == [key(2), BAD, BAD, BAD]
    assert lake.rows("media.fussy") == expected_day([row for row in rows if row[1].isoformat() != BAD])

    more = events(range(100, 103), day=1)
    lake.append(more)
    runs, cursor = follow(definitions, instance, cursor)
    assert runs == [key(1)]
    lake.append(events(range(110, 113), day=3))
    runs, cursor = follow(definitions, instance, cursor)
    assert runs == [BAD] * (retry.MOST_FAILURES - 1)  # the last failure with the old rows counts as the first
    assert lake.rows("media.fussy") == expected_day([row for row in rows + more if row[1].isoformat() != BAD])
