"""Live updates for connected devices."""
