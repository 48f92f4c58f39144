"""A pipeline with two consumers, and the command line on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner, Result

from dagster_ips.cli.main import main
from tests.cli.idle_lake import IdleLake
from tests.support.lake import Lake
from tests.support.pipeline import pipeline

Command = Callable[..., Result]


class Terminal:
    """Runs ``dagster-ips`` on the pipeline, with ``-f`` for its definitions and DAGSTER_HOME for the instance."""

    def __init__(self, lake: Lake, instance: dg.DagsterInstance, folder: Path) -> None:
        self.lake, self.instance = lake, instance
        self.definitions = pipeline(lake.folder, lake.spark_folder)
        self.file = folder / "its_definitions.py"
        self.file.write_text(
            "from pathlib import Path\n\nfrom tests.support.pipeline import pipeline\n\n"
            f"defs = pipeline(Path({str(lake.folder)!r}), Path({str(lake.spark_folder)!r}))\n"
        )

    def run(self, *words: str, answer: str = "") -> Result:
        return CliRunner().invoke(main, [words[0], "-f", str(self.file), *words[1:]], input=answer)

    def says(self, *words: str, answer: str = "") -> str:
        """The output of a command that succeeds."""
        result = self.run(*words, answer=answer)
        assert result.exit_code == 0, result.output
        return result.stdout

    def refuses(self, *words: str, answer: str = "") -> str:
        """The error output of a command that ends with one of the library's errors."""
        result = self.run(*words, answer=answer)
        assert result.exit_code in (1, 2), result.output
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.stderr

    def status(self, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.says("status", "--json", *words))
        return found


@pytest.fixture
def terminal(lake: Lake, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("DAGSTER_HOME", instance.root_directory)
    return Terminal(lake, instance, tmp_path)


@pytest.fixture
def idle_lake(instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IdleLake:
    monkeypatch.setenv("DAGSTER_HOME", instance.root_directory)
    return IdleLake(tmp_path, instance)
