"""Cross-origin requests of browsers, for the configured origins."""

from collections.abc import Sequence

from readstate.gateway.asgi import Answer, Header, Scope

_VARY: Header = (b"vary", b"Origin")
_EXPOSE: Header = (b"access-control-expose-headers", b"Retry-After, WWW-Authenticate")
_PREFLIGHT: list[Header] = [
    (b"access-control-allow-methods", b"GET, HEAD, PUT, POST, PATCH, DELETE"),
    (b"access-control-allow-headers", b"Authorization, Content-Type, Prefer"),
    (b"access-control-max-age", b"600"),
]


class Cors:
    """The headers by which browsers let a page of an allowed origin read the answers. Cookies are not involved."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._all = "*" in origins
        self._origins = frozenset(origin.lower().encode() for origin in origins)

    def headers(self, origin: bytes | None) -> list[Header]:
        if origin is None or not self.allows(origin):
            return [_VARY]
        return [(b"access-control-allow-origin", b"*" if self._all else origin), _EXPOSE, _VARY]

    def preflight(self, scope: Scope, origin: bytes | None) -> Answer | None:
        """The answer to a preflight request; None: this is not one."""
        if scope["method"] != "OPTIONS" or origin is None:
            return None
        if not any(name == b"access-control-request-method" for name, _ in scope["headers"]):
            return None
        return Answer(204, list(_PREFLIGHT) if self.allows(origin) else [], b"")

    def allows(self, origin: bytes) -> bool:
        """Whether pages of this origin may call. Scheme and host are case-insensitive."""
        return self._all or origin.lower() in self._origins
