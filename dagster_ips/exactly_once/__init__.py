"""Capture, publish, commit: what makes a change consumed exactly once."""
