"""A Cluster under load: masters that die, replicas that were behind, and slots that move."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from readstate.adapters.valkey import ValkeyClient
from readstate.adapters.valkey.keys import shard_of
from readstate.api import PutChannel, ReadTarget
from readstate.stack import ValkeyCluster
from readstate.stack.cluster import ClusterNode
from tests.conftest import eventually

from .on_servers import BIG, SMALL, Insistence, clients, count, hot, impatient, message, on_servers, two_channels


@pytest.fixture(scope="module")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyCluster]:
    """Three masters, each with a replica."""
    with ValkeyCluster(tmp_path_factory.mktemp("faults") / "cluster", replicas=1, persistent=False) as cluster:
        yield cluster


@pytest.fixture
async def cluster(replicated: ValkeyCluster) -> ValkeyCluster:
    await asyncio.to_thread(replicated.start)
    return replicated


def masters(cluster: ValkeyCluster) -> list[ClusterNode]:
    return [node for node in cluster.nodes if node.is_running and node.info("replication")["role"] == "master"]


def replica_of(cluster: ValkeyCluster, master: ClusterNode) -> ClusterNode:
    found = [node for node in cluster.nodes if node.info("replication").get("master_port") == str(master.port)]
    return found[0]


async def falls_behind(replica: ClusterNode, master: ClusterNode) -> None:
    """From now on it gets nothing of what its master is told."""
    replica.ask("CONFIG", "SET", "masteruser", "nobody")
    replica.ask("CONFIG", "SET", "masterauth", "wrong")
    master.ask("CLIENT", "KILL", "TYPE", "replica")

    async def is_cut_off() -> bool:
        return replica.info("replication")["master_link_status"] == "down"

    await eventually(is_cut_off, "the replica has lost its master")


async def takes_over(node: ClusterNode) -> None:
    async def is_master() -> bool:
        return node.info("replication")["role"] == "master" and node.info("cluster info")["cluster_state"] == "ok"

    await eventually(is_master, "the replica is the master")
    node.ask("CONFIG", "SET", "masteruser", "")
    node.ask("CONFIG", "SET", "masterauth", "")


async def test_a_master_dies_and_its_replica_was_behind(cluster: ValkeyCluster, tmp_path: Path) -> None:
    async with on_servers(tmp_path, cluster.url) as rs:
        people = clients(rs, 1)
        await people.gather()
        await people.act(60)
        master = masters(cluster)[0]
        replica = replica_of(cluster, master)
        await falls_behind(replica, master)
        await people.act(60)

        async def dies() -> None:
            await asyncio.to_thread(master.kill)
            await takes_over(replica)
            await asyncio.to_thread(master.start)

        await people.act(100, [(10, dies)])
        await people.check_after_reloading()
        assert people.refusals.keys() <= {"hot_store_unavailable"}


def id_on(cluster: ValkeyCluster, node: ClusterNode, kind: str, slots: Callable[[str], int]) -> str:
    """An id whose keys lie on a master."""
    return next(name for n in range(10_000) if (name := f"{kind}{n}") and owner_of(cluster, slots(name)) is node)


def owner_of(cluster: ValkeyCluster, slot: int) -> ClusterNode:
    """Who has a slot, as the masters themselves say."""
    for node in masters(cluster):
        for line in node.ask("CLUSTER", "NODES").splitlines():
            words = line.split()
            if "myself" in words[2]:
                for piece in words[8:]:
                    first, _, last = piece.partition("-")
                    if not piece.startswith("[") and int(first) <= slot <= int(last or first):
                        return node
    raise AssertionError(f"nobody has slot {slot}")


async def test_those_whose_servers_stand_go_on_when_another_master_has_failed_over(
    cluster: ValkeyCluster, tmp_path: Path
) -> None:
    first, second, third = masters(cluster)
    async with on_servers(tmp_path, cluster.url) as rs:
        keys, shards = hot(rs).users._calls.keys, hot(rs).channels._keys
        alice, bob = (id_on(cluster, first, kind, lambda id_: keys.of(id_)[0]) for kind in ("alice", "bob"))
        room = id_on(cluster, second, "room", lambda id_: shards.latest(shard_of(id_))[0])
        await rs.channels.put(room, PutChannel(type="group", members=(alice, bob)))
        await rs.messages.send([message(alice, "m1", room)])
        assert await count(rs, bob, room) == 1
        replica = replica_of(cluster, third)
        await asyncio.to_thread(third.kill)
        await takes_over(replica)

        client = Insistence()
        await client.insist(lambda: rs.reads.mark_read(bob, room, ReadTarget(up_to="m1")))
        await client.insist(lambda: rs.messages.send([message(alice, "m2", room)]))
        assert await client.insist(lambda: count(rs, bob, room)) == 1


async def test_a_master_that_was_a_replica_for_a_time_is_not_taken_for_the_one_it_was(
    cluster: ValkeyCluster, tmp_path: Path
) -> None:
    """The connections to it stay open all the time; but it has missed what its successor was told."""
    one = masters(cluster)[0]
    other = replica_of(cluster, one)
    async with on_servers(tmp_path, cluster.url) as rs:
        people = clients(rs, 2)
        await people.gather()
        await people.act(40)
        other.demand("CLUSTER", "FAILOVER")
        await takes_over(other)
        await people.act(40)

        async def follows() -> bool:
            return one.info("replication").get("master_link_status") == "up"

        await eventually(follows, "the old master follows the new one")
        await falls_behind(one, other)
        await people.act(60)
        await asyncio.to_thread(other.kill)
        await takes_over(one)
        await people.check_after_reloading()


# ---------------------------------------------------------------- slots on the move


class Mover:
    """Moves slots from one master to another, key by key, as operators do."""

    def __init__(self, cluster: ValkeyCluster) -> None:
        self._cluster = cluster
        self.met: Counter[str] = Counter()
        """How often the service met what."""

    async def move(
        self, slot: int, target: ClusterNode, before_the_end: Callable[[], Awaitable[bool]] | None = None
    ) -> None:
        """The last step waits for a condition, if there is one."""
        source = owner_of(self._cluster, slot)
        if source is target:
            return
        to, from_ = target.demand("CLUSTER", "MYID"), source.demand("CLUSTER", "MYID")
        target.demand("CLUSTER", "SETSLOT", str(slot), "IMPORTING", from_)
        source.demand("CLUSTER", "SETSLOT", str(slot), "MIGRATING", to)
        async with Redis(port=source.port) as client:
            while keys := await client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1):  # type: ignore[no-untyped-call]
                await client.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)  # type: ignore[no-untyped-call]
        if before_the_end is not None:
            await eventually(before_the_end, "the service has met the slot on its way")
        for node in (target, source, *masters(self._cluster)):
            node.demand("CLUSTER", "SETSLOT", str(slot), "NODE", to)

    def watch(self, client: ValkeyClient) -> None:
        """Notes what the servers answer to the service."""
        call = client._send

        async def watched(*args: Any, **named: Any) -> list[Any]:
            values = await call(*args, **named)
            self.met.update(type(value).__name__ for value in values if isinstance(value, Exception))
            return values

        client._send = watched  # type: ignore[method-assign]


async def test_slots_move_while_people_go_on(cluster: ValkeyCluster, tmp_path: Path) -> None:
    async with on_servers(tmp_path, cluster.url) as rs:
        people = clients(rs, 3)
        await people.gather()
        mover = Mover(cluster)
        mover.watch(hot(rs)._client)
        keys, shards = hot(rs).users._calls.keys, hot(rs).channels._keys
        slots = [keys.of(user)[0] for user in people.users] + [
            shards.latest(shard_of(room))[0] for room in (SMALL, BIG)
        ]

        async def moves(slot: int, by: int) -> None:
            places = masters(cluster)
            await mover.move(slot, places[(places.index(owner_of(cluster, slot)) + by) % len(places)])

        there = [(10 * n, lambda slot=slot: moves(slot, 1)) for n, slot in enumerate(slots, 1)]
        back = [(100 + 10 * n, lambda slot=slot: moves(slot, 2)) for n, slot in enumerate(slots, 1)]
        await people.act(250, there + back)
        await people.check_after_reloading()
        assert {"MovedError", "TryAgainError"} <= mover.met.keys()
        assert people.refusals.keys() <= {"hot_store_unavailable"}


async def test_a_slot_is_asked_for_where_it_goes_to(cluster: ValkeyCluster, tmp_path: Path) -> None:
    """Half-way, a key is asked for at the new place; what needs several keys has to wait until the slot is there."""
    async with on_servers(tmp_path, cluster.url) as rs:
        await two_channels(rs)
        await rs.messages.send([message("alice", "m1")])
        mover = Mover(cluster)
        mover.watch(hot(rs)._client)
        slot = hot(rs).users._calls.keys.of("bob")[0]
        client = Insistence()

        async def asked() -> bool:
            return {"AskError", "TryAgainError"} <= mover.met.keys()

        target = next(node for node in masters(cluster) if node is not owner_of(cluster, slot))
        with impatient(rs):
            moving = asyncio.create_task(mover.move(slot, target, asked))
            while not moving.done():
                await client.insist(lambda: rs.reads.mark_read("bob", SMALL, ReadTarget(up_to="m1")))
            await moving
        await client.insist(lambda: rs.messages.send([message("alice", "m2")]))
        assert await client.insist(lambda: count(rs, "bob")) == 1
        assert client.refusals.keys() <= {"hot_store_unavailable"}


async def test_the_first_slots_of_masters_move(cluster: ValkeyCluster, tmp_path: Path) -> None:
    """There lie the markers of the generation."""
    async with on_servers(tmp_path, cluster.url) as rs:
        people = clients(rs, 4)
        await people.gather()
        mover = Mover(cluster)
        first = [min(slot for slot in (0, 5461, 10922) if owner_of(cluster, slot) is node) for node in masters(cluster)]
        places = masters(cluster)
        for n, slot in enumerate(first):
            await people.act(20)
            await mover.move(slot, places[(n + 1) % 3])
        await people.act(40)
        await people.check_after_reloading()
        for n, slot in enumerate(first):
            await mover.move(slot, places[n])
        await people.act(40)
        await people.check_after_reloading()
