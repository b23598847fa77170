"""What the URL of a hot store says: `redis://…` of one server, `redis+cluster://host:port,host:port` of a Cluster."""

from urllib.parse import urlsplit

CLUSTER = "+cluster"


class Address:
    """Where to begin, and how every server behind it is reached: the user, the path and the query are shared."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        login, at, servers = parts.netloc.rpartition("@")
        self.is_cluster = parts.scheme.endswith(CLUSTER)
        self.scheme = parts.scheme.removesuffix(CLUSTER)
        self.seeds = servers.split(",") if self.is_cluster else [servers]
        """The servers that are named, as `host:port`."""
        self._before = f"{self.scheme}://{login}{at}"
        self._after = parts.path + (f"?{parts.query}" if parts.query else "")

    def url_of(self, server: str) -> str:
        """The URL of one server."""
        return f"{self._before}{server}{self._after}"


def server_name(host: str, port: int, asked: str) -> str:
    """A server as it is named by another one; without a host it is where that one, `asked`, is."""
    host = host or urlsplit(f"//{asked}").hostname or "localhost"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
