"""Every command, run tag and click that an error or the docs recommend exists."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from dagster_ips.cli.main import main
from dagster_ips.cli.next_commands import NEXT
from dagster_ips.core.capture import Mode
from dagster_ips.core.policy import OnRemoved
from dagster_ips.errors import CaptureNotInFlightError, IpsError, UpstreamRenamedError
from dagster_ips.local_spark.connect_server import SparkServerDiffersError
from dagster_ips.orchestration.run.runs import ACCEPT_TAG, MODE_TAG, REMOVED_TAG, TAKE_OVER_TAG

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


def texts_of_code() -> Iterator[str]:
    """Every text in the package's code that isn't a docstring, with 7 for what it is filled with."""
    for file in sorted((ROOT / "dagster_ips").rglob("*.py")):
        tree = ast.parse(file.read_text())
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if id(node) in docstrings | parts:
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "7" for part in node.values)


def texts_of_errors() -> Iterator[str]:
    for kind in kinds():
        if fields(kind):
            yield str(kind(**{field.name: "7" for field in fields(kind)}))


def test_every_command_in_an_error_or_another_text_is_valid_as_written() -> None:
    texts = [*texts_of_errors(), *texts_of_code()]
    told = [found[0] for text in texts for found in NEXT.finditer(text) if "dagster-ips" in found[0]]
    for line in told:
        parse(line[line.index("dagster-ips") :])
    words = {re.sub(r".*?dagster-ips ", "", line).split()[0] for line in told}
    assert words >= {"run", "reset", "capture", "backfill", "icdc", "explain"}


def test_every_run_tag_in_an_error_or_another_text_is_one_that_runs_read() -> None:
    values = {MODE_TAG: {*Mode, "7"}, REMOVED_TAG: set(OnRemoved), ACCEPT_TAG: {"7"}, TAKE_OVER_TAG: {"7"}}
    texts = [*texts_of_errors(), *texts_of_code()]
    told = [tag for text in texts for tag in re.findall(r"dagster_ips/(\w+)=(\w+)", text)]
    for tag, value in told:
        assert value in values[f"dagster_ips/{tag}"], (tag, value)
    assert {f"dagster_ips/{tag}" for tag, _ in told} == set(values)


def test_every_click_that_the_docs_name_is_in_dagsters_ui() -> None:
    bundle = Path(str(find_spec("dagster_webserver").submodule_search_locations[0])) / "webapp/build"  # type: ignore[union-attr, index]
    script = "".join(file.read_text() for file in bundle.rglob("*.js"))
    told = []
    for page in PAGES:
        for paragraph in page.read_text().split("\n\n"):
            if re.search(r"\bUI\b|choose|\*Runs\*", paragraph):
                told += re.findall(r"(?<!\*)\*([A-Z][\w ]+)\*(?!\*)", paragraph)
    for click_on in told:
        first, space, rest = click_on.partition(" ")
        composed = f'"{first}","{space}{rest}"'  # as in "".concat(some ? "Edit" : "Add", " tags")
        assert f'"{click_on}"' in script or composed in script, click_on
    assert {"Open launchpad", "Edit tags", "Add tags", "Launch backfill"} <= set(told)


@pytest.mark.parametrize("name", ["it's; touch x", "a b/c", "$(touch x)"])
def test_names_in_a_recommended_command_are_quoted(name: str) -> None:
    errors = [
        UpstreamRenamedError(consumer=name, upstream=name, former="f", consumed_snapshot_id=None),
        CaptureNotInFlightError(capture="c", consumer=name, upstream=name, now="n"),
        SparkServerDiffersError(folder=name, pid=1, differences=()),
    ]
    for error in errors:
        told = [found[0] for found in NEXT.finditer(str(error))] or re.findall("python -m .*? stop .*", str(error))
        assert told
        for command in told:
            assert name in shlex.split(command)


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
