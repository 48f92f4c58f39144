"""Two stages of playback events, kept right by change and by lookback on the same data: what each way costs."""
