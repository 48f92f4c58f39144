"""Look and change nothing: how far an edge has consumed, and what a table claims to be made of."""
