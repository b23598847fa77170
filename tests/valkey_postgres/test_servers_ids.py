"""Ids of every kind over Valkey: each has its slot, none is taken for another; and nothing stays for ever."""

import asyncio
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from redis.crc import key_slot

from readstate.adapters.valkey import ValkeyClient, slot_of, tag_of
from readstate.adapters.valkey.keys import ChannelKeys, shard_of
from readstate.adapters.valkey.user_rooms import UserKeys
from readstate.api import PutChannel, PutPreferences, ReadTarget, UserRead
from readstate.stack import Valkey, ValkeyCluster
from tests.conftest import eventually
from tests.contract import valkey

from .on_servers import clients, count, message, on_servers

ODD = [
    *("a", "b", "a}", "{a", "{a}", "}{", "{}", "a}:b", "b}:c", "a:b", "b:c", ":", "::", "a:", ":a"),
    *("%", "%7B", "{", "%7D", "}", "%25", "%257B", "%3A", "%25:"),
    *("é", "e\u0301", "🦊", "{🦊}", "日本", "\u202e", "a b", " a", "a ", "*", "a*b?[c]", "\\", '"', "'"),
    *("0", "00", "-1", "1e3", "nil", "x" * 128, "{" * 128, "🦊" * 32, "x" * 127 + "}"),
]


def test_every_user_has_keys_of_its_own_in_one_slot() -> None:
    keys = UserKeys("p:")
    owners: dict[bytes, object] = {}
    for user in ODD:
        slot, own = keys.of(user)
        names = [*own, *(keys.ledger(user, room) for room in ODD)]
        assert {key_slot(name) for name in names} == {slot}
        for family, name in zip(itertools.chain(range(len(own)), ODD), names, strict=True):
            assert owners.setdefault(name, (user, family)) == (user, family)


def test_every_channel_has_keys_of_its_own_in_one_slot() -> None:
    keys = ChannelKeys("p:")
    owners: dict[str, str] = {}
    for room in ODD:
        slot, latest = keys.latest(shard_of(room))
        names = keys.timeline(room)
        assert {slot_of(name) for name in (latest, *names, *keys.staged(room, "load"))} == {slot}
        for name in names:
            assert owners.setdefault(name, room) == room


def test_a_tag_stands_for_one_id() -> None:
    assert len({tag_of(id_) for id_ in ODD}) == len(ODD)
    for id_ in ODD:
        tag = tag_of(id_)
        assert slot_of(f"x:{tag}:y}}:{{z") == key_slot(tag[1:-1].encode())


@pytest.fixture(params=[valkey.single, valkey.cluster], ids=["single", "cluster"])
def server(request: pytest.FixtureRequest) -> Valkey | ValkeyCluster:
    start: Callable[[], Valkey | ValkeyCluster] = request.param
    return start()


@pytest.mark.parametrize("fanout", [100, 1], ids=["ledger", "timeline"])
async def test_everyone_sees_only_what_is_theirs(server: Valkey | ValkeyCluster, tmp_path: Path, fanout: int) -> None:
    """Every room has another number of messages, and every user has read another number of them."""
    names = [*ODD[:5], *ODD[7:12], *ODD[15:19], *ODD[24:27], *ODD[-4:]]
    async with on_servers(tmp_path, server.url, fanout_max_members=fanout) as rs:
        for room in names:
            await rs.channels.put(room, PutChannel(type="group", members=("writer", *names)))
        sizes = {room: n % 7 + 1 for n, room in enumerate(names)}
        sent = await rs.messages.send(
            [message("writer", f"m{n}", room) for room in names for n in range(1, sizes[room] + 1)]
        )
        assert {one.status for one in sent} == {"accepted"}
        expected, reads = {}, []
        for (n, user), (k, room) in itertools.product(enumerate(names), enumerate(names)):
            place = (n * 3 + k) % (sizes[room] + 1)
            expected[user, room] = sizes[room] - place
            if place and k % 2:
                reads.append(UserRead(user_id=user, channel_id=room, up_to=f"m{place}"))
            elif place:
                one_by_one = tuple(f"m{j + 1}" for j in range(place))
                reads.append(UserRead(user_id=user, channel_id=room, messages=one_by_one))
        done = await rs.reads.mark_many(reads)
        assert {one.status for one in done} == {"ok"}

        async def counts() -> dict[tuple[str, str], int]:
            found: dict[tuple[str, str], int] = {}
            for user in names:
                page = await rs.unread.sync(user, only_unread=False)
                found |= {(user, row.channel_id): row.unread for row in page.channels}
            return found

        assert await counts() == expected
        await rs.evict()
        assert await counts() == expected
        for user, room in (("a}:b", "b:c"), ("a", "b}:c"), ("%7B", "{"), ("{", "%7B")):
            assert await count(rs, user, room) == expected[user, room]


# ---------------------------------------------------------------- what stays


async def keys_of(server: Valkey | ValkeyCluster, prefix: str) -> dict[str, int]:
    """All keys under a prefix, and for how many ms they stay; -1: for ever."""
    outside = ValkeyClient(server.url, valkey.PATIENT)
    found: dict[str, int] = {}
    for node in (await outside.masters()).values():
        async for key in node.scan_iter(match=f"{prefix}*", count=1000):
            left = await node.pttl(key)
            if left != -2:
                found[key.decode()] = left
    await outside.close()
    return found


def families(keys: Iterable[str]) -> set[str]:
    return {key.split(":")[1] for key in keys}


async def test_all_but_the_latest_of_channels_and_the_generation_expires(
    server: Valkey | ValkeyCluster, tmp_path: Path
) -> None:
    async with on_servers(tmp_path, server.url, key_prefix="busy:") as rs:
        people = clients(rs, 21)
        await people.gather()
        await people.act(200)
        await rs.preferences.put("ann", "small", PutPreferences(muted=True))
        for user in people.users:
            await rs.badge.count(user)
            await rs.unread.sync(user)
        found = await keys_of(server, "busy:")
    stays = {key for key, left in found.items() if left == -1}
    assert families(stays) == {"channel-latest", "generation"}
    assert {"read-pointer", "unread", "timeline", "badge", "inbox", "preferences"} <= families(found)


async def test_what_nobody_uses_is_gone_after_its_time(tmp_path: Path) -> None:
    """All of a user but the ledgers after the time that is set; the ledgers after twice that."""
    async with on_servers(tmp_path, valkey.single().url, key_prefix="short:", ledger_ttl=1) as rs:
        people = clients(rs, 22)
        await people.gather()
        await people.act(100)

        async def users_are_gone() -> bool:
            left = families(await keys_of(valkey.single(), "short:"))
            return left <= {
                "channel-latest",
                "generation",
                "libraries",
                "timeline",
                "everyone",
                "timeline-state",
                "badge",
                "senders",
            }

        await eventually(users_are_gone, "what was hot of users is gone")
        await people.check_after_reloading()


async def test_a_user_who_is_there_now_and_then_keeps_right_counts(tmp_path: Path) -> None:
    """Every state in which a part has expired and another has not."""
    async with on_servers(tmp_path, valkey.single().url, ledger_ttl=1) as rs:
        await rs.channels.put("room", PutChannel(type="group", members=("alice", "bob")))
        await rs.channels.put("other", PutChannel(type="group", members=("alice", "bob")))
        for n in range(1, 17):
            await rs.messages.send([message("alice", f"m{n}", "room"), message("alice", f"m{n}", "other")])
            if n % 3 == 0:
                await rs.reads.mark_read("bob", "other", ReadTarget(up_to=f"m{n}"))
            if n % 5 == 0:
                await rs.reads.mark_read("bob", "room", ReadTarget(messages=(f"m{n}",)))
            await asyncio.sleep(0.15)  # time itself is what this is about
            if n % 4 == 0:
                assert await count(rs, "bob", "room") == n - n // 5
                assert await count(rs, "bob", "other") == n % 3
