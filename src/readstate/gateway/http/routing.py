"""Finds the route of a path.

Ids may contain slashes, percent-encoded, so paths are split before they are decoded.
"""

import re
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from readstate.domain.errors import BadPath, NotFound
from readstate.gateway.asgi import Scope

from .calls import Route
from .problems import WrongMethod

_BROKEN_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")


class _Node:
    """A node in the tree of paths. `wild` is the child that takes any segment, as `name`."""

    __slots__ = ("allowed", "literal", "name", "routes", "wild")

    def __init__(self) -> None:
        self.literal: dict[str, _Node] = {}
        self.wild: _Node | None = None
        self.name = ""
        self.routes: dict[str, Route] = {}
        self.allowed = ""


class Router:
    """A tree of path segments. Finding a route costs one lookup per segment."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        for route in routes:
            self._add(route)

    def find(self, scope: Scope) -> tuple[Route, dict[str, str]]:
        """The route of a request and the values in its path; NotFound or WrongMethod if there is none."""
        node, values = self._root, {}
        segments = iter(segments_of(scope))
        next(segments)
        for segment in segments:
            if (child := node.literal.get(segment)) is None:
                if (child := node.wild) is None:
                    raise NotFound("There is no such path.")
                values[child.name] = segment
            node = child
        if (route := node.routes.get(scope["method"])) is None:
            raise WrongMethod(scope["method"], node.allowed) if node.routes else NotFound("There is no such path.")
        return route, values

    def _add(self, route: Route) -> None:
        node = self._root
        for segment in route.pattern.split("/")[1:]:
            if segment.startswith("{"):
                if node.wild is None:
                    node.wild = _Node()
                    node.wild.name = segment[1:-1]
                node = node.wild
            else:
                node = node.literal.setdefault(segment, _Node())
        node.routes[route.method] = route
        node.allowed = ", ".join(sorted(node.routes))


def segments_of(scope: Scope) -> list[str]:
    """The decoded segments of a path below the mount point, after a first one that stands for the mount point."""
    raw: bytes | None = scope.get("raw_path")
    if raw is None:
        segments: list[str] = scope["path"].split("/")
    else:
        try:
            segments = raw.decode().split("/")
            if b"%" in raw:
                segments = [_unquote(segment) for segment in segments]
        except UnicodeDecodeError:
            raise BadPath from None
    if root := scope.get("root_path"):
        return _below(root.rstrip("/").split("/"), segments)
    return segments


def _below(root: list[str], segments: list[str]) -> list[str]:
    """Remove the mount point, if the path has it. Some servers have removed it already."""
    depth = len(root)
    return segments[depth - 1 :] if depth > 1 and segments[:depth] == root else segments


def _unquote(segment: str) -> str:
    if _BROKEN_ESCAPE.search(segment):
        raise BadPath
    return unquote_to_bytes(segment).decode()
