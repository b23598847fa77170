"""Readstate: the read-state service for chat.

`Readstate.open()` runs the whole service inside any async program; `asgi_app(rs)` is its HTTP API, to be
served or mounted in another application.
"""

from readstate.profiles.service import Readstate

from .gateway import asgi_app
from .settings import Settings

__all__ = ["Readstate", "Settings", "asgi_app"]
