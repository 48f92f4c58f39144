"""Freeze what changed in a consumer's inputs, durably and under a number, before any work starts."""
