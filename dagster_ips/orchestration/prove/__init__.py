"""Compute a sample of a table anew, by the asset's own function, and compare."""
