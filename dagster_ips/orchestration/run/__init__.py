"""What happens in a run: capture as inputs load, write and publish as outputs are handled, and say so."""
