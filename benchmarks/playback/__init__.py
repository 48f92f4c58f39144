"""What it costs to keep two stages of playback events up to date, incrementally and by lookback, on the same data."""
