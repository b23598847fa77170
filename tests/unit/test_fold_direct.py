"""A direct channel that has more than two members from an earlier version keeps them, and takes nobody."""

import pytest
from msgspec import UNSET

from readstate.domain.errors import DirectChannelFull
from readstate.domain.events import ChannelEvent, Delivery, MembersEvent
from readstate.domain.facts import Effect, Facts
from readstate.domain.folding.messages import fold
from readstate.domain.model import Channel, Member

NOW = 1_700_000_000_000
PEOPLE = ("ann", "bob", "cid")


def after(event: ChannelEvent | MembersEvent) -> Effect:
    """What becomes of an event in a direct channel of three."""
    channel = Channel("c", type="direct", name="old", member_count=3)
    members = {("c", user): Member("c", user, joined_at=NOW) for user in PEOPLE}
    facts = Facts(channels={"c": channel}, members=members, audience={"c": PEOPLE})
    changes, [effect] = fold([Delivery(event, 1)], facts, 100, ())
    assert (effect.error is None) or not (changes.channels or changes.members or changes.pointers)
    return effect


@pytest.mark.parametrize(("add", "remove"), [(("dan",), ()), (("dan",), ("ann",)), (("dan",), ("ann", "x"))])
def test_it_takes_nobody_while_two_would_be_passed(add: tuple[str, ...], remove: tuple[str, ...]) -> None:
    effect = after(MembersEvent(channel_id="c", created_at=NOW, add=add, remove=remove))
    assert isinstance(effect.error, DirectChannelFull)
    assert effect.error.field == "add"


def test_members_may_leave_be_added_again_and_make_way() -> None:
    left = after(MembersEvent(channel_id="c", created_at=NOW, remove=("cid",)))
    assert (left.error, left.channel and left.channel.member_count) == (None, 2)
    assert left.channel is not None
    assert left.channel.peers == ("ann", "bob")
    assert after(MembersEvent(channel_id="c", created_at=NOW, add=PEOPLE)).error is None
    changed = after(MembersEvent(channel_id="c", created_at=NOW, add=("dan",), remove=("ann", "bob")))
    assert (changed.error, changed.added, changed.removed) == (None, 1, 2)


def test_it_may_be_renamed_and_become_a_group() -> None:
    for type_ in (UNSET, "direct", "group"):
        effect = after(ChannelEvent(channel_id="c", created_at=NOW, type=type_, name="new"))
        assert effect.error is None
        assert effect.channel is not None
        assert effect.channel.name == "new"
