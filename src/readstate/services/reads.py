"""Reads, as callers ask for them: mark read in all its forms, mark unread, mark all read, and undo."""

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from readstate.api import (
    AllRead,
    ChannelRead,
    MarkUnread,
    ReadAll,
    ReadOutcome,
    ReadResult,
    ReadTarget,
    Undone,
    UserRead,
)
from readstate.domain.errors import Invalid, ReadstateError, Unavailable, UndoNotFound
from readstate.domain.model import START
from readstate.domain.rooms import is_thread
from readstate.domain.rules import advance, check_id, check_size, check_user_id, check_user_room, parse_time
from readstate.ports import Clock, Durable, Moved, Presence, Read, Restore, UndoItem
from readstate.settings import Settings

from .counting import Counting, last_read
from .effects import or_refusal
from .loading import Loader
from .moves import Moves
from .read_targets import Named, ReadTargets

_OK = ReadOutcome("ok", True)
_SAME = ReadOutcome("ok", False)


@dataclass(eq=False, repr=False)
class Reads:
    _moves: Moves
    _targets: ReadTargets
    _loader: Loader
    _counting: Counting
    _durable: Durable
    _presence: Presence
    _clock: Clock
    _settings: Settings

    async def mark_read(self, user: str, channel: str, target: ReadTarget, origin: str | None = None) -> ReadResult:
        """Read everything, up to a position, or exactly these messages."""
        return await self._answer(await self.read(user, channel, target, origin))

    async def read(self, user: str, channel: str, target: ReadTarget, origin: str | None = None) -> Moved:
        """As `mark_read`, without the counts."""
        named = self._targets.check(user, channel, target, "user", "channel")
        return await self._moves.one(await self._targets.find(*named, origin))

    async def mark_unread(self, user: str, channel: str, request: MarkUnread, origin: str | None = None) -> ReadResult:
        """Make a message and every later one by other users unread, as a new epoch."""
        return await self._answer(await self.unread(user, channel, request, origin))

    async def unread(self, user: str, channel: str, request: MarkUnread, origin: str | None = None) -> Moved:
        """As `mark_unread`, without the counts."""
        check_user_room(user, channel)
        check_id(request.from_, "from")
        user_room = await self._loader.user_room(user, channel)
        rewind = await self._targets.rewind(user, channel, request, origin)
        if request.epoch in {None, user_room.pointer.epoch}:
            # Blur before the epoch ends: focus reads an arriving message in the epoch in which the channel was open.
            await self._presence.blur(user, channel)
            await self._durable.cut_skipped(user, channel, rewind.seq)
        moved = await self._moves.one(rewind)
        if moved.changed:
            await self._presence.blur(user, channel)
            moved = await self._read_own(moved, origin)
        return moved

    async def _read_own(self, rewound: Moved, origin: str | None) -> Moved:
        """Read the user's own messages that were stored during the rewind: they stay read."""
        user, channel, pointer = rewound.user_id, rewound.channel_id, rewound.pointer
        own = await self._targets.own_seqs(user, channel, pointer.seq + 1)
        late = tuple(seq for seq in own if seq not in pointer.apart)
        if not late:
            return rewound
        moved = await self._moves.one(Read(user, channel, START, late, pointer.epoch, origin))
        return replace(moved, before=rewound.before, changed=True)

    async def _answer(self, moved: Moved) -> ReadResult:
        unread = await self._counting.after(moved)
        return ReadResult(last_read(moved.pointer), unread, self._counting.label(unread), moved.changed)

    # ------------------------------------------------------------ many users

    async def mark_many(self, reads: Sequence[UserRead]) -> list[ReadOutcome]:
        """Reads of any users. A rejected read does not affect the others."""
        check_size(reads, self._settings.max_batch, "reads")
        resolved = await self._targets.find_each(self._targets.check_each(reads))
        results = iter(await self._moves.submit([read for read in resolved if isinstance(read, Read)]))
        outcomes: list[ReadOutcome] = []
        for read in resolved:
            if isinstance(read, ReadstateError):
                outcomes.append(_rejected(read))
            elif isinstance(result := next(results), Moved):
                outcomes.append(_OK if result.changed else _SAME)
            else:
                outcomes.append(_rejected(await or_refusal(self._loader.no_user_room(read.user_id, read.channel_id))))
        return outcomes

    # ------------------------------------------------------------ all channels, and undo

    async def mark_all(self, user: str, request: ReadAll) -> AllRead:
        """Read all channels or those listed, and return a token for `undo`."""
        check_user_id(user, "user")
        if request.all == (request.items is not None):
            raise Invalid('give either "all": true or "items"', field="items")
        if request.items is not None:
            reads = await self._reads_of_items(user, request.items, request)
        else:
            reads = await self._reads_of_all(user, request)
        token = secrets.token_urlsafe(18)
        expected = await self._expected(user, reads)
        await self._save_undo(user, token, expected)
        done: dict[str, UndoItem] = {}
        for moved in await self._moves.submit(reads):
            if isinstance(moved, Moved) and moved.changed:
                first = done.get(moved.channel_id)
                before, to = (first.before, first.to) if first else (moved.before.state, moved.before.position)
                done[moved.channel_id] = UndoItem(moved.channel_id, before, to, moved.pointer.state)
        if list(done.values()) != expected:
            await self._save_undo(user, token, list(done.values()))
        return AllRead(len(done), token)

    async def undo(self, user: str, token: str) -> Undone:
        """Restore the pointers from before a mark-all-read, except those that have moved since."""
        check_user_id(user, "user")
        items = await self._durable.load_undo(token, user, self._clock())
        if items is None:
            raise UndoNotFound(field="undo")
        moves = [Restore(user, item.channel_id, item.before, item.to, item.after) for item in items]
        results = await self._moves.submit(moves)
        with contextlib.suppress(Unavailable):  # the token expires anyway, and has nothing left to restore
            await self._durable.drop_undo(token)
        return Undone(sum(isinstance(result, Moved) and result.changed for result in results))

    async def _reads_of_items(self, user: str, items: Sequence[ChannelRead], request: ReadAll) -> list[Read]:
        if request.up_to_time is not None:
            raise Invalid("up_to_time goes with all; an item has its own", field="up_to_time")
        check_size(items, self._settings.max_batch, "items")
        named: list[Named] = []
        for index, item in enumerate(items):
            with _of_item(index):
                named.append(self._targets.check(user, item.channel_id, item))
        names = list(dict.fromkeys(channel for _, channel, _ in named))
        members = {room.channel_id for room in (await self._loader.view(user, names)).user_rooms if room.member}
        for index, (_, channel, _) in enumerate(named):
            if channel not in members:
                with _of_item(index):
                    raise await self._loader.no_user_room(user, channel)
        reads = []
        for index, read in enumerate(await self._targets.find_each(named)):
            with _of_item(index):
                if isinstance(read, ReadstateError):
                    raise read
            reads.append(read)
        return reads

    async def _reads_of_all(self, user: str, request: ReadAll) -> list[Read]:
        time = None if request.up_to_time is None else parse_time(request.up_to_time, "up_to_time")
        everything = (await self._loader.view(user, "all")).user_rooms
        user_rooms = [one for one in everything if one.member and not is_thread(one.channel_id)]
        channels = await self._loader.channels([user_room.channel_id for user_room in user_rooms])
        reads = []
        for user_room, channel in zip(user_rooms, channels, strict=True):
            if channel is not None and user_room.pointer.seq < channel.last_seq:
                to = channel.end if time is None else await self._targets.at_time(channel, time)
                reads.append(Read(user, user_room.channel_id, to))
        return reads

    async def _expected(self, user: str, reads: Sequence[Read]) -> list[UndoItem]:
        """What the reads will do unless something interferes. Saved before them, so that no read lacks its undo."""
        user_rooms = (await self._loader.view(user, [read.channel_id for read in reads])).user_rooms
        pointers = {user_room.channel_id: user_room.pointer for user_room in user_rooms}
        items: dict[str, UndoItem] = {}
        for read in reads:
            name = read.channel_id
            if (pointer := pointers.get(name)) is None:  # the user was erased meanwhile
                continue
            now = items[name].after if name in items else pointer.state
            after = now if read.epoch not in {None, now.epoch} else advance(now, read.to.seq, read.apart)
            if after != now:
                items[name] = UndoItem(name, pointer.state, pointer.position, after)
        return list(items.values())

    async def _save_undo(self, user: str, token: str, items: Sequence[UndoItem]) -> None:
        now = self._clock()
        await self._durable.save_undo(token, user, now + self._settings.undo_ttl * 1000, now, items)


def _rejected(error: ReadstateError) -> ReadOutcome:
    return ReadOutcome("rejected", False, error.code, error.detail)


@contextlib.contextmanager
def _of_item(index: int) -> Iterator[None]:
    """Adds the index of the item to an error's field."""
    try:
        yield
    except ReadstateError as error:
        error.field = f"items[{index}].{error.field or 'channel_id'}"
        raise
