"""Dagster: declarations, IO manager, resources, cursor, sensors, automation."""
