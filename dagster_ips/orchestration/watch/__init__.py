"""Look at tables outside of runs: what changed, what is pending, how complete each table is."""
