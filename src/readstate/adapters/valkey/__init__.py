"""Valkey or Redis, one server or a Cluster: which server has which key, and calls that survive its faults."""

from .client import Call, Overtaken, ServerChanged, ValkeyClient
from .generation import Generation
from .keys import slot_of, tag_of
from .scripts import Script

__all__ = ["Call", "Generation", "Overtaken", "Script", "ServerChanged", "ValkeyClient", "slot_of", "tag_of"]
