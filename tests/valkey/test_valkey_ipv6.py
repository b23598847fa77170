"""A Cluster whose servers know each other by IPv6 addresses."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from readstate.adapters.valkey import Call, ValkeyClient, slot_of
from readstate.adapters.valkey.doctor import valkey
from readstate.adapters.valkey.functions import COMMAND
from readstate.stack import ValkeyCluster
from readstate.timings import ValkeyTimings

SIXTH = {"bind": "127.0.0.1 ::1", "cluster-announce-ip": "::1"}


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyCluster]:
    with ValkeyCluster(tmp_path_factory.mktemp("ipv6") / "cluster", persistent=False, settings=SIXTH) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def url(cluster: ValkeyCluster) -> str:
    return "redis+cluster://" + ",".join(f"[::1]:{node.port}" for node in cluster.nodes)


def owner(cluster: ValkeyCluster, slot: int) -> int:
    """Which node has a slot."""
    return next(number for number in range(3) if slot < 16_384 * (number + 1) // 3)


async def test_calls_reach_every_server(url: str) -> None:
    client = ValkeyClient(url, ValkeyTimings())
    try:
        calls = [Call(slot_of(key), [key], ["SET", key]) for key in ("a", "b", "c", "d", "e", "f")]
        assert {call.slot * 3 // 16_384 for call in calls} == {0, 1, 2}
        assert (await client.run(COMMAND, calls)).values == [b"OK"] * 6
        assert len(await client.masters()) == 3
    finally:
        await client.close()


async def test_a_slot_on_its_way_is_followed(cluster: ValkeyCluster, url: str) -> None:
    slot = slot_of("moving")
    source = cluster.nodes[owner(cluster, slot)]
    target = cluster.nodes[(owner(cluster, slot) + 1) % 3]
    target.demand("CLUSTER", "SETSLOT", str(slot), "IMPORTING", source.demand("CLUSTER", "MYID"))
    source.demand("CLUSTER", "SETSLOT", str(slot), "MIGRATING", target.demand("CLUSTER", "MYID"))
    client = ValkeyClient(url, ValkeyTimings())
    try:
        assert (await client.run(COMMAND, [Call(slot, ["moving"], ["SET", "here"])])).values == [b"OK"]
    finally:
        await client.close()
        for node in (target, source):
            node.demand("CLUSTER", "SETSLOT", str(slot), "STABLE")


async def test_doctor_looks_at_every_server(cluster: ValkeyCluster, url: str) -> None:
    found = await valkey("hot store", "hot_url", url)
    assert [one for one in found if one.state == "fail"] == []
    assert [one.check for one in found if "down" in one.detail and one.detail.startswith("down:")] == []
    nodes = await asyncio.to_thread(cluster.nodes[0].demand, "CLUSTER", "NODES")
    assert "::1:" in nodes
