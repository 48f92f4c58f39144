"""``python -m dagster_ips.cli``, the same as ``dagster-ips``."""

from dagster_ips.cli.main import main

main(prog_name="dagster-ips")
