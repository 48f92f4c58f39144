"""``dagster-ips``: what is pending, and changing what counts as consumed."""
