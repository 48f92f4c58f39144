"""What happens in a run: capture when inputs load, write and publish when outputs are handled, and report it."""
