"""Managed backfills: plan, launch, follow, compare and revert a recomputation that a person requests."""
