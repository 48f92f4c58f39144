"""How many metadata files looks and captures open: as many as what changed needs, however large the table is."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from dagster_ips.core.valid_through import EventTime
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.partition_captures import RunPartitions
from dagster_ips.exactly_once.capture.run_completeness import Completion
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.iceberg.storage import Storage
from tests.exactly_once.capture.test_unknown_partitions import BY_DAY, DAYS, TABLE, TARGET, Plays, PlaysByDay, days_ago

YESTERDAY = str(days_ago(1))


@pytest.fixture
def plays(tmp_path: Path) -> Iterator[Plays]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Plays(tmp_path, instance)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The manifests that were read, each as often as it was."""
    found: list[str] = []
    original = Storage._content

    def reading(self: Storage, location: str, table: str) -> bytes:
        if location.endswith(".avro") and "/snap-" not in location:
            found.append(location)
        return original(self, location, table)

    monkeypatch.setattr(Storage, "_content", reading)
    return found


@pytest.mark.parametrize("anew", [False, True], ids=["for the first time", "named by a person"])
def test_a_day_that_is_computed_as_a_whole_opens_no_manifest_of_other_days(
    plays: Plays, read: list[str], *, anew: bool
) -> None:
    plays.create(BY_DAY)
    for _ in range(5):
        plays.append([{"day": days_ago(3)}, {"day": days_ago(2)}])
    plays.follow(DAYS, "day")
    plays.append([{"day": days_ago(1)}])
    assert plays.pending(DAYS, "day") == {YESTERDAY}
    read.clear()
    assert plays.run(DAYS, "day", YESTERDAY, anew=anew) == 1
    assert len(set(read)) == 1


@pytest.mark.parametrize("days", [(1, 2), (2,)], ids=["all", "some"])
def test_a_manifest_of_which_all_rows_are_wanted_is_taken_as_it_is(plays: Plays, days: tuple[int, ...]) -> None:
    plays.create(BY_DAY)
    plays.append([{"day": days_ago(1)}, {"day": days_ago(2)}])
    plays.append([{"day": days_ago(2)}])
    (captured,) = Capturer(plays.lake, plays.store).capture(
        CaptureRequest(
            "out",
            [plays.tracked(DAYS, "day")],
            target=TARGET,
            partitions=RunPartitions(tuple(str(days_ago(each)) for each in days)),
        ),
        run_id="run",
    )
    files = captured.files
    assert (len(files.changes.added), len(files.whole), len(files.fresh)) == ((3, 2, 0) if len(days) > 1 else (2, 1, 1))
    taken = plays.lake.client.load_table(captured.capture.icdc_table).scan().to_arrow()["day"].to_pylist()
    assert sorted(taken, reverse=True) == [days_ago(each) for each in (1, 2, 2) if each in days]


def test_a_step_reads_each_manifest_once(plays: Plays, read: list[str]) -> None:
    plays.create(BY_DAY)
    plays.append([{"day": days_ago(2)}])
    plays.append([{"day": days_ago(1)}])
    lake, partitions = plays.lake.reading_once(), RunPartitions((YESTERDAY, str(days_ago(2))))
    request = CaptureRequest("out", [plays.tracked(DAYS, "day")], target=TARGET, partitions=partitions)
    Capturer(lake, plays.store).capture(request, run_id="run")
    assert len(read) == len(set(read)) == 2
    Capturer(plays.lake.reading_once(), plays.store).capture(request, run_id="again")
    assert len(read) == 4


def test_up_to_when_an_input_is_complete_is_looked_up_once_if_all_of_it_is_consumed(
    plays: Plays, read: list[str]
) -> None:
    plays.create(BY_DAY)
    plays.append([{"day": days_ago(1)}])
    tracked = TrackedInput("plays", TABLE, event_time=EventTime("day"))
    captured = Capturer(plays.lake, plays.store).capture(CaptureRequest("out", [tracked], target=TARGET), run_id="run")
    read.clear()
    complete = Completion(plays.lake.storage).after(captured)
    assert complete == dt.datetime.combine(days_ago(1), dt.time(), dt.UTC)
    assert len(read) == 1


def test_a_mapped_day_opens_only_the_manifests_of_the_days_that_it_takes(read: list[str], tmp_path: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        plays = PlaysByDay(tmp_path, instance)
        plays.mapping = dg.TimeWindowPartitionMapping(start_offset=-1, allow_nonexistent_upstream_partitions=True)
        plays.create(BY_DAY)
        for days in (3, 3, 2, 1):
            plays.append([{"day": days_ago(days)}])
        plays.follow(DAYS, "day")
        read.clear()
        assert plays.run(DAYS, "day", YESTERDAY, anew=True) == 2
        assert len(set(read)) == 2
