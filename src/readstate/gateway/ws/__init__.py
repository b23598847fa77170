"""The WebSocket `/v1/ws`."""
