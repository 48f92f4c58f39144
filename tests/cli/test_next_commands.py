"""A recommended command finds the same definitions as the command that recommends it."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from dagster_shared.cli import dg_workspace_options

from dagster_ips.cli.next_commands import with_workspace

TEXT = "Launched: dagster-ips backfill status abc --watch\nTo undo it:\n  dagster-ips cascade abc"


@click.command()
@click.option("--yes", is_flag=True)
@dg_workspace_options
def command(**_: object) -> None:
    click.echo(with_workspace(TEXT))


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


def test_a_text_outside_of_a_command_is_unchanged() -> None:
    assert with_workspace(TEXT) == TEXT
