"""Which adapters run together."""
