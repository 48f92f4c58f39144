"""Starts the processes of runs, if ``dagster.yaml`` names the launcher."""

from dagster_ips.orchestration.launch.forking_run_launcher import ForkingRunLauncher

__all__ = ["ForkingRunLauncher"]
