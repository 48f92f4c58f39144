"""What all other packages of ``orchestration`` build on: resources, the cursor store, standard metadata."""
