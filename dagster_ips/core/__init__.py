"""Pure decisions: what changed, what to capture, what a stamp means. No Dagster, PyIceberg, Spark, files or clocks."""
