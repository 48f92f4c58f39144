"""The show behind ``make demo``: the pipeline taking in days with late rows by itself, measured and checked."""
