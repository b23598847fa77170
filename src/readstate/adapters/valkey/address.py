"""What the URL of a hot store says: `redis://…` of one server, `redis+cluster://host:port,host:port` of a Cluster."""

import re

CLUSTER = "+cluster"
_URL = re.compile(r"(?P<scheme>[^:/?#]*)://(?P<servers>[^/?#]*)(?P<path>[^?#]*)(?P<query>\?[^#]*)?")
"""Not urlsplit: it takes several servers for one, and refuses brackets of IPv6 that are not at the beginning."""
_UNKNOWN = frozenset({"", "?"})
"""How a server names one whose address it does not know."""


class Address:
    """Where to begin, and how every server behind it is reached: the user, the path and the query are shared."""

    def __init__(self, url: str) -> None:
        parts = _URL.match(url)
        scheme, named, path, query = ("", "", "", "") if parts is None else parts.groups("")
        login, at, servers = named.rpartition("@")
        self.is_cluster = scheme.endswith(CLUSTER)
        self.scheme = scheme.removesuffix(CLUSTER)
        self.seeds = servers.split(",") if self.is_cluster else [servers]
        """The servers that are named, as `host:port` or `[host]:port`."""
        self._before = f"{self.scheme}://{login}{at}"
        self._after = path + query

    def url_of(self, server: str) -> str:
        """The URL of one server."""
        return f"{self._before}{server}{self._after}"


def server_name(host: str, port: int, asked: str) -> str:
    """A server as it is named by another one; without a host it is where that one, `asked`, is."""
    host = host_of(asked) or "localhost" if host in _UNKNOWN else host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(server: str) -> str:
    """The host of `host`, `host:port`, `[host]` or `[host]:port`, without brackets."""
    if server.startswith("["):
        return server[1:].partition("]")[0]
    return server.partition(":")[0]


def member_name(address: str, asked: str) -> str:
    """A server as a line of CLUSTER NODES names it: `host:port@port,hostname`, without brackets around IPv6."""
    host, _, port = address.partition(",")[0].partition("@")[0].rpartition(":")
    return server_name(host, int(port), asked)
