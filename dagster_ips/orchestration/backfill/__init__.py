"""Managed backfill: plan, launch, follow, compare and take back what a person has computed anew."""
