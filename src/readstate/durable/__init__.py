"""Adapters of the durable store."""
