"""Threads: follow, unread replies, the panel, mark read."""

from dataclasses import dataclass

from readstate.api import ReadResult, ThreadRead, Threads, ThreadTotals, ThreadView
from readstate.domain.errors import Invalid, MessageNotFound, ReplyToReply, ThreadNotFound
from readstate.domain.events import MembersEvent
from readstate.domain.model import Latest, Position
from readstate.domain.rooms import channel_and_thread, is_thread, thread_room
from readstate.domain.rules import check_id, check_user_id, check_user_room
from readstate.ports import Clock, Log, Read, Stale, UserRoom

from .counting import Counting, flagged, last_read, reason
from .cursors import Cursors, ThreadsAfter, page_size
from .effects import done
from .loading import Loader
from .moves import Moves
from .positions import Positions


@dataclass(eq=False, repr=False)
class ThreadPanel:
    """The threads that a user follows. Only followed threads cost anything."""

    _log: Log
    _loader: Loader
    _positions: Positions
    _moves: Moves
    _counting: Counting
    _cursors: Cursors
    _clock: Clock
    _max_page: int

    async def follow(self, user: str, channel: str, thread: str, *, on: bool = True) -> None:
        """Follow a thread, which marks everything in it read, or stop following it. Idempotent."""
        await self._check(user, channel, thread)
        event = MembersEvent(
            channel_id=channel,
            created_at=self._clock(),
            thread_id=thread,
            add=(user,) if on else (),
            remove=() if on else (user,),
        )
        done((await self._log.channel_events([event]))[0])

    async def read(
        self, user: str, channel: str, thread: str, request: ThreadRead, origin: str | None = None
    ) -> ReadResult:
        """Mark a followed thread read, entirely or up to a reply."""
        up_to = None if request.up_to is None else check_id(request.up_to, "up_to")
        await self._check(user, channel, thread)
        room = thread_room(channel, thread)
        await self._followed(user, room)
        to = (await self._loader.channel(room)).end
        if up_to is not None:
            to = await self._position(channel, thread, up_to)
        moved = await self._moves.one(Read(user, room, to, origin=origin))
        count = _count(await self._followed(user, room))
        return ReadResult(last_read(moved.pointer), count, self._counting.label(count), moved.changed)

    async def panel(
        self,
        user: str,
        *,
        filter: str = "all",  # noqa: A002 - the name of the query parameter
        channel: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Threads:
        """Followed threads, the latest activity first."""
        check_user_id(user, "user")
        limit = page_size(limit, 20, self._max_page)
        if filter not in {"all", "unread"}:
            raise Invalid("filter must be all or unread", field="filter")
        if channel is not None:
            await self._loader.user_room(user, check_id(channel, "channel"))
        after = None if cursor is None else self._cursors.decode(cursor, ThreadsAfter, user)
        before = self._counting.stale(user)
        user_rooms = await self._followed_rooms(user)
        rooms = await self._loader.channels([user_room.channel_id for user_room in user_rooms])
        stale = before.or_by(self._counting.stale(user))
        rows = []
        for user_room, room in zip(user_rooms, rooms, strict=True):
            if room is None or (channel is not None and channel_and_thread(user_room.channel_id)[0] != channel):
                continue
            if filter == "unread" and not _count(user_room):
                continue
            key = (-room.latest_at, user_room.channel_id)
            if after is None or key > (after.at, after.room):
                rows.append((key, self.view(user_room, room.latest, stale)))
        rows.sort(key=lambda row: row[0])
        page = rows[:limit]
        more = self._cursors.encode(ThreadsAfter(*page[-1][0]), user) if len(rows) > limit else None
        totals = flagged(
            _totals(user_rooms), reason(stale.any_of(user_room.channel_id for user_room in user_rooms), False)
        )
        return Threads(totals, [view for _, view in page], more)

    async def _followed_rooms(self, user: str) -> list[UserRoom]:
        """User rooms of followed threads, with ledgers, in channels that the user is a member of."""
        everything = (await self._loader.view(user, "all")).user_rooms
        members = dict.fromkeys(user_room.channel_id for user_room in everything if user_room.member)
        rooms = [name for name in members if is_thread(name) and channel_and_thread(name)[0] in members]
        return (await self._loader.counted(user, rooms)).user_rooms

    def view(self, user_room: UserRoom, latest: Latest | None, stale: Stale) -> ThreadView:
        channel, thread = channel_and_thread(user_room.channel_id)
        count = _count(user_room)
        view = ThreadView(thread, channel, count, self._counting.label(count), latest, last_read(user_room.pointer))
        return flagged(view, reason(stale.has(user_room.channel_id), False))

    async def _check(self, user: str, channel: str, thread: str) -> None:
        """Raises unless the user is a member of the channel and the thread's root is a top-level message in it."""
        check_user_room(user, channel)
        check_id(thread, "thread")
        await self._loader.user_room(user, channel)
        root = (await self._positions.messages([(channel, thread)])).get((channel, thread))
        if root is None:
            raise ThreadNotFound(f"there is no message {thread!r} in channel {channel!r}", field="thread")
        if root.thread_id is not None:
            raise ReplyToReply(f"{thread!r} is a reply itself: its thread is {root.thread_id!r}", field="thread")

    async def _followed(self, user: str, room: str) -> UserRoom:
        user_rooms = (await self._loader.counted(user, [room])).user_rooms
        if not user_rooms or not user_rooms[0].member:
            raise ThreadNotFound(f"{user!r} does not follow this thread", field="thread")
        return user_rooms[0]

    async def _position(self, channel: str, thread: str, id_: str) -> Position:
        reply = (await self._positions.messages([(channel, id_)])).get((channel, id_))
        if reply is None or reply.thread_id != thread or reply.thread_seq is None:
            raise MessageNotFound(f"there is no reply {id_!r} in thread {thread!r}", field="up_to")
        return Position(reply.thread_seq, reply.id, reply.at)


def _totals(user_rooms: list[UserRoom]) -> ThreadTotals:
    counts = [count for user_room in user_rooms if (count := _count(user_room))]
    return ThreadTotals(sum(counts), len(counts))


def _count(user_room: UserRoom) -> int:
    return 0 if user_room.ledger is None else user_room.ledger.count
