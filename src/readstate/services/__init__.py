"""What callers can do. Services know the ports, never an adapter."""
