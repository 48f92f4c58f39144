"""A command that an error or the README tells to run is one that runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click

from dagster_ips.cli.main import main
from dagster_ips.errors import IpsError

README = Path(__file__).parents[2] / "README.md"


def kinds(kind: type[IpsError] = IpsError) -> Iterator[type[IpsError]]:
    for each in kind.__subclasses__():
        yield each
        yield from kinds(each)


def parse(line: str) -> None:
    """Fails as the command line would, short of doing it."""
    words = shlex.split(line, comments=True)
    command = main.commands[words[1]]
    context = command.make_context(words[1], words[2:], parent=click.Context(main))
    assert context.params


def test_every_command_of_an_error_can_be_run_as_it_stands() -> None:
    told = []
    for kind in kinds():
        message = str(kind(**{field.name: "media" for field in fields(kind)})) if fields(kind) else ""
        told += re.findall(r"dagster-ips \w+(?: '[^']*'| [\w<>-]+)*", message)
    for line in told:
        parse(line)
    assert {line.split()[1] for line in told} == {"reset", "capture"}


def test_every_command_of_the_readme_can_be_run_as_it_stands() -> None:
    (block,) = [text for text in re.findall(r"```console\n(.*?)```", README.read_text(), re.DOTALL) if "status" in text]
    for line in block.strip().splitlines():
        words = line.partition("#")[0].replace("[", "").replace("]", "")
        parse(words.replace("SNAPSHOT", "8412"))
    assert {line.split()[1] for line in block.strip().splitlines()} == set(main.commands)
