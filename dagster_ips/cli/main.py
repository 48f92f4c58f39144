"""The command ``dagster-ips`` and its options. The modules that do the work, and Dagster, are imported when needed."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from dagster_shared.cli import dg_workspace_options

from dagster_ips._late import LateModule
from dagster_ips.cli.next_commands import with_workspace
from dagster_ips.cli.shown_progress import shown_while
from dagster_ips.core.history_place import Place, parse_place
from dagster_ips.errors import IpsError

if TYPE_CHECKING:
    from dagster_ips.cli import asset_runs, backfills, captures, cascades, context, interventions
    from dagster_ips.cli import estimate as estimates
    from dagster_ips.cli import explain as explanations
    from dagster_ips.cli import explain_query as query_explanations
    from dagster_ips.cli import icdc as interval_tables
    from dagster_ips.cli import pending_changes as waiting
    from dagster_ips.cli import status as statuses
    from dagster_ips.cli.doctor import examination
else:
    asset_runs, backfills, captures, cascades, context, interventions, examination = (
        LateModule(f"dagster_ips.cli.{name}")
        for name in (
            "asset_runs",
            "backfills",
            "captures",
            "cascades",
            "context",
            "interventions",
            "doctor.examination",
        )
    )
    estimates, explanations, query_explanations, interval_tables, waiting, statuses = (
        LateModule(f"dagster_ips.cli.{name}")
        for name in ("estimate", "explain", "explain_query", "icdc", "pending_changes", "status")
    )


class _Command(click.Command):
    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401  # click's signature
        try:
            return super().invoke(ctx)
        except IpsError as error:
            raise click.ClickException(with_workspace(str(error))) from error


class _Commands(click.Group):
    command_class = _Command
    group_class = type  # Groups in it are of this class, too.


class _PlaceType(click.ParamType):  # type: ignore[type-arg]  # generic only in click 8.3 and later
    name = "snapshot|time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Place:  # noqa: ANN401  # click's signature
        try:
            return parse_place(value)
        except ValueError:
            self.fail(f"{value!r} isn't a snapshot id, date or time", param, ctx)


_PLACE = _PlaceType()
_upstream = click.option("--upstream", help="The upstream's asset key; optional if there is only one.")
_yes = click.option("--yes", is_flag=True, help="Don't ask for confirmation.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Inspect and manage incremental assets: what is pending and what counts as consumed.

    Finds definitions the way `dagster` does: -m MODULE, -f FILE, -w WORKSPACE, or [tool.dagster] in pyproject.toml. The
    instance is the one in DAGSTER_HOME.

    \b
    Exit codes:
      0  success
      1  the command failed, or doctor found something
      2  invalid command line
    """  # noqa: D301  # click's marker for lines to keep as they are


def _at_workplace(command: Callable[..., None]) -> Callable[..., None]:
    """Add Dagster's options for where definitions are, and pass the workplace that they name as the first argument."""

    @dg_workspace_options
    @functools.wraps(command)
    def with_workplace(**options: Any) -> None:  # noqa: ANN401  # click's
        with contextlib.ExitStack() as opened:
            with shown_while("Loading the definitions"):
                workplace = opened.enter_context(context.workplace_at(options))
            command(workplace, **options)

    return with_workplace


@main.command(short_help="What is consumed, pending and in flight, and what failed.")
@click.argument("asset", required=False)
@_json
@_at_workplace
def status(workplace: context.Workplace, **options: Any) -> None:  # noqa: ANN401  # as parsed, here and below
    """Show what each incremental asset, or ASSET, has consumed, what is pending and what is in flight.

    \b
    CONSUMED UP TO        the upstream's snapshot up to which everything is consumed
    NUMBER                how often the asset has published to its table
    PENDING               what the next run would read
    LAG                   how long the oldest pending change has waited
    IN FLIGHT             the run or job that is working on a capture now
    BEHIND, AHEAD         partitions that are consumed only up to then, or up to later than the others
    """  # noqa: D301  # as above
    statuses.status(workplace, **options)


@main.command(short_help="Run an asset once, and print what it did.")
@click.argument("asset")
@click.option("--full", is_flag=True, help="Compute everything anew; of a partitioned asset, all partitions.")
@click.option("--incremental", is_flag=True, help="Read only what is pending, also of named partitions.")
@click.option(
    "--accept",
    type=click.IntRange(min=0),
    metavar="SNAPSHOT",
    help="Continue with what others wrote to its table up to this snapshot.",
)
@click.option("--take-over", metavar="NAME", help="Take over the table of the asset's old name, and compute it anew.")
@click.option("--ignore-removed", is_flag=True, help="Ignore the rows that were removed upstream, in this run only.")
@click.option(
    "--partitions", "spans", multiple=True, metavar="K|A...B", help="A partition, or from one to another; repeatable."
)
@_at_workplace
def run(workplace: context.Workplace, **options: Any) -> None:  # noqa: ANN401
    """Run ASSET once in this process, like a run that you launch in Dagster's UI, and print what it did.

    ASSET is an asset key, or the name of the asset's table. Without --partitions, a partitioned asset runs those that
    are pending; with --full or --take-over, all of them. Partitions that you name are computed anew.
    """
    asset_runs.run(workplace, **options)


@main.command(short_help="Forget what was consumed: the next run computes everything.")
@click.argument("asset")
@_upstream
@click.option("--why", help="The reason, for the record; needed unless --dry-run.")
@_yes
@click.option("--dry-run", is_flag=True, help="Only show what the next run would read.")
@_at_workplace
def reset(workplace: context.Workplace, **options: Any) -> None:  # noqa: ANN401
    """Forget what ASSET has consumed of an upstream: its next run computes everything, or begins at its `start`."""
    interventions.reset(workplace, **options)


@main.command(short_help="Read a part of an upstream again.")
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
    """Make ASSET reread what it has consumed of an upstream after a snapshot or a time."""
    interventions.rewind(workplace, **options)


@main.command(short_help="Capture what is new, for a job that Dagster doesn't run.")
@click.argument("asset")
@click.option("--full", is_flag=True, help="Capture all of the upstreams instead of only what is new.")
@_at_workplace
def capture(workplace: context.Workplace, **options: Any) -> None:  # noqa: ANN401
    """Capture what is new in ASSET's upstreams for a job that Dagster doesn't run, and print it as JSON.

    Several jobs may share one capture. Run `dagster-ips commit CAPTURE` after the last one has written.
    """
    captures.capture(workplace, **options)


@main.command(short_help="Mark the capture of an outside job as consumed.")
@click.argument("capture")
@_at_workplace
def commit(workplace: context.Workplace, **options: Any) -> None:  # noqa: ANN401
    """Mark CAPTURE as consumed, after all of its jobs have written their tables."""
    captures.commit(workplace, **options)


@main.command(short_help="List what is pending, by commit or by partition.")
@click.argument("asset")
@_upstream
@_json
@_at_workplace
def pending(workplace: context.Workplace, **options: Any) -> None:  # noqa: ANN401
    """List the pending changes of ASSET, by commit or by partition, and what its next run does with them."""
    waiting.pending(workplace, **options)


@main.command(short_help="What a run did and why, or what a SQL asset's runs will do.")
@click.argument("run")
@_json
@_at_workplace
def explain(workplace: context.Workplace, **options: Any) -> None:  # noqa: ANN401
    """Explain what RUN read, why in that mode, what it wrote, published and committed, or why it failed.

    RUN is a run's id or the first characters of it. Or give the key of a SQL asset, to see what a run would do for each
    kind of change of each source, and why nothing better is possible.
    """
    if options["run"] in workplace.consumers:
        query_explanations.explain_query(workplace, options["run"], as_json=options["as_json"])
    else:
        explanations.explain(workplace, **options)


@main.command(short_help="All runs and commits that follow from one change.")
@click.argument("cascade", required=False)
@_json
@_at_workplace
def cascade(workplace: context.Workplace, **options: Any) -> None:  # noqa: ANN401
    """Show all runs and commits that follow from one change, stage by stage; without CASCADE, the newest cascades.

    CASCADE is the id of a backfill, of a run that a person launched, or of an outside job's snapshot.
    """
    cascades.cascade(workplace, **options)


@main.command(short_help="Check what runs depend on; each finding says how to fix it.")
@_json
@_at_workplace
def doctor(workplace: context.Workplace, **options: Any) -> None:  # noqa: ANN401
    """Check what runs depend on; each finding says how to fix it. Exits with 1 if there are any.

    Checks catalogs and their storage, Java, Spark's jars and server, cursor storage, daemon, sensors, tables with two
    writers, retention shorter than lag, leftover branches, dropped ICDC tables, failed runs, and what would make the
    next run fail. Writes only one small file per storage, and deletes it again.
    """
    if not examination.doctor(workplace, **options):
        raise click.exceptions.Exit(1)


@main.command(short_help="Make the changes of any interval readable as a table.")
@click.argument("table", required=False)
@click.option(
    "--from", "start", type=_PLACE, help="After this snapshot or time (UTC). Default: from the table's creation."
)
@click.option("--to", "end", type=_PLACE, help="Up to and including this snapshot or time. Default: the newest.")
@click.option("--ref", default="main", show_default=True, help="The branch to read.")
@click.option("--list", "lists", is_flag=True, help="Only list the tables that were created for TABLE.")
@click.option("--drop", "drops", metavar="NAME", help="Drop a table that this command created.")
@_json
@dg_workspace_options
def icdc(
    table: str | None,
    *,
    lists: bool,
    drops: str | None,
    **options: Any,  # noqa: ANN401
) -> None:
    """Create a table of the changes of TABLE in any interval, without copying rows and without consuming anything.

    TABLE is a table name or the asset key of the table. Needs no Dagster instance.
    """
    if (table is None) == (drops is None):
        message = "Give a TABLE, or --drop NAME."
        raise click.UsageError(message)
    asked = {name: options.pop(name) for name in ("start", "end", "ref", "as_json")}
    if (lists or drops is not None) and (asked["start"] or asked["end"] or asked["ref"] != "main"):
        message = "--from, --to and --ref are for a table that is created, not for --list or --drop."
        raise click.UsageError(message)
    _, tables, _ = context.known_at(options)
    if drops is not None:
        interval_tables.remove(tables, drops)
    elif lists:
        interval_tables.show(tables, str(table), as_json=asked["as_json"])
    else:
        interval_tables.make(tables, str(table), **asked)


@main.command(short_help="What following changes would have saved, from history.")
@click.argument("tables", nargs=-1, required=True, metavar="TABLE...")
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False),
    help="The folder of an IcebergCatalog(folder=...), instead of the definitions' catalog.",
)
@click.option("--catalog", "name", help="A catalog that PyIceberg is configured for, for example in ~/.pyiceberg.yaml.")
@click.option("--days", type=click.IntRange(min=1), help="Only the last days. Default: all retained snapshots.")
@_json
@dg_workspace_options
def estimate(tables: tuple[str, ...], folder: str | None, name: str | None, **options: Any) -> None:  # noqa: ANN401
    """Estimate what incremental writes would have saved for these TABLEs, from the history of their snapshots.

    For a pipeline that rewrites a window every day: compares bytes rewritten per day with bytes that were new. Reads
    only metadata and needs no Dagster instance.
    """
    asked = {name: options.pop(name) for name in ("days", "as_json")}
    lake = context.catalog_of(options, folder=folder, name=name)
    estimates.estimate(lake, tables, **asked)


@main.group(short_help="Recompute partitions and everything downstream of them.")
def backfill() -> None:
    """Recompute partitions of an asset and everything downstream: plan, launch, watch, compare, revert."""


@backfill.command(name="plan", short_help="What would be recomputed, and what that reads.")
@click.argument("asset")
@click.option("--partitions", "span", metavar="A...B", help="From one partition to another, inclusive.")
@click.option("--partition", "single", multiple=True, metavar="K", help="One partition; can be repeated.")
@click.option("--older-code", is_flag=True, help="The partitions with rows from an older code version.")
@click.option("--out", type=click.Path(dir_okay=False, writable=True), help="Save the plan as JSON.")
@_json
@_at_workplace
def plan_backfill(workplace: context.Workplace, **options: Any) -> None:  # noqa: ANN401
    """Show which stages and partitions follow if ASSET is recomputed, what they read, and how long that takes.

    Plans all partitions by default. Nothing runs and no table changes; the instance stores the plan.

    \b
    READS              the tables whose changes the stage's runs capture
    FILES, ROWS, SIZE  how much of them; "≤" if only rows that really change are followed
    SECONDS            estimated from past runs of the asset
    CODE               the code version that computes the rows
    """  # noqa: D301  # as above
    backfills.plan(workplace, **options)


@backfill.command(name="launch", short_help="Start a plan, live or staged on branches.")
@click.argument("plan")
@click.option(
    "--staged", is_flag=True, help="Compute every stage on a branch of its table; `publish` makes them visible."
)
@click.option("--although-moved", is_flag=True, help="Launch even if tables or code have changed since it was planned.")
@click.option(
    "--keep-days",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    help="How long to keep the previous state.",
)
@_yes
@_at_workplace
def launch_backfill(workplace: context.Workplace, **options: Any) -> None:  # noqa: ANN401
    """Launch PLAN, an id or a file: tags the current state of every table that it touches, then starts the first stage.

    Dagster's daemon computes the first stage like a backfill launched from the UI; later stages follow automatically.
    With --staged it computes all stages, and their results stay invisible until `publish`.
    """
    backfills.launch(workplace, **options)


@backfill.command(name="status", short_help="The progress of each stage.")
@click.argument("backfill_id", metavar="ID")
@click.option("--watch", is_flag=True, help="Watch until everything is done; updates in place in a terminal.")
@_json
@_at_workplace
def backfill_status(workplace: context.Workplace, **options: Any) -> None:  # noqa: ANN401
    """Show the progress of each stage of backfill ID, and how much it has read compared with its plan."""
    backfills.status(workplace, **options)


@backfill.command(name="cancel", short_help="Stop a backfill and all of its runs.")
@click.argument("backfill_id", metavar="ID")
@_yes
@_at_workplace
def cancel_backfill(workplace: context.Workplace, **options: Any) -> None:  # noqa: ANN401
    """Cancel backfill ID and all of its runs. Published results stay; to undo them, use `revert`.

    Staged results are dropped.
    """
    backfills.cancel(workplace, **options)


@backfill.command(name="diff", short_help="Which rows differ from before, or from a full recompute.")
@click.argument("backfill_id", metavar="ID")
@click.option(
    "--against",
    type=click.Choice(["before", "full"]),
    default="before",
    show_default=True,
    help="The previous state, or a full recompute of the partitions with the assets' own functions.",
)
@click.option("--examples", type=click.IntRange(min=0), default=10, show_default=True, help="Rows to show per stage.")
@_json
@_at_workplace
def diff_backfill(workplace: context.Workplace, **options: Any) -> None:  # noqa: ANN401
    """Show how each stage of backfill ID differs from its previous state, by partition and column.

    Rows are matched by the key of the asset's write mode; without one, a changed row counts as one removed and one
    added.
    """
    backfills.diff(workplace, **options)


@backfill.command(name="publish", short_help="Make the staged results visible.")
@click.argument("backfill_id", metavar="ID")
@_yes
@_at_workplace
def publish_backfill(workplace: context.Workplace, **options: Any) -> None:  # noqa: ANN401
    """Publish the staged results of backfill ID, stage by stage; run it again to continue if it was interrupted.

    Refused if a table has changed since it was staged.
    """
    backfills.publish(workplace, **options)


@backfill.command(name="revert", short_help="Restore the previous rows.")
@click.argument("backfill_id", metavar="ID")
@click.option("--partition", "single", multiple=True, metavar="K", help="Only this partition; can be repeated.")
@click.option("--leave-out-changed", is_flag=True, help="Leave out partitions that someone else has changed since.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@_yes
@_at_workplace
def revert_backfill(workplace: context.Workplace, **options: Any) -> None:  # noqa: ANN401
    """Restore the rows that backfill ID replaced, in a new commit that later stages follow.

    Upstream changes since then become pending again, so the next run consumes them. First deploy the code you want.
    """
    backfills.revert(workplace, **options)


@backfill.command(name="release", short_help="Stop keeping the previous state.")
@click.argument("backfill_id", metavar="ID")
@_yes
@_at_workplace
def release_backfill(workplace: context.Workplace, **options: Any) -> None:  # noqa: ANN401
    """Stop keeping the state before backfill ID, so it can expire. ID can then no longer be compared or reverted."""
    backfills.release(workplace, **options)
