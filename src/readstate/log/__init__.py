"""Adapters of the log."""
