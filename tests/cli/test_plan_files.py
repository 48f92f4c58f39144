"""A plan that can't be saved as a file isn't lost. Planning needs no Spark."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

from click.testing import CliRunner

from dagster_ips.cli.main import main
from tests.cli.idle_lake import IdleLake


def test_a_plan_that_cannot_be_written_to_a_file_is_shown_and_can_be_launched_by_its_id(
    idle_lake: IdleLake, tmp_path: Path
) -> None:
    out = tmp_path / "missing" / "plan.json"
    result = CliRunner().invoke(main, ["backfill", "plan", "-f", str(idle_lake.file), "daily", "--out", str(out)])
    assert result.exit_code == 1
    plan = result.stdout.partition(",")[0].removeprefix("Plan ")
    assert f"dagster-ips backfill launch {plan}" in result.stdout
    assert f"The plan is stored as {plan}, but can't be written to {out}: No such file or directory." in result.stderr


def test_a_file_that_cannot_be_read_is_not_a_plan(idle_lake: IdleLake, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text("{}")
    with patch.object(Path, "read_text", side_effect=PermissionError(13, "Permission denied")):
        result = CliRunner().invoke(main, ["backfill", "launch", "-f", str(idle_lake.file), str(file)])
    assert result.exit_code == 1
    assert f"{file} can't be read as a backfill plan: [Errno 13] Permission denied" in result.stderr
