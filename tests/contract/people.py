"""A channel with three members, and what happens in it, for tests of durable stores."""

import itertools
from collections.abc import Sequence

from readstate.domain.events import (
    AnyChannelEvent,
    ChannelEvent,
    Delivery,
    MembersEvent,
    MessageEvent,
    ReadEvent,
)
from readstate.domain.facts import Effect
from readstate.domain.model import ChangeNumber
from readstate.domain.rooms import thread_room
from readstate.ports import Durable
from tests.online import only

NOW = 1_700_000_000_000
ROOM = thread_room("c", "root")
positions = itertools.count(1)
times = itertools.count(NOW + 1)


async def apply(durable: Durable, *events: AnyChannelEvent, online: Sequence[str] = ()) -> list[Effect]:
    return await durable.apply([Delivery(event, next(positions)) for event in events], online=only(*online))


def say(id_: str, sender: str = "alice", **more: object) -> MessageEvent:
    at = next(times)
    fields: dict[str, object] = {"text": id_, "at": at, "channel_id": "c", "created_at": at, **more}
    return MessageEvent(id=id_, sender_id=sender, **fields)  # type: ignore[arg-type]


def members(*add: str, remove: tuple[str, ...] = (), **more: object) -> MembersEvent:
    return MembersEvent(channel_id="c", created_at=NOW, add=add, remove=remove, **more)  # type: ignore[arg-type]


def read(user: str, seq: int, apart: tuple[int, ...] = (), epoch: int = 0, read_at: int = NOW) -> ReadEvent:
    return ReadEvent(user, "c", epoch, seq, apart, f"m{seq}", NOW + seq, read_at, ChangeNumber(7), NOW)


async def a_channel_with_three(durable: Durable) -> None:
    put = ChannelEvent(channel_id="c", created_at=NOW, type="group")
    await apply(durable, put, members("alice", "bob", "carol"))
