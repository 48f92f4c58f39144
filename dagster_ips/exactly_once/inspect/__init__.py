"""Look and change nothing: how far an edge is, and what a table claims to be made of."""
