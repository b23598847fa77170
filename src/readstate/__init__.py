"""Readstate: the read-state service for chat.

`Readstate.open()` runs the whole service inside any async program; `asgi_app(rs)` is its HTTP API, to be
served or mounted in another application.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .gateway import asgi_app
    from .profiles.service import Readstate
    from .settings import Settings

__all__ = ["Readstate", "Settings", "asgi_app"]

_MODULES = {"Readstate": "profiles.service", "Settings": "settings", "asgi_app": "gateway"}


def __getattr__(name: str) -> object:
    """Import at first use: the client and the command line start without the service."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
