"""What a run of events does to channels, read states and replays, as pure functions."""
