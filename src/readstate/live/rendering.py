"""Renders a user's dirty marks as events.

The rendering repeats while the user's or a channel's change number moves during it, at most 5 times, and nothing is
awaited between the last look and the return. So counts are exact at their position among the user's frames. If
something moves in every pass, the last rendering is sent; the announcement of that change marks it dirty again.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import UNSET, Struct, field, structs

from readstate.api import LastRead, Unread
from readstate.api.frames import (
    BadgeUpdated,
    ChannelUpdated,
    Event,
    MessageNew,
    ReadPointerUpdated,
    ThreadUpdated,
    UnreadUpdated,
)
from readstate.domain.model import Message
from readstate.domain.rooms import channel_and_thread, is_thread
from readstate.domain.rules import EVERYONE, check_user_room
from readstate.ports import Hot
from readstate.services.badge import OfflineBadge
from readstate.services.changes import MAX_LOOKS, stable
from readstate.services.counting import Counting
from readstate.services.inbox import UserInbox
from readstate.services.loading import Loader
from readstate.services.preferences import ChannelPreferences
from readstate.services.threads import ThreadPanel

LATER = ""
"""Placeholder for the cursor, which is known only when an event is sent."""


class To(NamedTuple):
    """The connections of a user that an event goes to."""

    all_but: str | None = None
    only: frozenset[str] | None = None

    def reaches(self, connection: str) -> bool:
        return connection != self.all_but and (self.only is None or connection in self.only)


TO_ALL = To()


class Marks(Struct, gc=False):
    """What must be rendered of a channel."""

    counts: bool = False
    conversation: bool = False
    pointer_from: str | None = None
    """The instance where the pointer moved; None: it did not move."""
    not_to: str | None = None
    """The connection that moved the pointer, which has its answer already; None if several moved it."""


class Dirty(Struct):
    """What changed for a user and is not rendered yet. It holds no counts: they are read when it is rendered."""

    channels: dict[str, Marks] = field(default_factory=dict)
    threads: set[str] = field(default_factory=set)
    rejoined: set[str] = field(default_factory=set)
    """Channels that the user has joined again: the threads followed there are visible again."""
    badge: bool = False
    newcomers: set[str] = field(default_factory=set)
    """Connections that have not received the badge yet."""
    ends: dict[str, int] = field(default_factory=dict)
    """Filled by the rendering: the last seq of each channel then."""

    def __bool__(self) -> bool:
        return bool(self.channels or self.threads or self.badge or self.newcomers)

    def of(self, channel: str) -> Marks:
        return self.channels.setdefault(channel, Marks())

    def pointer(self, channel: str, instance: str, origin: str | None) -> None:
        marks = self.of(channel)
        marks.not_to = origin if marks.pointer_from is None or marks.not_to == origin else None
        marks.pointer_from = instance

    def add(self, other: "Dirty") -> None:
        for channel, marks in other.channels.items():
            mine = self.of(channel)
            mine.counts |= marks.counts
            mine.conversation |= marks.conversation
            if marks.pointer_from is not None:
                self.pointer(channel, marks.pointer_from, marks.not_to)
        self.threads |= other.threads
        self.rejoined |= other.rejoined
        self.badge |= other.badge
        self.newcomers |= other.newcomers


Rendered = tuple[Event, To]


@dataclass(eq=False, repr=False)
class EventRenderer:
    _hot: Hot
    _loader: Loader
    _counting: Counting
    _inbox: UserInbox
    _preferences: ChannelPreferences
    _threads: ThreadPanel
    _badge: OfflineBadge

    async def render(self, user: str, dirty: Dirty) -> list[Rendered]:
        """The events, in order, without their cursors."""
        names = [*dirty.channels, *dirty.threads]
        return await stable(lambda: self._change_numbers(user, names), lambda: self._render(user, dirty))

    async def unread(self, user: str, channel: str) -> Unread:
        """The unread counts of one channel, exact when this returns."""
        check_user_room(user, channel)
        for _ in range(MAX_LOOKS):
            found, numbers = await self._counting.room_at(user, channel)
            if await self._change_numbers(user, [channel]) == numbers:
                break
        return found

    async def _change_numbers(self, user: str, names: Sequence[str]) -> tuple[object, ...]:
        changes = await self._hot.users.changes([user])
        channels = await self._hot.channels.channels(names)
        return changes[0], *[None if channel is None else channel.change for channel in channels]

    async def _render(self, user: str, dirty: Dirty) -> list[Rendered]:
        rendered: list[Rendered] = []
        if dirty.channels:
            rendered += await self._of_channels(user, dirty)
        rooms = dirty.threads
        if dirty.rejoined:
            rooms = rooms | await self._threads_in(user, dirty.rejoined)
        if rooms:
            rendered += [(event, TO_ALL) for event in await self._of_threads(user, sorted(rooms))]
        if dirty.badge or dirty.newcomers:
            senders = await self._badge.count(user)
            rendered.append((BadgeUpdated(senders=senders, label=self._counting.label(senders), resume=LATER), TO_ALL))
        return rendered

    async def _of_channels(self, user: str, dirty: Dirty) -> list[Rendered]:
        shown = [name for name, marks in dirty.channels.items() if marks.conversation]
        rows = {row.channel_id: row for row in await self._inbox.rows(user, shown)} if shown else {}
        rendered: list[Rendered] = []
        for user_room, channel, unread in await self._counting.rows(user, list(dirty.channels)):
            marks = dirty.channels[user_room.channel_id]
            dirty.ends[user_room.channel_id] = channel.last_seq
            if (row := rows.get(user_room.channel_id)) is not None:
                wanted = await self._preferences.view(user, user_room)
                event = ChannelUpdated(channel_id=row.channel_id, conversation=row, preferences=wanted, resume=LATER)
                rendered.append((event, TO_ALL))
            if marks.counts:
                rendered.append((UnreadUpdated(**structs.asdict(unread), resume=LATER), TO_ALL))
            if marks.pointer_from is not None:
                rendered.append((_pointer_updated(unread, marks.pointer_from), To(all_but=marks.not_to)))
        return rendered

    async def _threads_in(self, user: str, channels: Set[str]) -> set[str]:
        rooms = await self._loader.rooms(user)
        return {room for room in rooms if is_thread(room) and channel_and_thread(room)[0] in channels}

    async def _of_threads(self, user: str, rooms: Sequence[str]) -> list[ThreadUpdated]:
        before = self._counting.stale(user)
        joined = set(await self._loader.member_of(user, frozenset(channel_and_thread(room)[0] for room in rooms)))
        user_rooms = (await self._loader.counted(user, rooms)).user_rooms
        channels = await self._loader.channels([user_room.channel_id for user_room in user_rooms])
        stale = before.or_by(self._counting.stale(user))
        events = []
        for user_room, room in zip(user_rooms, channels, strict=True):
            view = self._threads.view(user_room, None if room is None else room.latest, stale)
            if view.channel_id not in joined:  # the user has left the channel, and so its threads
                continue
            followed = room is not None and user_room.member
            events.append(ThreadUpdated(**structs.asdict(view), followed=followed, resume=LATER))
        return events


def _pointer_updated(unread: Unread, instance: str) -> ReadPointerUpdated:
    counts = structs.asdict(unread)
    last_read: LastRead = counts.pop("last_read")
    return ReadPointerUpdated(
        **counts,
        last_read_id=last_read.id,
        last_read_seq=last_read.seq,
        last_read_at=last_read.at,
        epoch=last_read.epoch,
        instance_id=instance,
        resume=LATER,
    )


def message_new(message: Message, counts: bool, mentions_me: bool, epoch: int | None = None) -> MessageNew:
    """A `message.new` for all users with the same `counts`, `mentions_me` and epoch."""
    m = message
    return MessageNew(
        channel_id=m.channel_id,
        message_id=m.id,
        seq=m.seq,
        sender_id=m.sender_id,
        at=m.at,
        preview=m.preview,
        counts=counts,
        mentions_me=mentions_me,
        silent=m.silent,
        epoch=UNSET if epoch is None else epoch,
        thread_id=UNSET if m.thread_id is None else m.thread_id,
        thread_seq=UNSET if m.thread_seq is None else m.thread_seq,
        resume=LATER,
    )


def mentions(message: Message, user: str) -> bool:
    """Whether the message mentions the user; the sender's own mention does not count."""
    named = message.mentions
    return bool(named) and user != message.sender_id and (user in named or EVERYONE in named)
