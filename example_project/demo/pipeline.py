"""What the pipeline has done, from Dagster's event log and the tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
from dagster import DagsterRunStatus

from example_project.lake import open_catalog

STAGES = {"playback_daily": "playback", "playback_daily_agg": "playback_daily"}
BY_QUERY = {"plays_per_genre": ("playback_daily", "title")}
MORE = {
    "playback_weekly": ("playback_daily_agg",),
    "account_running_total": ("playback_daily", "account_plan"),
    "title_median": ("playback_daily",),
    "by_title": ("playback_daily",),
    **BY_QUERY,
}
REPORT = "daily_report"
AUTOMATION_SENSOR = "ips_automation"


@dataclass(frozen=True)
class Materialization:
    """What a run says it captured for some partitions of a stage, and when its step ran (seconds since the epoch)."""

    asset: str
    run_id: str
    partitions: frozenset[str]
    mode: str
    rows_captured: int
    from_snapshot: str
    to_snapshot: str
    published_snapshot: str | None
    start: float
    end: float


class Pipeline:
    """Reads the demo's Dagster instance and lake; changes nothing.

    ``more`` are the tables other than the two stages and the report, with their upstreams.
    """

    def __init__(self, home: Path, lake: Path, more: Mapping[str, tuple[str, ...]] = MORE) -> None:
        self._more = dict(more)
        self._instance = dg.DagsterInstance.from_config(str(home))
        self._lake = lake

    def materializations(self, stage: str) -> list[Materialization]:
        """The materializations of ``stage``, oldest first; one per run, as it reports the same for all partitions."""
        fetched = self._instance.fetch_materializations(dg.AssetKey(stage), limit=1000)
        by_run: dict[str, list[dg.EventLogRecord]] = {}
        for record in fetched.records:
            by_run.setdefault(record.run_id, []).append(record)
        return [self._parse(stage, records) for records in reversed(by_run.values())]

    def is_caught_up(self) -> bool:
        """Whether every stage has consumed its upstreams' heads, and the report was computed from the result."""
        upstreams = {stage: (upstream,) for stage, upstream in STAGES.items()} | self._more
        if any(self.head(name) not in self.consumed(s, name) for s, names in upstreams.items() for name in names):
            return False
        if not all(self._has_nothing_pending(stage) for stage in upstreams):
            return False
        newest = self._instance.fetch_materializations(dg.AssetKey(REPORT), limit=1).records
        made_from = self.materializations("playback_daily_agg")[-1]
        return bool(newest) and newest[0].timestamp > made_from.end and not self._is_busy()

    def consumed(self, stage: str, upstream: str) -> list[int]:
        """The snapshots up to which runs of ``stage`` consumed ``upstream``, newest run first."""
        records = self._instance.fetch_materializations(dg.AssetKey(stage), limit=1000).records
        made = [record.asset_materialization for record in records if record.asset_materialization is not None]
        shown = [str(each.metadata[f"{upstream}: to snapshot, inclusive"].value) for each in made]
        return [int(snapshot) for snapshot in shown if snapshot.isdigit()]

    def _has_nothing_pending(self, stage: str) -> bool:
        """Whether nothing is pending, by the asset's check, which a sensor keeps up to date."""
        newest = self._instance.get_latest_asset_check_evaluation_record(
            dg.AssetCheckKey(dg.AssetKey(stage), "pending")
        )
        evaluation = newest.event.asset_check_evaluation if newest and newest.event else None
        return evaluation is not None and evaluation.passed

    def head(self, table: str) -> int | None:
        """The current snapshot of ``media.<table>``; None if there is no such table or it has none."""
        catalog = open_catalog(self._lake)
        if not catalog.table_exists(f"media.{table}"):
            return None
        snapshot = catalog.load_table(f"media.{table}").current_snapshot()
        return snapshot.snapshot_id if snapshot else None

    def total_records(self, table: str) -> int:
        """Rows in ``media.<table>``, as its newest snapshot counts them."""
        snapshot = open_catalog(self._lake).load_table(f"media.{table}").current_snapshot()
        properties = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
        return int(properties.get("total-records", 0))

    def failures(self) -> list[str]:
        """Runs that failed, and why."""
        filters = dg.RunsFilter(statuses=[DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED])
        return [self._describe(record.dagster_run.run_id) for record in self._instance.get_run_records(filters)]

    def runs_not_by_sensor(self) -> list[str]:
        """Runs that weren't launched by the automation sensor."""
        records = self._instance.get_run_records()
        return [
            r.dagster_run.run_id for r in records if r.dagster_run.tags.get("dagster/sensor_name") != AUTOMATION_SENSOR
        ]

    def run_count(self) -> int:
        """How many runs there have been."""
        return self._instance.get_runs_count()

    def newest_event(self) -> int | None:
        """The number of the newest event in Dagster's log, which changes whenever anything happens."""
        return self._instance.event_log_storage.get_maximum_record_id()

    def current_step(self) -> str:
        """What is running now, for the progress line."""
        records = self._instance.get_run_records(dg.RunsFilter(statuses=[DagsterRunStatus.STARTED]))
        keys = [key.to_user_string() for r in records for key in (r.dagster_run.asset_selection or ())]
        return f"Dagster is running {', '.join(sorted(keys))}" if keys else "waiting for the sensor's next tick"

    def _is_busy(self) -> bool:
        going = (DagsterRunStatus.QUEUED, DagsterRunStatus.STARTING, DagsterRunStatus.STARTED)
        return bool(self._instance.get_runs_count(dg.RunsFilter(statuses=list(going))))

    def _describe(self, run_id: str) -> str:
        logs = self._instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
        causes = [str(entry.dagster_event.event_specific_data) for entry in logs if entry.dagster_event]
        return f"run {run_id}: {causes[0][:1500] if causes else 'no step failed'}"

    def _parse(self, stage: str, records: Sequence[dg.EventLogRecord]) -> Materialization:
        record = records[-1]
        event = record.asset_materialization
        if event is None:
            message = f"record {record.storage_id} of {stage} isn't a materialization"
            raise ValueError(message)
        shown: Mapping[str, dg.MetadataValue] = event.metadata
        (step,) = self._instance.get_run_step_stats(record.run_id, [stage])
        upstream = STAGES[stage]
        published = shown.get("published snapshot")
        return Materialization(
            asset=stage,
            run_id=record.run_id,
            partitions=frozenset(each.partition_key for each in records if each.partition_key is not None),
            mode=str(shown["mode"].value),
            rows_captured=int(str((shown.get("whole run: rows captured") or shown["rows captured"]).value)),
            from_snapshot=str(shown[f"{upstream}: from snapshot, exclusive"].value),
            to_snapshot=str(shown[f"{upstream}: to snapshot, inclusive"].value),
            published_snapshot=str(published.value) if published else None,
            start=step.start_time or record.timestamp,
            end=step.end_time or record.timestamp,
        )
