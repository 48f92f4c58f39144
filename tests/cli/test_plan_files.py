"""A plan that can't be saved as a file isn't lost. Planning needs no Spark."""

from __future__ import annotations

from pathlib import Path

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
