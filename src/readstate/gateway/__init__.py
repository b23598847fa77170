"""The HTTP API as an ASGI application, to serve or to mount in another one."""

from readstate.gateway.http.app import asgi_app

from .asgi import ASGIApp

__all__ = ["ASGIApp", "asgi_app"]
