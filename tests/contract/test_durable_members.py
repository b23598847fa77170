"""What every durable store refuses of members: a third in a direct channel, a follower from outside of the channel."""

from itertools import count

import pytest

from readstate.domain.errors import DirectChannelFull, NotAMember
from readstate.domain.events import ChannelEvent, Delivery, MembersEvent, MessageEvent
from readstate.ports import Durable
from tests.online import nobody

NOW = 1_700_000_000_000
times = count(NOW + 1)
offsets = count(0)


def add(*users: str, remove: tuple[str, ...] = (), thread: str | None = None) -> MembersEvent:
    return MembersEvent(channel_id="c", created_at=next(times), add=users, remove=remove, thread_id=thread)


def deliver(event: ChannelEvent | MembersEvent | MessageEvent) -> Delivery:
    return Delivery(event, next(offsets), part=0)


@pytest.fixture(autouse=True)
async def _a_direct_channel(durable: Durable) -> None:
    put = ChannelEvent(channel_id="c", created_at=NOW, type="direct")
    message = MessageEvent(id="root", sender_id="ann", at=NOW, channel_id="c", created_at=NOW)
    await durable.apply([deliver(put), deliver(add("ann")), deliver(message)], nobody, "log")


async def people(durable: Durable) -> list[str]:
    return [member.user_id for member in await durable.members("c", "", 10)]


async def test_of_adds_in_one_batch_the_first_is_taken(durable: Durable) -> None:
    batch = [deliver(add("bob")), deliver(add("cid")), deliver(add("ann", "bob")), deliver(add("dan", "eve"))]
    effects = await durable.apply(batch, nobody, "log")
    assert [type(effect.error) for effect in effects] == [type(None), DirectChannelFull, type(None), DirectChannelFull]
    assert await people(durable) == ["ann", "bob"]
    assert (await durable.load_channels(["c"]))["c"].member_count == 2


async def test_a_refused_add_that_comes_again_is_refused_again(durable: Durable) -> None:
    """The first writer may have died before anybody was answered."""
    batch = [deliver(add("bob")), deliver(add("cid"))]
    await durable.apply(batch, nobody, "log")
    taken, refused = await durable.apply(batch, nobody, "log")
    assert (taken.error, taken.added) == (None, 1)
    assert isinstance(refused.error, DirectChannelFull)
    assert await people(durable) == ["ann", "bob"]


async def test_an_add_that_comes_again_after_its_member_has_left_was_taken(durable: Durable) -> None:
    joins = deliver(add("bob"))
    await durable.apply([joins, deliver(add("cid", remove=("bob",)))], nobody, "log")
    [again] = await durable.apply([joins], nobody, "log")
    assert again.error is None
    assert await people(durable) == ["ann", "cid"]


async def test_whoever_left_before_the_log_has_a_follow_does_not_follow(durable: Durable) -> None:
    await durable.apply([deliver(add("bob")), deliver(add(remove=("bob",)))], nobody, "log")
    late = deliver(add("bob", thread="root"))
    [effect] = await durable.apply([late], nobody, "log")
    [again] = await durable.apply([late], nobody, "log")
    assert isinstance(effect.error, NotAMember)
    assert isinstance(again.error, NotAMember)
    assert [user_room.channel_id for user_room in await durable.load_user("bob")] == ["c"]
    [follows] = await durable.apply([deliver(add("ann", thread="root"))], nobody, "log")
    assert (follows.error, follows.added) == (None, 1)
