"""The durable store in PostgreSQL."""
