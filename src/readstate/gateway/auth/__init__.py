"""Credentials and permissions."""
