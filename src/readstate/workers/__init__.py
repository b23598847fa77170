"""Consumers of the log. The same ones run in every profile."""
