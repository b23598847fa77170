"""The durable store in one SQLite file."""
