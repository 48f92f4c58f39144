"""Recompute a sample of a table with the asset's own function, and compare."""
