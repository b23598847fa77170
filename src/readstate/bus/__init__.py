"""Adapters of the bus."""
