"""The HTTP API as an ASGI application."""
