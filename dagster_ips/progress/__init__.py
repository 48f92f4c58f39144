"""Progress: what a consumer's table contains of its upstreams, as each of its published snapshots says."""
