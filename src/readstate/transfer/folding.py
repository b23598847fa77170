"""Folds records of an import into a store. Pure: known state in, rows to write and refusals out.

An import adds and moves forward; it never takes anything back. So it can be repeated, and can meet live data:
- a message that exists stays as it is, except that a delete applies; a seq is assigned once, and times follow seqs;
- a channel's last seq only grows; its name and avatar stay where it has them;
- pointers merge as everywhere; of two memberships the later join wins, and of the same join the leave;
- members follow the threads that they began, replied in or were mentioned in, as they would in live traffic. A `follow`
  record says more than such a presumed follow, and replaces it. Replies of a thread that has its own record make no
  followers;
- preferences that are still at their defaults take the given values.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from readstate.api import Refused
from readstate.domain.model import Channel, Message, Mode
from readstate.domain.rooms import channel_and_thread, is_thread

from .known import Fold, Known, Misfit, Rows
from .messages import take_message
from .records import GivenUser, GivenUserRoom, Numbered
from .user_rooms import take_user_room


def take(run: Sequence[Numbered], known: Known, fanout_max_members: int, stop: bool) -> tuple[Rows, list[Refused]]:
    """Fold a run of records of one type into `known`. A refused record leaves nothing behind."""
    fold = Fold(known)
    refused = []
    for one in run:
        try:
            match one.given:
                case Message() as message:
                    take_message(fold, message)
                case GivenUserRoom() as user_room:
                    take_user_room(fold, user_room)
                case Channel() as room:
                    _take_room(fold, room)
                case GivenUser() as user:
                    _take_user(fold, user)
        except Misfit as misfit:
            refused.append(Refused(one.line, str(misfit)))
            if stop:
                break
    _update_member_counts(fold, fanout_max_members)
    return fold.rows, refused


def _update_member_counts(fold: Fold, limit: int) -> None:
    """A channel that has outgrown the limit changes from ledgers to a timeline."""
    for name, joined in fold.joined.items():
        room = fold.known.rooms[name]
        count = room.member_count + joined
        outgrown = room.mode is Mode.LEDGER and room.type != "thread" and count > limit
        if outgrown:
            fold.rows.audiences.add(name)
        fold.set_room(replace(room, member_count=count, mode=Mode.TIMELINE if outgrown else room.mode))


def _take_room(fold: Fold, given: Channel) -> None:
    name = given.channel_id
    if is_thread(name):
        channel = channel_and_thread(name)[0]
        if channel not in fold.known.rooms or not given.deleted:
            fold.channel(channel)
    known = fold.known.rooms.get(name)
    if known is None:
        fold.set_room(given)
        return
    if known.deleted:
        room = _further(replace(given, change=known.change), known)
    elif not given.deleted:
        room = _joined(fold, known, given)
    else:
        return
    if room != replace(known, position=room.position):
        fold.set_room(room)


def _joined(fold: Fold, known: Channel, given: Channel) -> Channel:
    """The stored room, with what the record knows beyond it."""
    room = _further(known, given)
    latest = given.latest
    if latest is not None and (room.latest is None or latest.seq > room.latest.seq):
        message = fold.known.messages.get((channel_and_thread(known.channel_id)[0], latest.id))
        if message is None or not message.deleted:
            room = replace(room, latest=latest)
    return replace(room, name=room.name or given.name, avatar=room.avatar or given.avatar)


def _further(room: Channel, other: Channel) -> Channel:
    """The room, advanced to the end of `other` if that is further."""
    if other.last_seq <= room.last_seq:
        return room
    last_at = max(room.last_at, other.last_at)
    return replace(room, last_seq=other.last_seq, last_id=other.last_id, last_at=last_at)


def _take_user(fold: Fold, given: GivenUser) -> None:
    known = fold.known.users.get(given.user_id)
    if known is not None:
        given = GivenUser(
            given.user_id,
            max(known.last_tap, given.last_tap),
            max(known.last_seen, given.last_seen),
            known.receipts if known.receipts != "public" else given.receipts,
        )
    if given != known:
        fold.known.users[given.user_id] = fold.rows.users[given.user_id] = given
        fold.rows.concerned.add(given.user_id)
