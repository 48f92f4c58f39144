"""The cursor: how an edge's state is written down, and where."""
