"""The durable store in SQL."""
