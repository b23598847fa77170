"""Finds the positions that requested reads and mark-unreads lead to.

A read up to a message whose position this process knows needs no look at its channel: positions never change, and seqs
are not reused when a channel is deleted and created again. Whether the channel exists and the user is a member is found
by the move itself. "Everything", times and unknown messages ask for the channel.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from readstate.api import Id, MarkUnread, ReadTarget, UserRead
from readstate.domain.errors import Invalid, MessageDeleted, MessageNotFound, MessageWithoutSeq, ReadstateError
from readstate.domain.model import START, Channel, Position
from readstate.domain.rules import check_id, check_size, check_user_id, parse_time
from readstate.ports import DurableQueries, Read, Rewind
from readstate.ports.consistency import Lookups
from readstate.settings import Settings

from .effects import or_refusal
from .positions import Positions

Named = tuple[str, str, ReadTarget]
"""A requested read: user, channel, target."""
_ById = dict[tuple[str, str], Position]
_BySeq = dict[tuple[str, int], Position]
_TARGETS = ("up_to", "up_to_seq", "up_to_time", "messages")


@dataclass(eq=False, repr=False)
class ReadTargets:
    _lookups: Lookups
    _positions: Positions
    _durable: DurableQueries
    _settings: Settings

    def check(
        self, user: Id, channel: Id, target: ReadTarget, user_field: str = "user_id", channel_field: str = "channel_id"
    ) -> Named:
        """Check ids and sizes before anything is looked up."""
        named = check_user_id(user, user_field), check_id(channel, channel_field), target
        up_to, messages = target.up_to, target.messages
        several = (up_to is not None) + (target.up_to_seq is not None) + (target.up_to_time is not None)
        if several + (messages is not None) > 1:
            second = [name for name in _TARGETS if getattr(target, name) is not None][1]
            raise Invalid(f"give one of {', '.join(_TARGETS)}, or none of them for everything", field=second)
        if up_to is not None:
            check_id(up_to, "up_to")
        elif messages is not None:
            check_size(messages, self._settings.max_batch, "messages")
            for id_ in messages:
                check_id(id_, "messages")
        return named

    def check_each(self, reads: Sequence[UserRead]) -> list[Named | ReadstateError]:
        checked: list[Named | ReadstateError] = []
        for read in reads:
            try:
                checked.append(self.check(read.user_id, read.channel_id, read))
            except ReadstateError as error:
                checked.append(error)
        return checked

    async def find(self, user: str, channel: str, target: ReadTarget, origin: str | None = None) -> Read:
        if (known := self._known(user, channel, target, origin)) is not None:
            return known
        info = await self._lookups.channel(channel)
        found = await self._named_positions([(info, target)])
        return self._at_once(user, info, target, *found, origin) or await self._at_time(user, info, target, origin)

    async def find_each(self, reads: Sequence[Named | ReadstateError]) -> list[Read | ReadstateError]:
        """The position that each read leads to, or its error."""
        resolved: list[Read | ReadstateError | None] = []
        unknown: list[Named] = []
        for read in reads:
            found = read if isinstance(read, ReadstateError) else self._known(*read)
            resolved.append(found)
            if found is None and not isinstance(read, ReadstateError):
                unknown.append(read)
        looked_up = iter(await self._look_up_each(unknown))
        return [next(looked_up) if found is None else found for found in resolved]

    def _known(self, user: str, channel: str, target: ReadTarget, origin: str | None = None) -> Read | None:
        """The read, if this process knows the position that it names."""
        name = target.up_to_seq if target.up_to is None else str(target.up_to)
        to = None if name is None else self._positions.known(channel, name)
        return None if to is None else Read(user, channel, to, (), target.epoch, origin)

    async def _look_up_each(self, reads: Sequence[Named]) -> list[Read | ReadstateError]:
        if not reads:
            return []
        names = list({channel for _, channel, _ in reads})
        channels = dict(zip(names, await self._lookups.channels(names), strict=True))
        known = [(info, target) for _, name, target in reads if (info := channels[name]) is not None]
        found = await self._named_positions(known)
        resolved: list[Read | ReadstateError] = []
        for user, name, target in reads:
            channel = channels[name]
            try:
                direct = None if channel is None else self._at_once(user, channel, target, *found)
            except ReadstateError as error:
                resolved.append(error)
                continue
            if direct is not None:
                resolved.append(direct)
            elif channel is not None:
                resolved.append(await or_refusal(self._at_time(user, channel, target)))
            else:  # it was not among those looked up together: this raises, or finds a new one
                resolved.append(await or_refusal(self.find(user, name, target)))
        return resolved

    async def at_time(self, channel: Channel, time: int) -> Position:
        if time >= channel.last_at:
            return START if channel.last_id is None else channel.end
        return await self._durable.by_time(channel.channel_id, time)

    async def rewind(self, user: str, channel: str, request: MarkUnread, origin: str | None) -> Rewind:
        """The move that makes a message and all later ones unread."""
        id_ = str(request.from_)
        message = (await self._positions.messages([(channel, id_)])).get((channel, id_))
        if message is None:
            raise MessageNotFound(f"there is no message {id_!r} in channel {channel!r}", field="from")
        if message.deleted:
            raise MessageDeleted(f"message {id_!r} is deleted", field="from")
        if message.seq is None:
            raise MessageWithoutSeq(field="from")
        before = START
        if message.seq > 1:
            before = (await self._positions.by_seq([(channel, message.seq - 1)]))[channel, message.seq - 1]
        own = await self.own_seqs(user, channel, message.seq)
        return Rewind(user, channel, message.seq, before, own, request.epoch, origin)

    async def own_seqs(self, user: str, channel: str, since: int) -> tuple[int, ...]:
        """The user's own messages: they are never unread."""
        return await self._durable.own_seqs(user, channel, since, self._settings.unread_cap)

    async def _named_positions(self, reads: Sequence[tuple[Channel, ReadTarget]]) -> tuple[_ById, _BySeq]:
        """The positions of messages that the targets name by id or by seq."""
        by_id: list[tuple[str, str]] = []
        by_seq: list[tuple[str, int]] = []
        for channel, target in reads:
            name = channel.channel_id
            if target.up_to is not None:
                by_id.append((name, str(target.up_to)))
            elif target.messages is not None:
                by_id += [(name, str(id_)) for id_ in target.messages]
            elif target.up_to_seq is not None and 0 < target.up_to_seq < channel.last_seq:
                by_seq.append((name, target.up_to_seq))
        return (
            await self._positions.by_id(by_id) if by_id else {},
            await self._positions.by_seq(by_seq) if by_seq else {},
        )

    def _at_once(
        self, user: str, channel: Channel, target: ReadTarget, ids: _ById, seqs: _BySeq, origin: str | None = None
    ) -> Read | None:
        """None: its position must be looked up by time."""
        name, up_to, seq, messages = channel.channel_id, target.up_to, target.up_to_seq, target.messages
        if seq is not None:
            to = channel.end if seq >= channel.last_seq else seqs[name, seq] if seq else START
        elif up_to is not None:
            to = _position(ids, name, str(up_to), "up_to")
        elif messages:
            apart = tuple(_position(ids, name, str(id_), "messages") for id_ in messages)
            known = tuple(one.id or "" for one in apart)
            return Read(user, name, START, tuple(one.seq for one in apart), target.epoch, origin, known)
        elif target.up_to_time is not None:
            return None
        else:
            to = START if messages is not None else channel.end
        return Read(user, name, to, (), target.epoch, origin)

    async def _at_time(self, user: str, channel: Channel, target: ReadTarget, origin: str | None = None) -> Read:
        assert target.up_to_time is not None
        time = parse_time(target.up_to_time, "up_to_time")
        return Read(user, channel.channel_id, await self.at_time(channel, time), (), target.epoch, origin)


def _position(ids: _ById, channel: str, id_: str, field: str) -> Position:
    position = ids.get((channel, id_))
    if position is None:
        raise MessageNotFound(f"there is no message {id_!r} in channel {channel!r}", field=field)
    if position.seq < 0:
        raise MessageWithoutSeq(field=field)
    return position
