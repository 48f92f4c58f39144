"""``dagster-ips doctor``: finds problems in what runs depend on, each with its fix."""
