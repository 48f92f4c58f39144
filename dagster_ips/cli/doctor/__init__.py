"""``dagster-ips doctor``: what is wrong with what runs depend on, each with its fix."""
