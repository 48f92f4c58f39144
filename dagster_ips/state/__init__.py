"""The cursor: how an edge's state is stored, and where."""
