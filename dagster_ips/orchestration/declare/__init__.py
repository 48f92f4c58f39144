"""What users declare about their assets, and how it is read from Dagster's definitions."""
