"""The bus over Valkey's publish and subscribe."""
