"""Presumed follows: who follows an imported thread although no record says so. Pure.

These are the author of the root, repliers and mentioned users; as in live traffic, only members of the channel. A
`follow` record replaces a presumed follow: see `folding.py`.
"""

from collections.abc import Iterable

from readstate.domain.facts import Key
from readstate.domain.model import Member, Preferences
from readstate.domain.rooms import thread_room

from .known import PRESUMED_AT, Concern, Known, KnownUserRoom, is_presumed
from .records import GivenRead, GivenUserRoom


def presumed_follows(concerns: Iterable[Concern], known: Known) -> list[GivenUserRoom]:
    """New follows of members who do not follow and never unfollowed; for presumed follows, advanced pointers."""
    found: dict[Key, Concern] = {}
    for one in concerns:
        key = (thread_room(one.channel_id, one.thread_id), one.user_id)
        found[key] = max(found.get(key, one), one, key=_weight)
    user_rooms = []
    for (room, user), one in found.items():
        in_channel = known.user_rooms.get((one.channel_id, user), KnownUserRoom()).member
        user_room = known.user_rooms.get((room, user), KnownUserRoom())
        if in_channel is None or not in_channel.active:
            continue
        if user_room.member is not None and not (one.own and is_presumed(user_room, room)):
            continue
        member = Member(room, user, joined_seq=one.seq, joined_at=PRESUMED_AT) if user_room.member is None else None
        user_rooms.append(
            GivenUserRoom(room, user, member, Preferences(), GivenRead(seq=one.seq, read_at=0), presumed=True)
        )
    return user_rooms


def _weight(one: Concern) -> tuple[bool, int]:
    """The last own reply wins, because it reads up to itself; else the first mention, where unread begins."""
    return one.own, one.seq if one.own else -one.seq
