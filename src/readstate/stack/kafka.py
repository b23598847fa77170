"""Apache Kafka: one node that is broker and controller, from Maven's jars."""

import base64
import secrets
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .maven import find_java, jars
from .ports import HOST
from .processes import run
from .server import Report, Server, ServerFailed

VERSION = "4.1.1"
JARS = [("org.apache.kafka", "kafka_2.13", VERSION), ("org.slf4j", "slf4j-simple", "1.7.36")]
HEAP = "-Xmx512m"
QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Starts with half the work. A benchmark, which runs for longer, is better off without."""
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
    """One Kafka node. The first start on a machine fetches it. `options` are for Java."""

    kind = "kafka"
    port_count = 2

    def __init__(self, home: Path, *, options: Sequence[str] = QUICK, **how: Any) -> None:
        super().__init__(home, **how)
        self._options = options
        self._java: list[str | Path] = []

    @property
    def url(self) -> str:
        """Where clients begin (bootstrap)."""
        return f"{HOST}:{self.port}"

    @property
    def data(self) -> Path:
        """Topics and metadata."""
        return self.home / DATA

    def prepare(self, report: Report) -> str:
        """Find Java, and fetch Kafka if this machine has not got it yet."""
        java, libraries = find_java(), jars(f"kafka-{VERSION}", JARS, report)
        logging = [f"-Dorg.slf4j.simpleLogger.{name}={value}" for name, value in LOGGING.items()]
        self._java = [java, HEAP, *self._options, "-Dfile.encoding=UTF-8", *logging, "-cp", f"{libraries}/*"]
        return VERSION

    def command(self) -> Sequence[str | Path]:
        """Java with the jars; the data directory is formatted at the first start."""
        lines = (f"{name}={value}\n" for name, value in self.properties().items())
        (self.home / PROPERTIES).write_text("".join(lines))
        if not (self.data / "meta.properties").exists():
            self._format()
        return [*self._java, "kafka.Kafka", PROPERTIES]

    def properties(self) -> dict[str, object]:
        """How it runs, in Kafka's words."""
        return _properties(*self.record.ports[: Kafka.port_count])

    def answers(self) -> bool:
        """It says in its log that it has started, and it answers."""
        try:
            if STARTED not in self.log.read_text("utf-8", "replace"):
                return False
            with socket.create_connection((HOST, self.port), timeout=2) as connection:
                connection.sendall(struct.pack(">i", len(API_VERSIONS)) + API_VERSIONS)
                answer = connection.recv(10, socket.MSG_WAITALL)
        except OSError:
            return False
        return len(answer) == 10 and answer[4:] == struct.pack(">ih", 1, 0)

    def _format(self) -> None:
        """Give the data directory the identity of its cluster."""
        name = self.home / CLUSTER_ID
        if not name.exists():
            # A leading hyphen would be taken for an option.
            name.write_text("r" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode()[1:22])
        words = ["kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", name.read_text(), "-c", PROPERTIES]
        done = run([*self._java, *words], directory=self.home)
        if done.returncode:
            raise ServerFailed(f"kafka: the data directory cannot be made: {(done.stderr or done.stdout).strip()}")


def _properties(port: int, controller_port: int) -> dict[str, object]:
    """One node alone: every topic has one replica, and consumers need not wait for others to join."""
    alone = {
        f"{topic}.{name}": 1
        for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
        for name in ("replication.factor", "num.partitions")
    }
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": DATA,
        **alone,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        # After a crash the node waits until its former self is given up: 9 s by default.
        "broker.session.timeout.ms": 2_000,
        "broker.heartbeat.interval.ms": 500,
    }
