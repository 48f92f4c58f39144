"""Every command that an error or the docs recommend is a valid command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from dagster_ips.cli.main import main
from dagster_ips.errors import CaptureNotInFlightError, IpsError, LostCursorError
from dagster_ips.local_spark.connect_server import SparkServerDiffersError

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def kinds(kind: type[IpsError] = IpsError) -> Iterator[type[IpsError]]:
    for each in kind.__subclasses__():
        yield each
        yield from kinds(each)


def parse(line: str) -> None:
    """Parse the command line, and fail where the command would fail, but don't run it."""
    words = shlex.split(line, comments=True)
    command: click.Command = main
    while isinstance(command, click.Group):
        words = words[1:]
        command = command.commands[words[0]]
    context = command.make_context(words[0], words[1:], parent=click.Context(main))
    assert context.params


def test_every_command_in_an_error_is_valid_as_written() -> None:
    told = []
    for kind in kinds():
        message = str(kind(**{field.name: "media" for field in fields(kind)})) if fields(kind) else ""
        told += re.findall(r"dagster-ips \w+(?: '[^']*'| [\w<>-]+)*", message)
    for line in told:
        parse(line)
    assert {line.split()[1] for line in told} == {"reset", "capture", "backfill"}


@pytest.mark.parametrize("name", ["it's; touch x", "a b/c", "$(touch x)"])
def test_names_in_a_recommended_command_are_quoted(name: str) -> None:
    errors = [
        LostCursorError(consumer=name, upstream=name, icdc_table="ips.x"),
        CaptureNotInFlightError(capture="c", consumer=name, upstream=name, now="n"),
        SparkServerDiffersError(folder=name, pid=1, differences=()),
    ]
    for error in errors:
        command = re.search(r"(?:dagster-ips \w+|python -m .*? stop) (.*)", str(error))
        assert command is not None
        assert name in shlex.split(command[1])


def test_every_command_in_the_docs_is_valid_as_written() -> None:
    shown = [
        line for page in PAGES for line in re.findall(r"^(?:\$ )?(dagster-ips .*)$", page.read_text(), re.MULTILINE)
    ]
    for line in shown:
        words = line.partition("#")[0].replace("[", "").replace("]", "")
        parse(words.replace("SNAPSHOT", "8412"))
    assert {line.split()[1] for line in shown} == set(main.commands)


def test_every_module_that_the_docs_say_to_run_exists() -> None:
    for page in PAGES:
        for module in re.findall(r"python -m ([\w.]+)", page.read_text()):
            assert find_spec(module), f"{page.name}: {module}"
