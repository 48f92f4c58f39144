"""A recommended command finds the same definitions as the command that recommends it."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from dagster_shared.cli import dg_workspace_options

from dagster_ips.cli.next_commands import with_workspace

TEXT = "Launched: dagster-ips backfill status abc --watch\nTo undo it:\n  dagster-ips cascade abc"
WITHIN = {
    "Plan again: dagster-ips backfill plan media.daily{}. If it changes": "a dot that ends the sentence",
    "First publish it (dagster-ips backfill publish abc{}) or drop it (dagster-ips backfill cancel abc{}).": "brackets",
    "Cancel it: dagster-ips backfill cancel abc{}, then plan.": "a comma",
    "Start over: dagster-ips reset 'a b' --upstream 'it'\"'\"'s; c' --why '...'{}. To recompute": "quotes",
    "declare incremental(start=5) and run dagster-ips reset daily --why '...'{}. To recompute": "run",
    "  dagster-ips icdc --drop ips.a_1{}": "a line",
    "Turn it on in the UI (Automation), or: dagster sensor start ips_automation{}": "a command of Dagster's",
    "Pass the id that dagster-ips capture printed.": "no command to run",
}


@click.command()
@click.argument("text", default=TEXT)
@click.option("--yes", is_flag=True)
@dg_workspace_options
def command(text: str, **_: object) -> None:
    click.echo(with_workspace(text))


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], ""),
        (["--yes"], ""),
        (["--yes", "-f", "my defs.py"], " -f 'my defs.py'"),
        (["-m", "a.b", "-d", "folder"], " -m a.b -d folder"),
        (["-w", "one.yaml", "-w", "two.yaml"], " -w one.yaml -w two.yaml"),
    ],
)
def test_recommended_commands_name_the_same_definitions(
    words: list[str], options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for workspace in ("one.yaml", "two.yaml"):
        Path(workspace).touch()
    watch, undo, cascade = TEXT.splitlines()
    said = CliRunner().invoke(command, words)
    assert said.output.splitlines() == [f"{watch}{options}", undo, f"{cascade}{options}"], said.output


@pytest.mark.parametrize("text", WITHIN, ids=WITHIN.values())
def test_a_command_within_a_text_is_completed_where_it_ends(text: str) -> None:
    said = CliRunner().invoke(command, [text.replace("{}", ""), "-m", "a.b"])
    assert said.output == text.replace("{}", " -m a.b") + "\n"


def test_a_text_outside_of_a_command_is_unchanged() -> None:
    assert with_workspace(TEXT) == TEXT
