"""What starts runs by itself: conditions, sensors and the job that tidies up."""
