"""Valkey Cluster: masters that share all slots, each optionally with replicas."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from .ports import HOST
from .processes import MOMENT
from .server import START_SECONDS, Cluster, Report, ServerFailed
from .valkey import Valkey

MASTERS = 3
SLOTS = 16_384
FORMED = "formed"
"""This file exists once the slots are assigned: from then on the nodes find each other."""


class ClusterNode(Valkey):
    kind = "valkey-cluster"
    port_count = 2

    def own_settings(self) -> Mapping[str, str]:
        """A second port for the cluster bus, and delays shortened for a single machine."""
        return {
            "cluster-enabled": "yes",
            "cluster-config-file": "nodes.conf",
            "cluster-port": str(self.record.ports[1]),
            "cluster-node-timeout": "2000",
            "repl-diskless-sync-delay": "0",
        }

    def demand(self, *words: str) -> str:
        """Send a command that must succeed."""
        answer = self.ask(*words)
        if answer.startswith(("ERR", "CLUSTERDOWN")):
            raise ServerFailed(f"valkey-cluster refuses {' '.join(words)}: {answer}")
        return answer


class ValkeyCluster(Cluster[ClusterNode]):
    """Three masters with `replicas` each; `nodes` lists the masters first."""

    kind = "valkey-cluster"

    def __init__(self, home: Path, *, replicas: int = 0, **how: Any) -> None:
        super().__init__(home, MASTERS * (1 + replicas), ClusterNode, **how)

    @property
    def url(self) -> str:
        """All nodes, any of which tells a client about the others."""
        return "redis+cluster://" + ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    def start(self, report: Report = lambda _: None) -> Self:
        """Returns when the Cluster accepts requests for all slots."""
        super().start()
        if not (self.home / FORMED).exists():
            report("assigning the slots")
            self._form()
        _wait_until(self.is_whole, "the Cluster is whole")
        return self

    def is_whole(self) -> bool:
        """Whether every node sees all others and accepts requests for all slots."""
        try:
            states = [node.info("cluster info") for node in self.nodes]
            links = [node.info("replication") for node in self.nodes]
        except OSError:
            return False
        return all(
            state.get("cluster_state") == "ok"
            and state.get("cluster_known_nodes") == str(len(self.nodes))
            and link.get("master_link_status", "up") == "up"
            for state, link in zip(states, links, strict=True)
        )

    def _form(self) -> None:
        """Form a Cluster from nodes without data. Starts over if an earlier attempt was interrupted."""
        for node in self.nodes:
            node.demand("CLUSTER", "RESET", "HARD")
        for epoch, (node, (first, last)) in enumerate(zip(self.nodes, _slot_ranges(), strict=False), 1):
            node.demand("CLUSTER", "ADDSLOTSRANGE", str(first), str(last))
            node.demand("CLUSTER", "SET-CONFIG-EPOCH", str(epoch))
        first_node, *others = self.nodes
        for node in others:
            first_node.demand("CLUSTER", "MEET", HOST, str(node.port), str(node.record.ports[1]))
        _wait_until(self.is_whole, "the nodes know each other")
        for number, node in enumerate(self.nodes[MASTERS:]):
            node.demand("CLUSTER", "REPLICATE", self.nodes[number % MASTERS].demand("CLUSTER", "MYID"))
        _wait_until(self._has_its_replicas, "the replicas follow their masters")
        (self.home / FORMED).touch()

    def _has_its_replicas(self) -> bool:
        roles = [node.info("replication").get("role") for node in self.nodes[MASTERS:]]
        return all(role == "slave" for role in roles) and self.is_whole()


def _slot_ranges() -> Iterator[tuple[int, int]]:
    for number in range(MASTERS):
        yield SLOTS * number // MASTERS, SLOTS * (number + 1) // MASTERS - 1


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise ServerFailed(f"valkey-cluster: did not get ready in {START_SECONDS:.0f} s: waited until {what}")
        time.sleep(5 * MOMENT)
