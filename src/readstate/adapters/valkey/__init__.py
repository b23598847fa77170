"""Hot state and bus on Valkey or Redis, one server or a Cluster.

The package exports the client, which finds the server of a key and retries calls after faults.
"""

from .client import Call, Overtaken, ServerChanged, ValkeyClient
from .generation import Generation
from .keys import slot_of, tag_of
from .scripts import Script

__all__ = ["Call", "Generation", "Overtaken", "Script", "ServerChanged", "ValkeyClient", "slot_of", "tag_of"]
