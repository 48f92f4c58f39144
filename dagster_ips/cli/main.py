"""The command ``dagster-ips``."""

from __future__ import annotations

from typing import Any

import click

from dagster_ips.cli.captures import capture, commit
from dagster_ips.cli.interventions import reset, rewind
from dagster_ips.cli.status import status
from dagster_ips.errors import IpsError


class _Commands(click.Group):
    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401  # click's signature
        try:
            return super().invoke(ctx)
        except IpsError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Look after incremental consumers: what is pending, and what counts as consumed.

    Definitions are found as by `dagster`: -m MODULE, -f FILE, -w WORKSPACE, or [tool.dagster] in pyproject.toml; the
    instance is that of DAGSTER_HOME.
    """


for _command in (status, reset, rewind, capture, commit):
    main.add_command(_command)
