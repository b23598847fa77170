"""Channels, members and messages in SQL."""

from collections.abc import Mapping, Sequence

from msgspec.json import Decoder

from readstate.api import Minus
from readstate.domain.model import START, Channel, Entry, LogPosition, Member, Message, Position, ReadState, Seq
from readstate.domain.rooms import channel_and_thread
from readstate.ports import Breakdown, TimelineLoad

from . import rows
from .session import Session, SqlTopic, as_json, ask

FEW = 50
"""The number of newest messages to look at first."""

_entries = Decoder(list[Entry], strict=False)


class SqlQueries(SqlTopic):
    async def load_channels(self, ids: Sequence[str]) -> Mapping[str, Channel]:
        found = await self._find(rows.channels, "channels", keys=as_json(ids))
        return {channel.channel_id: channel for channel in found}

    async def members(self, channel: str, after: str, limit: int) -> list[Member]:
        return await self._find(rows.members, "members_page", channel=channel, after=after, limit=limit)

    async def once_members(self, channel: str, users: Sequence[str]) -> list[str]:
        return await self._find(rows.names, "once_members", channel=channel, users=as_json(list(users)))

    async def joins(self, user: str, channels: Sequence[str]) -> dict[str, tuple[Seq, LogPosition]]:
        found = await self._find(rows.anything, "joins", user=user, keys=as_json(channels))
        return {channel: (seq, position) for channel, seq, position in found}

    async def by_id(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Message]:
        found = await self._find(rows.messages, "messages", keys=as_json(keys))
        return {(message.channel_id, message.id): message for message in found}

    async def by_seq(self, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Position]:
        found = await self._find(rows.positions, "by_seq", keys=as_json(keys))
        return {(channel, seq): Position(seq, id_, at) for channel, seq, id_, at in found}

    async def by_time(self, channel: str, time: int) -> Position:
        found = await self._database.read(lambda session: position_at(session, channel, time))
        return START if found is None or found.id is None else found

    async def own_seqs(self, user: str, channel: str, since: int, cap: int) -> tuple[int, ...]:
        return tuple(await self._find(rows.anything, "own_seqs", user=user, channel=channel, since=since, cap=cap))

    async def unread_messages(
        self, user: str, channel: str, state: ReadState, after: int, before: int, newest_first: bool, limit: int
    ) -> list[Message]:
        name = "unread_newest" if newest_first else "unread_oldest"
        room = {"user": user, "channel": channel, "seq": state.seq, "apart": as_json(sorted(state.apart))}
        return await self._find(rows.messages, name, **room, after=after, before=before, limit=limit)

    async def messages_since(self, channel: str, position: LogPosition, limit: int) -> list[Message]:
        since = {"channel": channel, "position": position}

        async def work(session: Session) -> list[Message]:
            for few in (FEW, limit + 1):
                newest = rows.messages.decode(await session.value("messages_since", **since, limit=few))
                if len(newest) < few:
                    break
            return newest + rows.messages.decode(await session.value("replies_since", **since, limit=limit + 1))

        found = await self._database.read(work)
        return sorted(found, key=lambda message: message.position)[: limit + 1]

    async def load_timeline(self, channel: str, cap: int) -> TimelineLoad:
        async def work(session: Session) -> tuple[list[tuple[str, int]], str]:
            changes = await ask(session, rows.anything, "changes", [channel])
            return changes, await session.value("timeline", channel=channel, limit=cap + 1)

        changes, text = await self._database.read(work)
        newest_first = _entries.decode(text)
        floor = newest_first[cap].seq if len(newest_first) > cap else 0
        return TimelineLoad(channel, dict(changes).get(channel, 0), newest_first[:cap][::-1], floor)

    async def breakdown(self, user: str, channel: str, state: ReadState) -> Breakdown:
        room = {"user": user, "channel": channel}

        async def work(session: Session) -> tuple[str, str | None]:
            groups = await session.value("breakdown", **room, seq=state.seq, apart=as_json(sorted(state.apart)))
            return groups, await session.value("explain_facts", **room)

        groups, facts = await self._database.read(work)
        after, own, deleted, silent, apart, unread, mentions = rows.anything.decode(groups)
        latest_seq, joined_seq, change = rows.anything.decode(facts or "[0,0,0]")
        return Breakdown(unread, mentions, after, Minus(own, deleted, silent, apart), latest_seq, joined_seq, change)

    async def wrote_since(self, user: str, positions: Sequence[tuple[str, int]]) -> list[str]:
        return await self._find(rows.names, "wrote_since", user=user, keys=as_json(positions))


async def position_at(session: Session, room: str, time: int) -> Position | None:
    """The newest position at or before a time, by binary search: times follow seqs. None: the room has no messages.

    Messages missing at the start of the room count as older: without one that is old enough, the position before the
    first message, which has no id.
    """
    channel, thread = channel_and_thread(room)
    values: dict[str, object] = {"channel": channel, "thread": thread}
    prefix = "reply_" if thread else ""
    low, high = await session.row(f"{prefix}ends", **values) or (None, None)
    if low is None:
        return None

    async def newest(seq: int) -> Position:
        row = await session.row(f"{prefix}at_or_before", **values, seq=seq)
        assert row is not None
        return Position(*row)

    if ((await newest(low)).at or 0) > time:
        return Position(low - 1, None, None)
    while low < high:
        middle = (low + high + 1) // 2
        found = await newest(middle)
        if (found.at or 0) <= time:
            low = middle
        else:
            high = found.seq - 1
    return await newest(low)
