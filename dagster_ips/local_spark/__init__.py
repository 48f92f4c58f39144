"""The local Spark that stays warm between runs: its jars, its server, and starting and stopping it."""
