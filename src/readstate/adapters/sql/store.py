"""The durable store on any SQL database (see `session`). Rules are not here: see `domain/folding`."""

from collections.abc import Mapping, Sequence
from math import inf
from secrets import token_bytes
from time import monotonic
from typing import Any

import msgspec

from readstate.api import Minus
from readstate.domain.errors import StorageUnavailable
from readstate.domain.events import Delivery, ReadEvent
from readstate.domain.facts import Effect, Key
from readstate.domain.model import (
    FOREVER,
    Channel,
    Entry,
    Member,
    Message,
    Mode,
    Position,
    Preferences,
    Reading,
    ReadState,
    ReceiptsPreference,
    SeenPlace,
    Undelivered,
)
from readstate.domain.rooms import channel_and_thread, is_thread
from readstate.domain.rules import MAX_AHEAD_MS, receipt_seq, seen_place
from readstate.ports import (
    Activity,
    Breakdown,
    LedgerLoad,
    LoadedUserRoom,
    Online,
    TapCursor,
    Tapped,
    TimelineLoad,
    UndoItem,
    UnreadSource,
)

from . import gathering
from .applying import Applying, as_places, erased_at, hash_of
from .dead_letters import SqlDeadLetters
from .gathering import ask, place
from .preferences import columns_of
from .session import Database, Session, as_json
from .transfer import SqlTransfer
from .upkeep import SqlUpkeep

CURSOR_KEY = "cursors"
FEW = 50
"""The number of newest messages to look at first."""

_user_rooms = msgspec.json.Decoder(list[LoadedUserRoom], strict=False)
_ledger_entries = msgspec.json.Decoder(list[tuple[int, Entry]], strict=False)
_timeline_entries = msgspec.json.Decoder(list[Entry], strict=False)
_undo_items = msgspec.json.Decoder(list[UndoItem])
_names = msgspec.json.Decoder(list[str])
_readings = msgspec.json.Decoder(list[Reading])
_anything = msgspec.json.Decoder()


class _Accepted(msgspec.Struct):
    accepted_at: int


_accepted = msgspec.json.Decoder(list[_Accepted])
_NEWEST = TapCursor(FOREVER, 0, "", "")
"""A cursor before everything that a tap shows."""


class SqlStore(SqlDeadLetters, SqlUpkeep):
    """Every port of the durable store."""

    def __init__(self, database: Database, fanout_max_members: int) -> None:
        self._database = database
        self._limit = fanout_max_members
        self.transfer = SqlTransfer(database, fanout_max_members)

    async def close(self) -> None:
        await self._database.close()

    async def ping(self) -> None:
        await self._database.write(lambda session: session.value("touch"))

    async def store_id(self) -> int:
        number: int = await self._database.value("store_id")
        return number

    async def cursor_key(self) -> bytes:
        known: bytes | None = await self._database.value("secret", secret=CURSOR_KEY)
        return await self._database.write(_make_cursor_key) if known is None else known

    async def next_generation(self, above: int = 0) -> int:
        generation: int = await self._database.write(lambda session: session.value("next_generation", above=above))
        return generation

    async def last_position(self) -> int:
        position: int = await self._database.value("last_position")
        return position

    async def note_spool(self, name: str, until: int) -> None:
        await self._database.write(lambda session: session.run("note_spool", spool=name, until=until))

    async def drop_spool(self, name: str) -> None:
        await self._database.write(lambda session: session.run("drop_spool", spool=name))

    async def spools(self, now: int) -> int:
        """The number of spools with waiting reads, according to notes that still count."""
        count: int = await self._database.value("spools", now=now)
        return count

    # ------------------------------------------------------------ writes

    async def apply(self, deliveries: Sequence[Delivery], online: Online, source: str = "") -> list[Effect]:
        async def work(session: Session) -> list[Effect]:
            applying = Applying(session, self._limit, online)
            if not source:
                return await applying.apply(deliveries)
            return await applying.apply_shared(deliveries, source)

        return await self._database.write(work)

    async def places(self, source: str) -> dict[int, tuple[int, int]]:
        places = as_places(await self._text("log_places", source=source))
        return {part: (place.position, place.offset) for part, place in places.items()}

    async def cut(self, source: str, part: int, end: int, known: tuple[int, int]) -> bool:
        """Begin a new base where a partition has lost its tail. False if another process has done it already."""
        position, offset = known
        values = {"source": source, "part": part, "offset": end, "base": position - offset}
        return await self._database.write(lambda session: session.run("cut_log_place", **values)) > 0

    async def merge(self, events: Sequence[ReadEvent], shared: bool = False) -> Sequence[ReadEvent]:
        async def work(session: Session) -> Sequence[ReadEvent]:
            gone = await erased_at(session, {event.user_id for event in events}) if shared else {}
            taken = [event for event in events if event.created_at > gone.get(event.user_id, -1)] if gone else events
            await session.put("merge_receipts", sorted(map(_receipt, taken)))
            return taken

        return await self._database.write(work)

    async def save_preferences(self, user: str, channel: str, preferences: Preferences, change: int) -> None:
        await self._run(
            "put_preferences",
            user,
            user=user,
            channel=channel,
            change=change,
            **columns_of(preferences),
        )

    async def save_undo(self, token: str, user: str, expires_at: int, now: int, items: Sequence[UndoItem]) -> None:
        async def work(session: Session) -> None:
            await session.run("expire_undo", now=now)
            await session.run("save_undo", token=token, user=user, expires_at=expires_at, items=as_json(items))

        await self._database.write(work)

    async def drop_undo(self, token: str) -> None:
        await self._run("drop_undo", token=token)

    # ------------------------------------------------------------ loads

    async def load_user(self, user: str) -> list[LoadedUserRoom]:
        return _user_rooms.decode(await self._text("load_user", user=user))

    async def load_ledgers(self, wanted: Sequence[tuple[str, str, Mode, ReadState]], cap: int) -> list[LedgerLoad]:
        keys, thread_keys = [], []
        for index, (user, room, mode, state) in enumerate(wanted):
            apart = sorted(state.apart)
            if is_thread(room):
                channel, thread = channel_and_thread(room)
                thread_keys.append((index, user, channel, state.seq, thread, apart))
            else:
                keys.append((index, user, room, state.seq, int(mode is Mode.TIMELINE), apart))

        async def work(session: Session) -> tuple[str, str, str]:
            changes = await ask(session, "changes", {room for _, room, _, _ in wanted})
            entries = replies = "[]"
            if keys:
                entries = await session.value("ledger_entries", keys=as_json(keys), cap=cap)
            if thread_keys:
                replies = await session.value("thread_entries", keys=as_json(thread_keys), cap=cap)
            return changes, entries, replies

        changes, entries, replies = await self._database.read(work)
        numbers: dict[str, int] = dict(_anything.decode(changes))
        loads = [LedgerLoad(user, channel, state, numbers.get(channel, 0), []) for user, channel, _, state in wanted]
        for index, entry in _ledger_entries.decode(entries) + _ledger_entries.decode(replies):
            loads[index].entries.append(entry)
        return [_cut(load, cap) for load in loads]

    async def load_channels(self, ids: Sequence[str]) -> Mapping[str, Channel]:
        found = gathering.channels.decode(await self._text("channels", keys=as_json(ids)))
        return {channel.channel_id: channel for channel in found}

    async def load_timeline(self, channel: str, cap: int) -> TimelineLoad:
        async def work(session: Session) -> tuple[str, str]:
            changes = await ask(session, "changes", [channel])
            return changes, await session.value("timeline", channel=channel, limit=cap + 1)

        changes, rows = await self._database.read(work)
        numbers: dict[str, int] = dict(_anything.decode(changes))
        newest_first = _timeline_entries.decode(rows)
        entries = newest_first[:cap][::-1]
        floor = newest_first[cap].seq if len(newest_first) > cap else 0
        return TimelineLoad(channel, numbers.get(channel, 0), entries, floor)

    async def load_undo(self, token: str, user: str, now: int) -> list[UndoItem] | None:
        items = await self._database.value("load_undo", token=token, user=user, now=now)
        return None if items is None else _undo_items.decode(items)

    # ------------------------------------------------------------ queries

    async def by_id(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Message]:
        found = gathering.messages.decode(await self._text("messages", keys=as_json(keys)))
        return {(message.channel_id, message.id): message for message in found}

    async def by_seq(self, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Position]:
        found = gathering.places.decode(await self._text("by_seq", keys=as_json(keys)))
        return {(channel, seq): Position(seq, id_, at) for channel, seq, id_, at in found}

    async def by_time(self, channel: str, time: int) -> Position:
        return await self._database.read(lambda session: _by_time(session, channel, time))

    async def own_seqs(self, user: str, channel: str, since: int, cap: int) -> tuple[int, ...]:
        return tuple(_anything.decode(await self._text("own_seqs", user=user, channel=channel, since=since, cap=cap)))

    async def unread_messages(
        self, user: str, source: UnreadSource, after: int, before: int, newest_first: bool, limit: int
    ) -> list[Message]:
        text = await self._text(
            "unread_newest" if newest_first else "unread_oldest",
            user=user,
            channel=source.channel_id,
            seq=source.state.seq,
            apart=as_json(sorted(source.state.apart)),
            after=after,
            before=before,
            limit=limit,
        )
        return gathering.messages.decode(text)

    async def messages_since(self, channel: str, position: int, limit: int) -> list[Message]:
        async def work(session: Session) -> tuple[list[Message], str]:
            for few in (FEW, limit + 1):
                rows = await session.value("messages_since", channel=channel, position=position, limit=few)
                newest = gathering.messages.decode(rows)
                if len(newest) < few:
                    break
            return newest, await session.value("replies_since", channel=channel, position=position, limit=limit + 1)

        newest, replies = await self._database.read(work)
        found = newest + gathering.messages.decode(replies)
        return sorted(found, key=lambda message: message.position)[: limit + 1]

    async def joins(self, user: str, channels: Sequence[str]) -> dict[str, tuple[int, int]]:
        rows = _anything.decode(await self._text("joins", user=user, keys=as_json(channels)))
        return {channel: (seq, position) for channel, seq, position in rows}

    async def once_members(self, channel: str, users: Sequence[str]) -> list[str]:
        return _names.decode(await self._text("once_members", channel=channel, users=as_json(list(users))))

    async def members(self, channel: str, after: str, limit: int) -> list[Member]:
        return gathering.members.decode(await self._text("members_page", channel=channel, after=after, limit=limit))

    async def breakdown(self, user: str, channel: str, state: ReadState) -> Breakdown:
        async def work(session: Session) -> tuple[str, str | None]:
            apart = as_json(sorted(state.apart))
            groups = await session.value("breakdown", user=user, channel=channel, seq=state.seq, apart=apart)
            return groups, await session.value("explain_facts", user=user, channel=channel)

        groups, facts = await self._database.read(work)
        after, own, deleted, silent, apart, unread, mentions = _anything.decode(groups)
        latest_seq, joined_seq, change = _anything.decode(facts or "[0,0,0]")
        return Breakdown(unread, mentions, after, Minus(own, deleted, silent, apart), latest_seq, joined_seq, change)

    # ------------------------------------------------------------ users: activity and badge

    async def activity(self, user: str) -> Activity:
        row = await self._database.read(lambda session: session.row("activity", user=user))
        return Activity(*row) if row else Activity()

    async def save_seen(self, user: str, at: int) -> None:
        await self._run("save_seen", user=user, at=at)

    async def save_receipts(self, user: str, receipts: ReceiptsPreference, change: int) -> None:
        await self._run("save_receipts", user, user=user, receipts=receipts, change=change)

    async def erased_until(self, user: str) -> int:
        at: int = await self._database.value("erased_until", hash=hash_of(user))
        return at

    async def badge_count(self, user: str) -> int:
        """One scan of a covering index."""
        count: int = await self._database.value("badge_count", user=user)
        return count

    async def badge_senders(self, user: str) -> tuple[int, frozenset[str]]:
        async def work(session: Session) -> tuple[int, frozenset[str]]:
            row = await session.row("activity", user=user)
            senders = await session.value("badge_senders", user=user)
            return (row[0] if row else 0), frozenset(_anything.decode(senders))

        return await self._database.read(work)

    async def save_undelivered(self, undelivered: Sequence[Undelivered]) -> list[Undelivered]:
        async def work(session: Session) -> list[Undelivered]:
            # Otherwise a delete or an erase between the check and the insert would miss the inserted row.
            await session.lock({one.channel_id for one in undelivered})
            living = await _living(session, undelivered)
            if living:
                await session.run("put_undelivered", rows=as_json(living))
            return living

        return await self._database.write(work)

    async def receivers_of_gone(self, undelivered: Sequence[Undelivered]) -> set[str]:
        keys = [(one.receiver_id, one.accepted_at, one.sender_id) for one in undelivered]
        return set(_names.decode(await self._text("receivers_of_gone", keys=as_json(keys))))

    async def tap(self, user: str, at: int, limit: int, until: float = inf) -> Tapped:
        async def work(session: Session) -> tuple[int, int, str]:
            since = await session.value("begin_tap", user=user)
            if since > at + MAX_AHEAD_MS:
                await _bound_tap(session, user, at)
                since = at
            count = await session.value("tapped_count", user=user, since=since, until=at)
            text = await _tapped(session, user, since, at, _NEWEST, limit)
            await session.run("save_tap", user=user, at=at)
            if monotonic() > until:
                raise StorageUnavailable("the tap took too long; nothing was changed, try again")
            return since, count, text

        since, count, text = await self._database.write(work, user)
        return Tapped(since, max(since, at), count, _with_times(text))

    async def bound_tap(self, user: str, now: int) -> None:
        await self._database.write(lambda session: _bound_tap(session, user, now), user)

    async def tapped(
        self, user: str, since: int, until: int, before: TapCursor, limit: int
    ) -> list[tuple[int, Message]]:
        text = await self._database.read(lambda session: _tapped(session, user, since, until, before, limit))
        return _with_times(text)

    async def expire_undelivered(self, after: str, before: int, tapped: int, limit: int) -> tuple[str | None, int]:
        receivers: list[str] = _anything.decode(await self._text("receivers_after", after=after, limit=limit))
        if not receivers:
            return None, 0
        values = {"keys": as_json(receivers), "before": before, "tapped": tapped, "limit": limit}
        removed = await self._database.write(lambda session: session.run("expire_undelivered", **values))
        return (after if removed == limit else receivers[-1]), removed

    # ------------------------------------------------------------ receipts

    async def readers(self, channel: str) -> list[Reading]:
        return _readings.decode(await self._text("readers", channel=channel))

    async def seen_count(self, channel: str, sender: str, seq: int) -> int:
        values = {"channel": channel, "sender": sender, "seq": seq}
        count: int = await self._database.value("seen_count", **values)
        return count

    async def cut_skipped(self, user: str, channel: str, seq: int) -> None:
        await self._run("cut_skipped", user, user=user, channel=channel, seq=seq)

    async def wrote_since(self, user: str, places: Sequence[tuple[str, int]]) -> list[str]:
        found: list[str] = _anything.decode(await self._text("wrote_since", user=user, keys=as_json(places)))
        return found

    async def public_readers(self, keys: Sequence[Key]) -> dict[Key, tuple[tuple[int, int], ...]]:
        rows = _anything.decode(await self._text("public_readers", keys=as_json(keys)))
        return {(user, channel): tuple((a, b) for a, b in skipped) for user, channel, skipped in rows}

    async def receipts_since(self, user: str, since: int, most_members: int, limit: int) -> list[SeenPlace] | None:
        text = await self._text("receipts_since", user=user, since=since, most=most_members, limit=limit + 1)
        rows = _anything.decode(text)
        if len(rows) > limit:
            return None
        return [
            seen_place(reader, channel, Position(seq, id_, None), read_at, skipped)
            for channel, reader, seq, id_, read_at, skipped in rows
            if receipt_seq(seq, skipped) or not seq  # who only joined has read nothing
        ]

    # ------------------------------------------------------------ one statement

    async def _text(self, name: str, **values: object) -> str:
        text: str = await self._database.value(name, **values)
        return text

    async def _run(self, name: str, order: str | None = None, **values: object) -> None:
        await self._database.write(lambda session: session.run(name, **values), order)


async def _make_cursor_key(session: Session) -> bytes:
    await session.run("make_secret", secret=CURSOR_KEY, bytes=token_bytes())
    key: bytes = await session.value("secret", secret=CURSOR_KEY)  # another process may have been first
    return key


def _receipt(e: ReadEvent) -> tuple[Any, ...]:
    apart = as_json(e.apart) if e.apart else "[]"
    place = (e.last_read_id, e.last_read_at)
    return (e.user_id, e.channel_id, e.epoch, e.last_read_seq, apart, *place, e.read_at, e.change)


async def _living(session: Session, undelivered: Sequence[Undelivered]) -> list[Undelivered]:
    """Those whose message still exists, and whose sender and receiver have not been erased since."""
    keys = {(one.channel_id, one.message_id) for one in undelivered}
    there = {tuple(found) for found in _anything.decode(await ask(session, "living_messages", sorted(keys)))}
    gone = await erased_at(session, {user for one in undelivered for user in (one.sender_id, one.receiver_id)})
    return [
        one
        for one in undelivered
        if (one.channel_id, one.message_id, one.sender_id) in there
        and one.accepted_at > max(gone.get(one.sender_id, -1), gone.get(one.receiver_id, -1))
    ]


async def _bound_tap(session: Session, user: str, now: int) -> None:
    """Bring back a tap that a fast clock put in the future.

    The tap has shown what that clock accepted, also in the future: those rows are dropped, so that they don't count
    again.
    """
    latest = now + MAX_AHEAD_MS
    await session.run("drop_tapped_ahead", user=user, latest=latest)
    await session.run("bound_tap", user=user, now=now, latest=latest)


async def _tapped(session: Session, user: str, since: int, until: int, before: TapCursor, limit: int) -> str:
    """What was accepted between two taps, as JSON."""
    text: str = await session.value(
        "tapped_messages",
        user=user,
        since=since,
        until=min(until, before.accepted_at),
        accepted_at=before.accepted_at,
        at=before.at,
        channel=before.channel_id,
        message=before.message_id,
        limit=limit,
    )
    return text


def _with_times(text: str) -> list[tuple[int, Message]]:
    accepted = [one.accepted_at for one in _accepted.decode(text)]
    return list(zip(accepted, gathering.messages.decode(text), strict=True))


async def _by_time(session: Session, channel: str, time: int) -> Position:
    """Binary search over seqs: order by time is order by seq."""
    low, high = await session.row("seq_range", channel=channel) or (0, 0)
    best = Position(0, None, None)
    while 0 < low <= high:
        middle = await place(session, channel, (low + high) // 2)
        if middle.at is not None and middle.at <= time:
            best, low = middle, middle.seq + 1
        else:
            high = middle.seq - 1
    return best


def _cut(load: LedgerLoad, cap: int) -> LedgerLoad:
    """Keep the newest `cap` entries; the query returns one more, to show whether there are more."""
    if len(load.entries) <= cap:
        return load
    kept, floor = load.entries[-cap:], load.entries[-cap - 1].seq
    return LedgerLoad(load.user_id, load.channel_id, load.state, load.change, kept, floor)
