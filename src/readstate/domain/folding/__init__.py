"""Pure functions that fold events: messages and other channel events, read states, replays."""
