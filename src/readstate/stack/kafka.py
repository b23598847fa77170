"""Apache Kafka, from Maven's jars: one node that is broker and controller, or several as a cluster."""

import base64
import secrets
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from .maven import find_java, jars
from .ports import HOST, free_ports
from .server import Cluster, Report, Server

VERSION = "4.1.1"
JARS = [("org.apache.kafka", "kafka_2.13", VERSION), ("org.slf4j", "slf4j-simple", "1.7.36")]
HEAP, SMALL_HEAP = "-Xmx512m", "-Xmx256m"
"""For a single node, and for each of several."""
QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Halves the work of a start. A benchmark, which runs longer, is better off without these options."""
PROPERTIES = "server.properties"
DATA = "data"
CLUSTER_ID = "cluster-id"
STARTED = "Kafka Server started"
LOGGING = {
    "defaultLogLevel": "warn",
    "log.kafka.server.KafkaRaftServer": "info",
    "showDateTime": "true",
    "dateTimeFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSZ",
}
API_VERSIONS = struct.pack(">hhih", 18, 0, 1, -1)
"""The first request of every client: which versions it speaks (version 0, number 1, no name)."""


class Kafka(Server):
    """One Kafka node, alone or in a cluster. The first start on a machine downloads it. `options` are for Java."""

    kind = "kafka"
    port_count = 2

    def __init__(
        self, home: Path, *, options: Sequence[str] = QUICK, cluster: "KafkaCluster | None" = None, **how: Any
    ) -> None:
        super().__init__(home, **how)
        self._options = [HEAP if cluster is None else SMALL_HEAP, *options]
        self._cluster = cluster
        self._java: list[str | Path] = []

    @property
    def url(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def data(self) -> Path:
        return self.home / DATA

    def prepare(self, report: Report) -> str:
        java, libraries = find_java(), jars(f"kafka-{VERSION}", JARS, report)
        logging = [f"-Dorg.slf4j.simpleLogger.{name}={value}" for name, value in LOGGING.items()]
        self._java = [java, *self._options, "-Dfile.encoding=UTF-8", *logging, "-cp", f"{libraries}/*"]
        return VERSION

    def command(self) -> Sequence[str | Path]:
        """Java with the jars. The first start formats the data directory."""
        lines = (f"{name}={value}\n" for name, value in self.properties().items())
        (self.home / PROPERTIES).write_text("".join(lines))
        if not (self.data / "meta.properties").exists():
            self._format()
        return [*self._java, "kafka.Kafka", PROPERTIES]

    def properties(self) -> dict[str, object]:
        nodes = self._cluster.nodes if self._cluster else [self]
        return _properties(nodes.index(self) + 1, [node.record.ports for node in nodes])

    def ask_whether_ready(self) -> bool:
        """Whether its log says that it has started, and it answers a request."""
        if STARTED not in self.log.read_text("utf-8", "replace"):
            return False
        with socket.create_connection((HOST, self.port), timeout=2) as connection:
            connection.sendall(struct.pack(">i", len(API_VERSIONS)) + API_VERSIONS)
            answer = connection.recv(10, socket.MSG_WAITALL)
        return len(answer) == 10 and answer[4:] == struct.pack(">ih", 1, 0)

    def _format(self) -> None:
        name = self.home / CLUSTER_ID
        if not name.exists():
            name.write_text(_new_id())
        words = ["kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", name.read_text(), "-c", PROPERTIES]
        self.run_first("formatted", *self._java, *words)


def _new_id() -> str:
    """A cluster id. It must not begin with a hyphen, which would look like an option."""
    return "r" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode()[1:22]


class KafkaCluster(Cluster[Kafka]):
    """Nodes that are broker and controller each. Kafka runs while most of them do."""

    kind = "kafka"

    def __init__(self, home: Path, *, brokers: int = 3, **how: Any) -> None:
        super().__init__(home, brokers, Kafka, cluster=self, **how)

    @property
    def url(self) -> str:
        """All brokers, any of which tells a client about the others."""
        return ",".join(node.url for node in self.nodes)

    def start(self, report: Report = lambda _: None) -> Self:
        """Returns when all nodes answer; none can before most of them run."""
        self._prepare(report)
        return super().start(report)

    def _prepare(self, report: Report) -> None:
        """Give every node the ports of all nodes and the cluster id before the first one starts."""
        jars(f"kafka-{VERSION}", JARS, report)  # downloaded once, not by each node
        fresh = iter(free_ports(Kafka.port_count * len(self.nodes)))
        name = next((read for node in self.nodes if (read := node.home / CLUSTER_ID).exists()), None)
        identity = _new_id() if name is None else name.read_text()
        for node in self.nodes:
            node.record.ports = node.record.ports or [next(fresh) for _ in range(Kafka.port_count)]
            node.home.mkdir(parents=True, exist_ok=True)
            (node.home / CLUSTER_ID).write_text(identity)


def _properties(number: int, ports: Sequence[Sequence[int]]) -> dict[str, object]:
    """The properties of one node, from the ports of all (broker, controller). Consumers join groups without a delay."""
    port, controller_port, *_ = ports[number - 1]
    voters = ",".join(f"{node}@{HOST}:{of[1]}" for node, of in enumerate(ports, 1))
    topics = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
    return {
        "process.roles": "broker,controller",
        "node.id": number,
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": DATA,
        **{f"{topic}.replication.factor": len(ports) for topic in topics},
        **{f"{topic}.num.partitions": 1 for topic in topics},
        "transaction.state.log.min.isr": min(2, len(ports)),
        "share.coordinator.state.topic.min.isr": min(2, len(ports)),
        "group.initial.rebalance.delay.ms": 0,
        # After a crash, a node waits until its old session expires: 9 s by default.
        "broker.session.timeout.ms": 2_000,
        "broker.heartbeat.interval.ms": 500,
    }
