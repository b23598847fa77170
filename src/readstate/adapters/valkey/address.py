"""The URL of a hot store: `redis://…` for one server, `redis+cluster://host:port,host:port` for a Cluster."""

import re

CLUSTER = "+cluster"
_URL = re.compile(r"(?P<scheme>[^:/?#]*)://(?P<servers>[^/?#]*)(?P<path>[^?#]*)(?P<query>\?[^#]*)?")
"""urlsplit does not fit: it reads several servers as one, and rejects IPv6 brackets that are not at the beginning."""
_UNKNOWN = frozenset({"", "?"})
"""The host that a server reports for a node whose address it does not know."""


class Address:
    """The seed servers of a URL. User, path and query apply to every server behind them."""

    def __init__(self, url: str) -> None:
        parts = _URL.match(url)
        scheme, named, path, query = ("", "", "", "") if parts is None else parts.groups("")
        login, at, servers = named.rpartition("@")
        self.is_cluster = scheme.endswith(CLUSTER)
        self.scheme = scheme.removesuffix(CLUSTER)
        self.seeds = servers.split(",") if self.is_cluster else [servers]
        """As `host:port` or `[host]:port`."""
        self._before = f"{self.scheme}://{login}{at}"
        self._after = path + query

    def url_of(self, server: str) -> str:
        return f"{self._before}{server}{self._after}"


def server_name(host: str, port: int, asked: str) -> str:
    """The name of a server that the server `asked` reported. Without a host, it runs on the host of `asked`."""
    host = host_of(asked) or "localhost" if host in _UNKNOWN else host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(server: str) -> str:
    """The host of `host`, `host:port`, `[host]` or `[host]:port`, without brackets."""
    if server.startswith("["):
        return server[1:].partition("]")[0]
    return server.partition(":")[0]


def member_name(address: str, asked: str) -> str:
    """The name of a server in a line of CLUSTER NODES: `host:port@port,hostname`, IPv6 without brackets."""
    host, _, port = address.partition(",")[0].partition("@")[0].rpartition(":")
    return server_name(host, int(port), asked)
