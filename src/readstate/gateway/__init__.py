"""The HTTP API as an ASGI application, to serve or to mount in another one."""

from typing import TYPE_CHECKING

from .asgi import ASGIApp

if TYPE_CHECKING:
    from .http.app import asgi_app

__all__ = ["ASGIApp", "asgi_app"]


def __getattr__(name: str) -> object:
    """Import at first use: commands need parts of the gateway and not the application."""
    if name != "asgi_app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .http.app import asgi_app  # noqa: PLC0415

    return asgi_app
