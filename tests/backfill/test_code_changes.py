"""Before a backfill of edited code is launched, its plan says what differs from the code that made the rows."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner

import dagster_ips as ips
from dagster_ips.cli.main import main
from tests.backfill.three_stages import ThreeStages
from tests.support.lake import Lake, events
from tests.support.pipeline import materialize, pipeline

QUERY = "SELECT account, sum(seconds) AS seconds FROM playback WHERE account <> '$ {not} ''a''' GROUP BY account"
WIDER = QUERY.replace("sum(", "max(seconds) AS longest, sum(").replace("GROUP", "AND seconds > 0 GROUP")


def by_query(lake_folder: Path, spark_folder: Path, text: str) -> dg.Definitions:
    return pipeline(lake_folder, spark_folder, ips.sql_asset("sums", text, table="media.sums"))


def planned(lake: Lake, folder: Path, text: str) -> tuple[list[str], str]:
    """What the plan of a backfill with the query ``text`` says of it: as data, and to people."""
    file = folder / f"definitions_of_{zlib.crc32(text.encode())}.py"  # Python keeps a module by its name
    file.write_text(
        "from pathlib import Path\n\nfrom tests.backfill.test_code_changes import by_query\n\n"
        f"defs = by_query(Path({str(lake.folder)!r}), Path({str(lake.spark_folder)!r}), {text!r})\n"
    )
    results = [
        CliRunner().invoke(main, ["backfill", "plan", "-f", str(file), "sums", *more], catch_exceptions=False)
        for more in (["--json"], [])
    ]
    assert [result.exit_code for result in results] == [0, 0], results[0].output
    return json.loads(results[0].stdout)["stages"][0]["code_changes"], results[1].stdout


@pytest.mark.slow
def test_a_plan_says_what_a_new_query_does_differently_although_all_older_snapshots_have_expired(
    lake: Lake, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", instance.root_directory)
    lake.create_playback(events(range(3)))
    assert planned(lake, tmp_path, QUERY)[0] == []
    materialize(by_query(lake.folder, lake.spark_folder, QUERY), instance, "sums")
    lake.append(events([3]))
    materialize(by_query(lake.folder, lake.spark_folder, QUERY), instance, "sums")
    lake.sql("CALL lake.system.expire_snapshots('media.sums', TIMESTAMP '2100-01-01 00:00:00', 1)")
    assert planned(lake, tmp_path, QUERY)[0] == []
    changes, text = planned(lake, tmp_path, WIDER)
    assert changes == [
        "in its query, column longest is new: MAX(seconds)",
        "in its query, only rows with seconds > 0 are left",
        "all rows are computed, because a query's table has no partitions in Dagster",
    ]
    assert "sums: in its query, only rows with seconds > 0 are left." in text
    materialize(by_query(lake.folder, lake.spark_folder, WIDER), instance, "sums")
    assert planned(lake, tmp_path, WIDER)[0] == []
    assert planned(lake, tmp_path, QUERY)[0][0] == "in its query, column longest is gone"


def test_what_a_new_version_of_a_function_changes_is_said_to_be_unknown(stages: ThreeStages) -> None:
    stages.begin()
    assert stages.told("plan", "day", "--partition", "2026-01-03")["stages"][0]["code_changes"] == []
    stages.deploy(bug=False)
    plan = stages.told("plan", "day", "--partition", "2026-01-03")
    (change,) = plan["stages"][0]["code_changes"]
    assert "version buggy made rows that version fixed computes" in change
    assert "can't be read from a function" in change
    assert [stage["code_changes"] for stage in plan["stages"][1:]] == [[], []]
