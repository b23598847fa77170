"""Adapters of the hot state."""
