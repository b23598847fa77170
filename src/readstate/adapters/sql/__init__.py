"""The durable store in SQL: shared code over `session`, with one engine and dialect each for SQLite and PostgreSQL."""
