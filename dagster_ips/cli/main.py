"""The command ``dagster-ips``: its options. What does the work is imported as late as it is needed, Dagster with it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from dagster_shared.cli import dg_workspace_options

from dagster_ips._late import LateModule
from dagster_ips.core.history_place import Place, parse_place
from dagster_ips.errors import IpsError

if TYPE_CHECKING:
    from dagster_ips.cli import captures, context, interventions
    from dagster_ips.cli import status as statuses
else:
    captures, context, interventions, statuses = (
        LateModule(f"dagster_ips.cli.{name}") for name in ("captures", "context", "interventions", "status")
    )


class _Commands(click.Group):
    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401  # click's signature
        try:
            return super().invoke(ctx)
        except IpsError as error:
            raise click.ClickException(str(error)) from error


class _PlaceType(click.ParamType):  # type: ignore[type-arg]  # generic only in click 8.3 and later
    name = "snapshot|time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Place:  # noqa: ANN401  # click's signature
        try:
            return parse_place(value)
        except ValueError:
            self.fail(f"{value!r} is no snapshot id, date or time", param, ctx)


_PLACE = _PlaceType()
_upstream = click.option("--upstream", help="The upstream's asset key; needn't be said if there is but one.")
_yes = click.option("--yes", is_flag=True, help="Don't ask.")


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Look after incremental consumers: what is pending, and what counts as consumed.

    Definitions are found as by `dagster`: -m MODULE, -f FILE, -w WORKSPACE, or [tool.dagster] in pyproject.toml; the
    instance is that of DAGSTER_HOME.
    """


def _at_workplace(command: Callable[..., None]) -> Callable[..., None]:
    """A command with Dagster's options for where definitions are, whose first argument is the workplace."""

    @dg_workspace_options
    @functools.wraps(command)
    def with_workplace(**options: Any) -> None:  # noqa: ANN401  # click's
        with context.workplace_at(options) as workplace:
            command(workplace, **options)

    return with_workplace


@main.command()
@click.argument("asset", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_at_workplace
def status(workplace: context.Workplace, **options: Any) -> None:  # noqa: ANN401  # as parsed, here and below
    """What each consumer, or ASSET, has consumed of its upstreams, what is pending and what is in flight."""
    statuses.status(workplace, **options)


@main.command()
@click.argument("asset")
@_upstream
@click.option("--why", required=True, help="The reason, for the record.")
@_yes
@_at_workplace
def reset(workplace: context.Workplace, **options: Any) -> None:  # noqa: ANN401
    """Forget what ASSET has consumed of an upstream: its next run computes everything, or begins where `start` says."""
    interventions.reset(workplace, **options)


@main.command()
@click.argument("asset")
@_upstream
@click.option(
    "--to", "place", type=_PLACE, required=True, help="A snapshot of the upstream, or a date or time in ISO 8601 (UTC)."
)
@click.option("--why", help="The reason, for the record; needed unless --dry-run.")
@_yes
@click.option("--dry-run", is_flag=True, help="Only show what would be read again.")
@_at_workplace
def rewind(workplace: context.Workplace, **options: Any) -> None:  # noqa: ANN401
    """Let ASSET read again what it consumed of an upstream after a snapshot or a time."""
    interventions.rewind(workplace, **options)


@main.command()
@click.argument("asset")
@click.option("--full", is_flag=True, help="All of the upstreams instead of what is new.")
@_at_workplace
def capture(workplace: context.Workplace, **options: Any) -> None:  # noqa: ANN401
    """Freeze what is new in ASSET's upstreams for a job that Dagster doesn't run, and print it as JSON.

    Several jobs may share one capture. Call `dagster-ips commit CAPTURE` after the last one has written.
    """
    captures.capture(workplace, **options)


@main.command()
@click.argument("capture")
@_at_workplace
def commit(workplace: context.Workplace, **options: Any) -> None:  # noqa: ANN401
    """Say that all jobs of CAPTURE have written their tables, so that it is consumed."""
    captures.commit(workplace, **options)
