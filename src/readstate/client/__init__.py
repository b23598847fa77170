"""The Python SDK: one method per call of the HTTP API, answers as the structs of `readstate.api`.

async with Client("http://127.0.0.1:8080", key) as readstate:
    await readstate.send("general", "alice", text="hello")
    print((await readstate.unread("bob", "general")).label)

`SyncClient` has the same methods for programs without an event loop. What the service refuses is raised
as one of `readstate.client.errors`, by its code.
"""

from . import errors
from .blocking import SyncClient
from .calls import Client
from .errors import ApiError
from .retries import Retries

__all__ = ["ApiError", "Client", "Retries", "SyncClient", "errors"]
