"""The HTTP API as an ASGI application, to serve or to mount in another one."""

from .asgi import ASGIApp
from .http import asgi_app

__all__ = ["ASGIApp", "asgi_app"]
