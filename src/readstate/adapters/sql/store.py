"""The durable store in SQL, whatever the database: see `session`. Rules are not here: see `fold`."""

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
from .session import Database, Session, as_json
from .transfer import SqlTransfer
from .upkeep import SqlUpkeep

CURSOR_KEY = "cursors"
FEW = 50
"""So many of the newest messages are looked at first."""

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
"""Before everything that a tap shows."""


class SqlStore(SqlDeadLetters, SqlUpkeep):
    """Every port of the durable store."""

    def __init__(self, database: Database, fanout_max_members: int) -> None:
        self._database = database
        self._limit = fanout_max_members
        self.transfer = SqlTransfer(database, fanout_max_members)

    async def close(self) -> None:
        """Finish what was asked for, then stop."""
        await self._database.close()

    async def ping(self) -> None:
        """Raise StorageUnavailable if it can't be written, also because its disk is full."""
        await self._database.write(lambda session: session.value("touch"))

    async def store_id(self) -> int:
        """A number that no other store has."""
        number: int = await self._database.value("store_id")
        return number

    async def cursor_key(self) -> bytes:
        """The key that cursors are signed with: made once, whoever asks first."""
        known: bytes | None = await self._database.value("secret", secret=CURSOR_KEY)
        return await self._database.write(_make_cursor_key) if known is None else known

    async def next_generation(self, above: int = 0) -> int:
        """A number that was never given before."""
        generation: int = await self._database.write(lambda session: session.value("next_generation", above=above))
        return generation

    async def last_position(self) -> int:
        """Where in the log the last change stands."""
        position: int = await self._database.value("last_position")
        return position

    async def note_spool(self, name: str, until: int) -> None:
        """Reads wait in a spool; that counts until a time."""
        await self._database.write(lambda session: session.run("note_spool", spool=name, until=until))

    async def drop_spool(self, name: str) -> None:
        """Nothing waits there any more."""
        await self._database.write(lambda session: session.run("drop_spool", spool=name))

    async def spools(self, now: int) -> int:
        """How many spools reads wait in."""
        count: int = await self._database.value("spools", now=now)
        return count

    # ------------------------------------------------------------ writes

    async def apply(self, deliveries: Sequence[Delivery], online: Online, source: str = "") -> list[Effect]:
        """Fold events of channels, in order, in one transaction."""

        async def work(session: Session) -> list[Effect]:
            applying = Applying(session, self._limit, online)
            if not source:
                return await applying.apply(deliveries)
            return await applying.apply_shared(deliveries, source)

        return await self._database.write(work)

    async def places(self, source: str) -> dict[int, tuple[int, int]]:
        """(position, next offset) of the parts of a log."""
        places = as_places(await self._text("log_places", source=source))
        return {part: (place.position, place.offset) for part, place in places.items()}

    async def cut(self, source: str, part: int, end: int, known: tuple[int, int]) -> bool:
        """Begin a new base where a part of a log has lost its end. False if that is known already."""
        position, offset = known
        values = {"source": source, "part": part, "offset": end, "base": position - offset}
        return await self._database.write(lambda session: session.run("cut_log_place", **values)) > 0

    async def merge(self, events: Sequence[ReadEvent], shared: bool = False) -> Sequence[ReadEvent]:
        """Merge read states; each (user, channel) at most once. Returns those that it took."""

        async def work(session: Session) -> Sequence[ReadEvent]:
            gone = await erased_at(session, {event.user_id for event in events}) if shared else {}
            taken = [event for event in events if event.created_at > gone.get(event.user_id, -1)] if gone else events
            await session.put("merge_receipts", sorted(map(_receipt, taken)))
            return taken

        return await self._database.write(work)

    async def save_preferences(self, user: str, channel: str, preferences: Preferences, change: int) -> None:
        """Keep a member's preferences, unless newer ones are kept."""
        await self._run(
            "put_preferences",
            user,
            user=user,
            channel=channel,
            muted_until=preferences.muted_until,
            count=preferences.count,
            receipts=preferences.receipts,
            pinned=preferences.pinned,
            archived_seq=preferences.archived_seq,
            change=change,
        )

    async def save_undo(self, token: str, user: str, expires_at: int, now: int, items: Sequence[UndoItem]) -> None:
        """Keep what an undo needs; drops what is over."""

        async def work(session: Session) -> None:
            await session.run("expire_undo", now=now)
            await session.run("save_undo", token=token, user=user, expires_at=expires_at, items=as_json(items))

        await self._database.write(work)

    async def drop_undo(self, token: str) -> None:
        """The token is used."""
        await self._run("drop_undo", token=token)

    # ------------------------------------------------------------ loads

    async def load_user(self, user: str) -> list[LoadedUserRoom]:
        """Every channel that the user is in, has left, or has a pointer in."""
        return _user_rooms.decode(await self._text("load_user", user=user))

    async def load_ledgers(self, wanted: Sequence[tuple[str, str, Mode, ReadState]], cap: int) -> list[LedgerLoad]:
        """The newest `cap` unread messages of each (user, channel)."""
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
        """Channels, also deleted ones; unknown ones are left out."""
        found = gathering.channels.decode(await self._text("channels", keys=as_json(ids)))
        return {channel.channel_id: channel for channel in found}

    async def load_timeline(self, channel: str, cap: int) -> TimelineLoad:
        """The newest `cap` countable messages."""

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
        """None: unknown, or over."""
        items = await self._database.value("load_undo", token=token, user=user, now=now)
        return None if items is None else _undo_items.decode(items)

    # ------------------------------------------------------------ queries

    async def by_id(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Message]:
        """Messages by (channel, id)."""
        found = gathering.messages.decode(await self._text("messages", keys=as_json(keys)))
        return {(message.channel_id, message.id): message for message in found}

    async def by_seq(self, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Position]:
        """Places by (channel, seq)."""
        found = gathering.places.decode(await self._text("by_seq", keys=as_json(keys)))
        return {(channel, seq): Position(seq, id_, at) for channel, seq, id_, at in found}

    async def by_time(self, channel: str, time: int) -> Position:
        """The newest place at or before a time."""
        return await self._database.read(lambda session: _by_time(session, channel, time))

    async def own_seqs(self, user: str, channel: str, since: int, cap: int) -> tuple[int, ...]:
        """The newest of the user's own messages from `since` on."""
        return tuple(_anything.decode(await self._text("own_seqs", user=user, channel=channel, since=since, cap=cap)))

    async def unread_messages(
        self, user: str, source: UnreadSource, after: int, before: int, newest_first: bool, limit: int
    ) -> list[Message]:
        """Unread messages with a time strictly between `after` and `before`."""
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
        """Messages that came after a place in the log, in order; one more than `limit` says that there are more."""

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
        """(seq, place in the log) of the user's join, of those of these channels that the user is in."""
        rows = _anything.decode(await self._text("joins", user=user, keys=as_json(channels)))
        return {channel: (seq, position) for channel, seq, position in rows}

    async def once_members(self, channel: str, users: Sequence[str]) -> list[str]:
        """Those of these users who were in a channel and have left it."""
        return _names.decode(await self._text("once_members", channel=channel, users=as_json(list(users))))

    async def members(self, channel: str, after: str, limit: int) -> list[Member]:
        """Members by id."""
        return gathering.members.decode(await self._text("members_page", channel=channel, after=after, limit=limit))

    async def breakdown(self, user: str, channel: str, state: ReadState) -> Breakdown:
        """Count from scratch."""

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
        """What is kept of a user."""
        row = await self._database.read(lambda session: session.row("activity", user=user))
        return Activity(*row) if row else Activity()

    async def save_seen(self, user: str, at: int) -> None:
        """When a user was last online."""
        await self._run("save_seen", user=user, at=at)

    async def save_receipts(self, user: str, receipts: ReceiptsPreference, change: int) -> None:
        """Whether a user's receipts are public, unless something newer is kept."""
        await self._run("save_receipts", user, user=user, receipts=receipts, change=change)

    async def erased_until(self, user: str) -> int:
        """When the user was erased; at the least, up to when that is not known any more."""
        at: int = await self._database.value("erased_until", hash=hash_of(user))
        return at

    async def badge_count(self, user: str) -> int:
        """How many different people wrote to a user while away, since the last tap: one scan of an index."""
        count: int = await self._database.value("badge_count", user=user)
        return count

    async def badge_senders(self, user: str) -> tuple[int, frozenset[str]]:
        """(last tap, who wrote since)."""

        async def work(session: Session) -> tuple[int, frozenset[str]]:
            row = await session.row("activity", user=user)
            senders = await session.value("badge_senders", user=user)
            return (row[0] if row else 0), frozenset(_anything.decode(senders))

        return await self._database.read(work)

    async def save_undelivered(self, undelivered: Sequence[Undelivered]) -> list[Undelivered]:
        """Note messages that did not reach their receivers after all. Returns those that it has now."""

        async def work(session: Session) -> list[Undelivered]:
            # Else a channel could be deleted, or a member erased, between the look and the note, and miss the note.
            await session.lock({one.channel_id for one in undelivered})
            living = await _living(session, undelivered)
            if living:
                await session.run("put_undelivered", rows=as_json(living))
            return living

        return await self._database.write(work)

    async def receivers_of_gone(self, undelivered: Sequence[Undelivered]) -> set[str]:
        """The receivers of those of these that are there no more: a look at the badges' index for each."""
        keys = [(one.receiver_id, one.accepted_at, one.sender_id) for one in undelivered]
        return set(_names.decode(await self._text("receivers_of_gone", keys=as_json(keys))))

    async def tap(self, user: str, at: int, limit: int, until: float = inf) -> Tapped:
        """Set the badge to 0: the last tap is this one, unless a later one stands. One after another for each user.

        Raises StorageUnavailable rather than commit after `until` on the monotonic clock.
        """

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
        """Let a stored tap that is further ahead than clocks differ count as one of now."""
        await self._database.write(lambda session: _bound_tap(session, user, now), user)

    async def tapped(
        self, user: str, since: int, until: int, before: TapCursor, limit: int
    ) -> list[tuple[int, Message]]:
        """(accepted at, message) of what was shown by the tap of `until`, newest first, from a place on."""
        text = await self._database.read(lambda session: _tapped(session, user, since, until, before, limit))
        return _with_times(text)

    async def expire_undelivered(self, after: str, before: int, tapped: int, limit: int) -> tuple[str | None, int]:
        """Remove some of what was accepted up to `before` and shown by a tap, if that was not after `tapped`.

        Goes through the receivers after this one by id; (where to go on, None at the end; how many were removed).
        """
        receivers: list[str] = _anything.decode(await self._text("receivers_after", after=after, limit=limit))
        if not receivers:
            return None, 0
        values = {"keys": as_json(receivers), "before": before, "tapped": tapped, "limit": limit}
        removed = await self._database.write(lambda session: session.run("expire_undelivered", **values))
        return (after if removed == limit else receivers[-1]), removed

    # ------------------------------------------------------------ receipts

    async def readers(self, channel: str) -> list[Reading]:
        """The members whose receipts others may see, also those who have read nothing."""
        return _readings.decode(await self._text("readers", channel=channel))

    async def seen_count(self, channel: str, sender: str, seq: int) -> int:
        """How many members other than the sender have read a place."""
        values = {"channel": channel, "sender": sender, "seq": seq}
        count: int = await self._database.value("seen_count", **values)
        return count

    async def cut_skipped(self, user: str, channel: str, seq: int) -> None:
        """The user marks unread from a seq on: what comes after it is no longer marked by a join."""
        await self._run("cut_skipped", user, user=user, channel=channel, seq=seq)

    async def wrote_since(self, user: str, places: Sequence[tuple[str, int]]) -> list[str]:
        """Of these (channel, seq), those in which somebody else has written since."""
        found: list[str] = _anything.decode(await self._text("wrote_since", user=user, keys=as_json(places)))
        return found

    async def public_readers(self, keys: Sequence[Key]) -> dict[Key, tuple[tuple[int, int], ...]]:
        """Of these (user, channel), the members whose receipts others may see, and what joins alone marked."""
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
    key: bytes = await session.value("secret", secret=CURSOR_KEY)  # perhaps another process was first
    return key


def _receipt(e: ReadEvent) -> tuple[Any, ...]:
    apart = as_json(e.apart) if e.apart else "[]"
    place = (e.last_read_id, e.last_read_at)
    return (e.user_id, e.channel_id, e.epoch, e.last_read_seq, apart, *place, e.read_at, e.change)


async def _living(session: Session, undelivered: Sequence[Undelivered]) -> list[Undelivered]:
    """Those whose message is there, and of whose people nobody was erased since."""
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
    """A tap by a clock that was ahead has shown what that clock accepted: this must not count again."""
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
    """Halves the range of seqs until the place is found: order by time is order by seq."""
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
    """Keeps the newest `cap`; one more was asked for, to know whether there are more."""
    if len(load.entries) <= cap:
        return load
    kept, floor = load.entries[-cap:], load.entries[-cap - 1].seq
    return LedgerLoad(load.user_id, load.channel_id, load.state, load.change, kept, floor)
