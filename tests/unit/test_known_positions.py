"""A read up to a message whose position is known needs no look at its channel."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from readstate import Readstate
from readstate.api import ChangeMembers, NewMessage, PutChannel, ReadTarget, UserRead
from readstate.domain.announcements import MessageCame
from readstate.domain.errors import ChannelNotFound, NotAMember
from readstate.domain.model import Channel, Message, Position
from readstate.ports.consistency import Lookups
from readstate.services.positions import Positions
from readstate.services.read_targets import ReadTargets


class Counted:
    """Lookups that note the channels they were asked for."""

    def __init__(self, direct: Lookups) -> None:
        self._direct = direct
        self.asked: list[str] = []

    async def channel(self, id_: str) -> Channel:
        self.asked.append(id_)
        return await self._direct.channel(id_)

    async def channels(self, ids: Sequence[str]) -> list[Channel | None]:
        self.asked += ids
        return await self._direct.channels(ids)

    async def counts(self, queries: Any) -> Any:
        return await self._direct.counts(queries)

    async def close(self) -> None:
        await self._direct.close()


@pytest.fixture
async def rs(tmp_path: Path) -> AsyncIterator[Readstate]:
    async with Readstate.open(data_dir=str(tmp_path)) as rs:
        await rs.channels.put("c", PutChannel(type="group", members=("alice", "bob")))
        await say(rs, "m1", "m2", "m3")
        yield rs


@pytest.fixture
def lookups(rs: Readstate) -> Counted:
    targets: ReadTargets = rs.reads._targets
    targets._lookups = counted = Counted(targets._lookups)
    return counted


async def say(rs: Readstate, *ids: str) -> None:
    await rs.messages.send([NewMessage(channel_id="c", sender_id="alice", id=id_) for id_ in ids])


@pytest.mark.parametrize("target", [ReadTarget(up_to="m2"), ReadTarget(up_to_seq=2)])
async def test_a_known_message(rs: Readstate, lookups: Counted, target: ReadTarget) -> None:
    result = await rs.reads.mark_read("bob", "c", target)

    assert (result.last_read.id, result.last_read.seq, result.unread) == ("m2", 2, 1)
    assert lookups.asked == []


@pytest.mark.parametrize(
    "target", [ReadTarget(), ReadTarget(up_to_time=2**45), ReadTarget(up_to_seq=9), ReadTarget(messages=("m1",))]
)
async def test_everything_else_asks_for_the_channel(rs: Readstate, lookups: Counted, target: ReadTarget) -> None:
    await rs.reads.mark_read("bob", "c", target)

    assert lookups.asked == ["c"]


async def test_reads_of_many_users_keep_their_places(rs: Readstate, lookups: Counted) -> None:
    reads = [
        UserRead(user_id="bob", channel_id="c", up_to_seq=1),
        UserRead(user_id="bob", channel_id="no such channel", up_to_seq=1),
        UserRead(user_id="carol", channel_id="c", up_to="m2"),
        UserRead(user_id="bob", channel_id="c"),
    ]

    outcomes = await rs.reads.mark_many(reads)

    assert [(one.status, one.code) for one in outcomes] == [
        ("ok", UNSET),
        ("rejected", "channel_not_found"),
        ("rejected", "not_a_member"),
        ("ok", UNSET),
    ]
    assert sorted(set(lookups.asked)) == ["c", "no such channel"]
    assert (await rs.unread.of_channel("bob", "c")).unread == 0


async def test_a_known_message_of_a_channel_that_is_gone(rs: Readstate) -> None:
    targets = rs.reads._targets
    old = targets._positions.known("c", "m2")
    assert old is not None
    await rs.channels.delete("c")
    targets._positions._known["c", "m2"] = old  # another process has deleted the channel

    with pytest.raises(ChannelNotFound):
        await rs.reads.mark_read("bob", "c", ReadTarget(up_to="m2"))

    await rs.channels.put("c", PutChannel(type="group", members=("alice",)))
    targets._positions._known["c", "m2"] = old
    with pytest.raises(NotAMember):
        await rs.reads.mark_read("bob", "c", ReadTarget(up_to="m2"))

    await rs.channels.change_members("c", ChangeMembers(add=("bob",), history="unread"))
    await say(rs, "m4")
    targets._positions._known["c", "m2"] = old
    await rs.reads.mark_read("bob", "c", ReadTarget(up_to="m2"))
    assert (await rs.unread.of_channel("bob", "c")).unread == 1  # a late read of the old channel hides nothing


def test_announced_messages_are_known() -> None:
    positions = Positions(None, None)  # type: ignore[arg-type]
    reply = Message(channel_id="c", id="reply", sender_id="alice", at=8, seq=None)
    message = Message(channel_id="c", id="m7", sender_id="alice", at=7, seq=7)

    positions.on_announcements([MessageCame(message, "here"), MessageCame(reply, "here")])

    assert positions.known("c", "m7") == positions.known("c", 7) == Position(7, "m7", 7)
    assert positions.known("c", "reply") is None
    assert positions.known("c", "m8") is None
