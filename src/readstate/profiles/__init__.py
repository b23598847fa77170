"""The embedded and the cluster profile: which adapters each opens, and how the services are wired to them."""
