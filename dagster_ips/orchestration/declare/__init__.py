"""What users say about their assets, and what Dagster's definitions say of it."""
