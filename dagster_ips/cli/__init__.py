"""``dagster-ips``: shows what is pending, and changes what counts as consumed."""
