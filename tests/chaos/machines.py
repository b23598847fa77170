"""The servers of a storm: real ones, each behind a proxy that can be cut. One set for a test process."""

import atexit
import functools
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from readstate.stack import Kafka, Postgres, Valkey
from readstate.stack.ports import HOST
from tests.cluster.fleet import Backends
from tests.contract import kafka as contract_kafka
from tests.contract import kafka_classes

from .proxy import Network, Proxy

SWIFT = {"fsync": "off", "autovacuum": "off", "max_connections": "200"}
"""Processes are killed here, not machines."""


class OutsideKafka(Kafka):
    """Beside its own listener it has one for those who come through a proxy."""

    port_count = 3

    def __init__(self, home: Path, **how: Any) -> None:
        super().__init__(home, **how)
        self.advertised = 0
        """The port of that proxy."""

    def properties(self) -> dict[str, object]:
        """Kafka's own, the second listener, and consumers that are given up soon."""
        known = super().properties()
        protocols = "listener.security.protocol.map"
        return {
            **known,
            "listeners": f"{known['listeners']},OUTSIDE://{HOST}:{self.record.ports[2]}",
            "advertised.listeners": f"{known['advertised.listeners']},OUTSIDE://{HOST}:{self.advertised}",
            protocols: f"{known[protocols]},OUTSIDE:PLAINTEXT",
            "group.min.session.timeout.ms": 1_000,
        }


class ProxiedBackends(NamedTuple):
    """The servers as processes reach them, and the proxies between."""

    backends: Backends
    hot: Proxy
    log: Proxy
    database: Proxy

    @property
    def proxies(self) -> dict[str, Proxy]:
        return {"hot": self.hot, "log": self.log, "database": self.database}

    def heal(self) -> None:
        """Every server runs, and every way is open."""
        for server in (self.backends.valkey, self.backends.kafka, self.backends.postgres):
            server.resume()
            if not server.is_running:
                server.start()
        for proxy in self.proxies.values():
            proxy.heal()


@functools.cache
def proxied_backends() -> ProxiedBackends:
    """Started when the first storm needs it, gone with the process."""
    home = Path(tempfile.mkdtemp(prefix="readstate-chaos-"))
    network = Network()
    valkey = Valkey(home / "valkey", persistent=False)
    postgres = Postgres(home / "postgres", settings=SWIFT)
    kafka = OutsideKafka(home / "kafka", options=kafka_classes.options())
    for server in (valkey, postgres, kafka):
        atexit.register(server.wipe)
    log = network.proxy(lambda: kafka.record.ports[2])
    kafka.advertised = log.port
    contract_kafka.started(kafka)
    valkey.start()
    postgres.start()
    hot, database = network.proxy(lambda: valkey.port), network.proxy(lambda: postgres.port)
    url = postgres.url.rpartition("/")[0].replace(f":{postgres.port}", f":{database.port}")
    backends = Backends(valkey, kafka, postgres, f"redis://{HOST}:{hot.port}/0", f"{HOST}:{log.port}", url)
    return ProxiedBackends(backends, hot, log, database)
