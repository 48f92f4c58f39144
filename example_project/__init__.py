"""A playback pipeline as a user of dagster_ips would write it: a template to copy."""
