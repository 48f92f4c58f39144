"""What starts runs automatically: conditions, sensors and the hygiene job."""
