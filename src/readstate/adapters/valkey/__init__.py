"""Hot state and bus on Valkey or Redis, one server or a Cluster.

The package exports the client, which finds the server of a key and retries calls after faults.
"""

from .backend import Backend
from .client import OVERTAKEN, Call, ServerChanged, ValkeyClient
from .functions import Function
from .generation import DurableCounter, ExclusiveGeneration, Generation, SharedGeneration
from .keys import slot_of, tag_of

__all__ = [
    "OVERTAKEN",
    "Backend",
    "Call",
    "DurableCounter",
    "ExclusiveGeneration",
    "Function",
    "Generation",
    "ServerChanged",
    "SharedGeneration",
    "ValkeyClient",
    "slot_of",
    "tag_of",
]
