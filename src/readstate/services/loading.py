"""Loads hot state on demand from the durable store.

The hot store refuses a load that a newer change has overtaken, and the load is repeated. So what was deleted, read or
left meanwhile does not come back.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from readstate.domain.errors import ChannelNotFound, NotAMember, ReadstateError, Unavailable
from readstate.domain.model import ChangeNumber, Channel, Mode, Position, ReadState
from readstate.domain.rooms import is_thread
from readstate.domain.rules import check_id, check_user_id
from readstate.ports import (
    Count,
    CountQuery,
    DurableLoads,
    HotChannels,
    HotUsers,
    UnreadOverview,
    UnreadSummary,
    UserRoom,
    UserView,
    Which,
)
from readstate.tasks import cancel
from readstate.telemetry import LOADS

log = structlog.get_logger()

MAX_TRIES = 100
LEDGERS_AT_ONCE = 2_000
"""Ledgers that one statement loads."""
R = TypeVar("R")


@dataclass(eq=False, repr=False)
class Loader:
    _users: HotUsers
    _channels: HotChannels
    _durable: DurableLoads
    _unread_cap: int
    _loaded: Callable[[int], Awaitable[None]]
    """Called with the number of user rooms, channels and messages that were loaded."""
    _loading: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _behind: dict[str, asyncio.Task[UserView]] = field(default_factory=dict, init=False)
    """Loads in the background, by user."""

    # ------------------------------------------------------------ users

    async def load_users(self, users: Iterable[str]) -> None:
        """Concurrent callers share one load per user."""
        tasks = []
        for user in dict.fromkeys(users):
            task = self._loading.get(user)
            if task is None:
                task = self._loading[user] = asyncio.create_task(self._load_user(user))
                task.add_done_callback(lambda _, user=user: self._loading.pop(user))  # type: ignore[misc]
            tasks.append(task)
        await asyncio.gather(*map(asyncio.shield, tasks))

    async def _load_user(self, user: str) -> None:
        for _ in range(MAX_TRIES):
            ticket = await self._users.begin(user)
            user_rooms = await self._durable.load_user(user)
            if await self._users.install(user, ticket, user_rooms):
                LOADS.labels("user").inc()
                await self._loaded(1 + len(user_rooms))
                return
        raise overtaken(user)

    async def number_before_load(self, user: str) -> ChangeNumber | None:
        return await self._users.number_before_load(user)

    def load_behind(self, user: str) -> None:
        """Load a user and the user's ledgers while the caller goes on. Should it fail, the next use loads again."""
        if user not in self._behind:
            task = self._behind[user] = asyncio.create_task(self.ready(user))
            task.add_done_callback(lambda task: self._loaded_behind(user, task))

    def _loaded_behind(self, user: str, task: "asyncio.Task[UserView]") -> None:
        del self._behind[user]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("a user could not be loaded behind an answer", action="load", error=str(error))

    async def of_user(self, user: str, ask: Callable[[], Awaitable[R | None]]) -> R:
        """The hot store's answer about a user, who is loaded while the answer is None."""
        for _ in range(MAX_TRIES):
            answer = await ask()
            if answer is not None:
                return answer
            await self.load_users([user])
        raise overtaken(user)

    async def view(self, user: str, which: Which, known: UnreadOverview | None = None) -> UserView:
        """User rooms, with or without their ledgers."""
        return await self.of_user(user, lambda: self._users.view(user, which, known))

    async def rooms(self, user: str) -> list[str]:
        """The channels that the user is in and the threads that the user follows."""
        return await self.of_user(user, lambda: self._users.rooms(user))

    async def counted(self, user: str, which: Which, known: UnreadOverview | None = None) -> UserView:
        """User rooms with their ledgers loaded."""
        for _ in range(MAX_TRIES):
            view = await self.view(user, which, known)
            missing = [user_room for user_room in view.user_rooms if user_room.ledger is None and user_room.member]
            if not missing:
                return view
            await self._load_ledgers(user, missing)
        raise overtaken(user)

    async def ready(self, user: str) -> UserView:
        """The user's view without user rooms, once every ledger is loaded."""
        for _ in range(MAX_TRIES):
            view = await self.view(user, [])
            if not view.unloaded:
                return view
            user_rooms = (await self.view(user, view.unloaded)).user_rooms
            await self._load_ledgers(user, [user_room for user_room in user_rooms if user_room.ledger is None])
        raise overtaken(user)

    async def change(self, user: str) -> ChangeNumber:
        """The user's change number."""

        async def ask() -> ChangeNumber | None:
            return (await self._users.changes([user]))[0]

        return await self.of_user(user, ask)

    async def unread_overview(self, user: str, after: tuple[int, str] | None, limit: int) -> UnreadOverview:
        """The overview, once every ledger is loaded."""
        for _ in range(MAX_TRIES):
            overview = await self.of_user(user, lambda: self._users.unread_overview(user, after, limit))
            if not overview.unloaded:
                return overview
            await self.ready(user)
        raise overtaken(user)

    async def unread_summary(self, user: str) -> UnreadSummary:
        """The summary, once every ledger is loaded."""

        async def ask() -> UnreadSummary | None:
            await self.ready(user)
            return await self._users.unread_summary(user)

        return await self.of_user(user, ask)

    async def user_room(self, user: str, channel: str) -> UserRoom:
        """A member's user room, with its ledger. Raises NotAMember or ChannelNotFound."""
        return (await self.user_room_at(user, channel))[0]

    async def user_room_at(self, user: str, channel: str) -> tuple[UserRoom, ChangeNumber]:
        """As `user_room`, with the user's change number then."""
        view = await self._users.view(user, [channel])
        if view is None or any(user_room.ledger is None for user_room in view.user_rooms):
            view = await self.counted(user, [channel])
        if view.user_rooms and view.user_rooms[0].member:
            return view.user_rooms[0], view.change
        raise await self.no_user_room(user, channel)

    async def member_of(self, user: str, wanted: frozenset[str] | None) -> list[str]:
        """The user's channels, without threads; only those in `wanted`, if given."""
        view = await self.view(user, "all" if wanted is None else list(wanted))
        return [one.channel_id for one in view.user_rooms if one.member and not is_thread(one.channel_id)]

    async def member_rooms(self, user: str, names: Sequence[str]) -> tuple[list[UserRoom], list[Channel]]:
        """User rooms of a member, with ledgers, and their channels, in the order of the names."""
        user_rooms = [one for one in (await self.counted(user, names)).user_rooms if one.member]
        channels = await self.channels([user_room.channel_id for user_room in user_rooms])
        pairs = [(one, channel) for one, channel in zip(user_rooms, channels, strict=True) if channel is not None]
        return [user_room for user_room, _ in pairs], [channel for _, channel in pairs]

    async def member_rooms_at_once(
        self, user: str, names: Sequence[str], overview: UnreadOverview
    ) -> tuple[list[UserRoom], list[Channel], Mapping[CountQuery, Count]]:
        """As `member_rooms`, in one round trip: the channels and counts may be older than the user rooms."""
        view, channels, counts = await asyncio.gather(
            self.counted(user, names, overview), self.channels(names), self._known_counts(overview.queries)
        )
        by_name = dict(zip(names, channels, strict=True))
        user_rooms, found = [], []
        for user_room in view.user_rooms:
            channel = by_name[user_room.channel_id]
            if channel is not None and user_room.member:
                user_rooms.append(user_room)
                found.append(channel)
        return user_rooms, found, counts

    async def _known_counts(self, queries: Sequence[CountQuery]) -> Mapping[CountQuery, Count]:
        """Counts of the timelines that are loaded and long enough to decide."""
        counts = await self._channels.count(queries) if queries else []
        return {query: count for query, count in zip(queries, counts, strict=True) if count and not count.capped}

    async def no_user_room(self, user: str, channel: str) -> ReadstateError:
        """Return NotAMember. Raises ChannelNotFound or InvalidId if that is the cause."""
        await self.channel(channel)
        check_user_id(user, "user")
        return NotAMember(
            f"channel {channel!r} has no member {user!r}: add {user!r} first (POST /v1/channels/{channel}/members)"
        )

    async def _load_ledgers(self, user: str, user_rooms: Sequence[UserRoom]) -> None:
        """Part by part, so that others have their turn in between."""
        for start in range(0, len(user_rooms), LEDGERS_AT_ONCE):
            wanted: list[tuple[str, str, Mode, ReadState]] = [
                (user, user_room.channel_id, user_room.mode, user_room.pointer.state)
                for user_room in user_rooms[start : start + LEDGERS_AT_ONCE]
            ]
            loads = await self._durable.load_ledgers(wanted, self._unread_cap)
            await self._users.install_ledgers(loads)
            LOADS.labels("ledger").inc(len(loads))
            await self._loaded(sum(1 + len(load.entries) for load in loads))

    # ------------------------------------------------------------ channels

    async def channels(self, ids: Sequence[str]) -> list[Channel | None]:
        """None for channels that do not exist."""
        found = await self._channels.channels(ids)
        missing = [id_ for id_, channel in zip(ids, found, strict=True) if channel is None]
        if missing:
            loaded = await self._load_channels(missing)
            now = dict(zip(missing, await self._channels.channels(missing), strict=True))
            found = [channel or now[id_] or loaded.get(id_) for id_, channel in zip(ids, found, strict=True)]
        return [None if channel is None or channel.deleted else channel for channel in found]

    async def _load_channels(self, ids: Sequence[str]) -> Mapping[str, Channel]:
        for _ in range(MAX_TRIES):
            generation = await self._channels.generation()
            loaded = await self._durable.load_channels(ids)
            if await self._channels.install(list(loaded.values()), generation):
                LOADS.labels("channel").inc(len(loaded))
                await self._loaded(4 * len(loaded))
                return loaded
        raise overtaken("a channel")

    async def channel(self, id_: str) -> Channel:
        """Raises ChannelNotFound."""
        known = (await self._channels.channels([id_]))[0]
        channel = known if known is not None and not known.deleted else (await self.channels([id_]))[0]
        if channel is None:
            check_id(id_, "channel_id")
            raise ChannelNotFound(f"there is no channel {id_!r}", field="channel_id")
        return channel

    async def counts(self, queries: Sequence[CountQuery]) -> list[Count]:
        """Counts of timeline channels."""
        for _ in range(MAX_TRIES):
            counts = await self._channels.count(queries)
            missing = {q.channel_id for q, count in zip(queries, counts, strict=True) if count is None}
            if not missing:
                return [await self._sure(q, count) for q, count in zip(queries, counts, strict=True) if count]
            for channel in missing:
                await self.load_timeline(channel)
        raise overtaken("a timeline")

    async def _sure(self, query: CountQuery, count: Count) -> Count:
        """Ask the durable store if the timeline is too short to decide how many messages are unread."""
        if not count.capped or (count.sure and count.count >= self._unread_cap):
            return count
        wanted = [(query.user_id, query.channel_id, Mode.LEDGER, query.state)]
        load = (await self._durable.load_ledgers(wanted, self._unread_cap))[0]
        first = load.entries[0] if load.entries else None
        position = None if first is None else Position(first.seq, first.id, first.at)
        return Count(len(load.entries), sum(entry.mention for entry in load.entries), position, load.floor > 0)

    async def close(self) -> None:
        """Cancel the loads in flight."""
        for task in (*self._behind.values(), *self._loading.values()):
            await cancel(task)

    async def load_timeline(self, channel: str) -> None:
        await self.channels([channel])
        load = await self._durable.load_timeline(channel, self._unread_cap)
        await self._channels.install_timeline(load)
        LOADS.labels("timeline").inc()
        await self._loaded(len(load.entries))


def overtaken(what: str) -> Unavailable:
    return Unavailable(f"{what} changes faster than it can be loaded; try again")
