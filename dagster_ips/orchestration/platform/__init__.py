"""What all rooms of Dagster stand on: resources, the cursor store, standard metadata."""
