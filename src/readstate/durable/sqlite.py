"""The durable store in one SQLite file."""

import sqlite3
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..api import Minus
from ..events import Delivery, ReadEvent
from ..facts import Changes, Effect, Facts, Key, Wants, runs, wants, wants_next
from ..fold import fold
from ..model import (
    Channel,
    Entry,
    Member,
    Message,
    Mode,
    Pointer,
    Position,
    Preferences,
    ReadState,
    ReceiptsPreference,
    SeenPlace,
    Undelivered,
)
from ..ports import Activity, Breakdown, LedgerLoad, SeatLoad, TimelineLoad, UndoItem, UnreadSource
from ..rooms import SEPARATOR, channel_and_thread, is_thread
from ..rules import receipt_seq, seen_place
from .sql import for_rows, queries
from .sqlite_engine import SqliteEngine, connect, execute_rows, migrate
from .transfer import SqliteTransfer

FEW = 50
"""So many of the newest messages are looked at first."""
MAX_OWN = 10_000
"""Of a joiner's own messages, the newest that can be unread at all."""
SQL = queries("sqlite")
MERGES = for_rows(SQL["merge_receipts"], (500, 100, 20, 5, 1))
"""The same statement for so many rows."""

_channels = msgspec.json.Decoder(list[Channel], strict=False)
_messages = msgspec.json.Decoder(list[Message], strict=False)
_members = msgspec.json.Decoder(list[Member], strict=False)
_pointers = msgspec.json.Decoder(list[tuple[str, str, Pointer]])
_seats = msgspec.json.Decoder(list[SeatLoad], strict=False)
_ledger_entries = msgspec.json.Decoder(list[tuple[int, Entry]], strict=False)
_timeline_entries = msgspec.json.Decoder(list[Entry], strict=False)
_places = msgspec.json.Decoder(list[tuple[str, int, str, int]])
_undo_items = msgspec.json.Decoder(list[UndoItem])
_anything = msgspec.json.Decoder()


class SqliteStore:
    """Every port of the durable store over one file. Rules are not here: see `fold`."""

    def __init__(self, engine: SqliteEngine, fanout_max_members: int) -> None:
        self._engine = engine
        self._limit = fanout_max_members
        self.transfer = SqliteTransfer(engine, fanout_max_members)

    @classmethod
    async def open(cls, path: Path, fanout_max_members: int) -> "SqliteStore":
        """Open the file, making and migrating it as needed."""
        connection = connect(path)
        try:
            migrate(connection)
        finally:
            connection.close()
        return cls(SqliteEngine(path), fanout_max_members)

    async def close(self) -> None:
        """Finish what was asked for, then stop."""
        await self._engine.close()

    async def ping(self) -> None:
        """Raise StorageUnavailable if it can't be written."""
        await self._engine.write(lambda db: db.execute(SQL["touch"]) and None)

    async def next_generation(self) -> int:
        """A number that was never given before."""
        generation: int = await self._engine.write(lambda db: db.execute(SQL["next_generation"]).fetchone()[0])
        return generation

    async def last_position(self) -> int:
        """Where in the log the last change stands."""
        position: int = await self._engine.read(lambda db: db.execute(SQL["last_position"]).fetchone()[0])
        return position

    async def pragma(self, name: str, value: int) -> None:
        """Set a PRAGMA of the writing connection, such as `query_only` for a maintenance window."""
        await self._engine.pragma(name, value)

    # ------------------------------------------------------------ writes

    async def apply(self, deliveries: Sequence[Delivery], online: Container[str]) -> list[Effect]:
        """Fold events of channels, in order, in one transaction."""
        return await self._engine.write(lambda db: self._apply(db, deliveries, online))

    def _apply(self, db: sqlite3.Connection, deliveries: Sequence[Delivery], online: Container[str]) -> list[Effect]:
        effects: list[Effect] = []
        for run in runs(deliveries):
            facts = Facts()
            _gather(db, wants(run), facts)
            _gather(db, wants_next(run, facts), facts)
            changes, outcome = fold(run, facts, self._limit, online)
            _store(db, changes)
            effects += outcome
        return effects

    async def merge(self, events: Sequence[ReadEvent]) -> None:
        """Merge read states; each (user, channel) at most once."""
        rows = sorted(
            (
                e.user_id,
                e.channel_id,
                e.epoch,
                e.last_read_seq,
                _json(e.apart) if e.apart else "[]",
                e.last_read_id,
                e.last_read_at,
                e.read_at,
                e.change,
            )
            for e in events
        )
        await self._engine.write(lambda db: execute_rows(db, MERGES, rows))

    async def save_preferences(self, user: str, channel: str, preferences: Preferences, change: int) -> None:
        """Keep a member's preferences."""
        values = {
            "user": user,
            "channel": channel,
            "muted_until": preferences.muted_until,
            "count": preferences.count,
            "receipts": preferences.receipts,
            "pinned": preferences.pinned,
            "archived_seq": preferences.archived_seq,
            "change": change,
        }
        await self._engine.write(lambda db: db.execute(SQL["put_preferences"], values) and None)

    async def save_undo(self, token: str, user: str, expires_at: int, now: int, items: Sequence[UndoItem]) -> None:
        """Keep what an undo needs; drops what is over."""
        values = {"token": token, "user": user, "expires_at": expires_at, "items": _json(items)}

        def work(db: sqlite3.Connection) -> None:
            db.execute(SQL["expire_undo"], {"now": now})
            db.execute(SQL["save_undo"], values)

        await self._engine.write(work)

    async def drop_undo(self, token: str) -> None:
        """The token is used."""
        await self._engine.write(lambda db: db.execute(SQL["drop_undo"], {"token": token}) and None)

    # ------------------------------------------------------------ loads

    async def load_user(self, user: str) -> list[SeatLoad]:
        """Every channel that the user is in, has left, or has a pointer in."""
        return _seats.decode(await self._text("load_user", user=user))

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

        def work(db: sqlite3.Connection) -> tuple[str, str, str]:
            changes = _all(db, "changes", {room for _, room, _, _ in wanted})
            entries = db.execute(SQL["ledger_entries"], {"keys": _json(keys), "cap": cap}).fetchone()[0]
            replies = "[]"
            if thread_keys:
                replies = db.execute(SQL["thread_entries"], {"keys": _json(thread_keys), "cap": cap}).fetchone()[0]
            return changes, entries, replies

        changes, entries, replies = await self._engine.read(work)
        numbers: dict[str, int] = dict(_anything.decode(changes))
        loads = [LedgerLoad(user, channel, state, numbers.get(channel, 0), []) for user, channel, _, state in wanted]
        for index, entry in _ledger_entries.decode(entries) + _ledger_entries.decode(replies):
            loads[index].entries.append(entry)
        return [_cut(load, cap) for load in loads]

    async def load_channels(self, ids: Sequence[str]) -> Mapping[str, Channel]:
        """Channels, also deleted ones; unknown ones are left out."""
        found = _channels.decode(await self._text("channels", keys=_json(ids)))
        return {channel.channel_id: channel for channel in found}

    async def load_timeline(self, channel: str, cap: int) -> TimelineLoad:
        """The newest `cap` countable messages."""

        def work(db: sqlite3.Connection) -> tuple[str, str]:
            changes = db.execute(SQL["changes"], {"keys": _json([channel])}).fetchone()[0]
            rows = db.execute(SQL["timeline"], {"channel": channel, "limit": cap + 1}).fetchone()[0]
            return changes, rows

        changes, rows = await self._engine.read(work)
        numbers: dict[str, int] = dict(_anything.decode(changes))
        newest_first = _timeline_entries.decode(rows)
        entries = newest_first[:cap][::-1]
        floor = newest_first[cap].seq if len(newest_first) > cap else 0
        return TimelineLoad(channel, numbers.get(channel, 0), entries, floor)

    async def load_undo(self, token: str, user: str, now: int) -> list[UndoItem] | None:
        """None: unknown, or over."""
        values = {"token": token, "user": user, "now": now}
        row = await self._engine.read(lambda db: db.execute(SQL["load_undo"], values).fetchone())
        return None if row is None else _undo_items.decode(row[0])

    # ------------------------------------------------------------ queries

    async def by_id(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Message]:
        """Messages by (channel, id)."""
        found = _messages.decode(await self._text("messages", keys=_json(keys)))
        return {(message.channel_id, message.id): message for message in found}

    async def by_seq(self, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Position]:
        """Places by (channel, seq)."""
        found = _places.decode(await self._text("by_seq", keys=_json(keys)))
        return {(channel, seq): Position(seq, id_, at) for channel, seq, id_, at in found}

    async def by_time(self, channel: str, time: int) -> Position:
        """The newest place at or before a time."""
        return await self._engine.read(lambda db: _by_time(db, channel, time))

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
            apart=_json(sorted(source.state.apart)),
            after=after,
            before=before,
            limit=limit,
        )
        return _messages.decode(text)

    async def messages_since(self, channel: str, position: int, limit: int) -> list[Message]:
        """Messages that came after a place in the log, in order; one more than `limit` says that there are more."""
        values = {"channel": channel, "position": position}

        def work(db: sqlite3.Connection) -> tuple[list[Message], str]:
            for few in (FEW, limit + 1):
                rows = db.execute(SQL["messages_since"], values | {"limit": few}).fetchone()[0]
                newest = _messages.decode(rows)
                if len(newest) < few:
                    break
            return newest, db.execute(SQL["replies_since"], values | {"limit": limit + 1}).fetchone()[0]

        newest, replies = await self._engine.read(work)
        found = newest + _messages.decode(replies)
        return sorted(found, key=lambda message: message.position)[: limit + 1]

    async def members(self, channel: str, after: str, limit: int) -> list[Member]:
        """Members by id."""
        return _members.decode(await self._text("members_page", channel=channel, after=after, limit=limit))

    async def breakdown(self, user: str, channel: str, state: ReadState) -> Breakdown:
        """Count from scratch."""
        values = {"user": user, "channel": channel, "seq": state.seq, "apart": _json(sorted(state.apart))}

        def work(db: sqlite3.Connection) -> tuple[str, str]:
            groups = db.execute(SQL["breakdown"], values).fetchone()[0]
            facts = db.execute(SQL["explain_facts"], {"user": user, "channel": channel}).fetchone()
            return groups, facts[0] if facts else "[0,0,0]"

        groups, facts = await self._engine.read(work)
        after, own, deleted, silent, apart, unread, mentions = _anything.decode(groups)
        latest_seq, joined_seq, change = _anything.decode(facts)
        return Breakdown(unread, mentions, after, Minus(own, deleted, silent, apart), latest_seq, joined_seq, change)

    # ------------------------------------------------------------ users: activity, badge, receipts

    async def activity(self, user: str) -> Activity:
        """What is kept of a user."""
        row = await self._engine.read(lambda db: db.execute(SQL["activity"], {"user": user}).fetchone())
        return Activity(*row) if row else Activity()

    async def save_seen(self, user: str, at: int) -> None:
        """When a user was last online."""
        await self._engine.write(lambda db: db.execute(SQL["save_seen"], {"user": user, "at": at}) and None)

    async def save_receipts(self, user: str, receipts: ReceiptsPreference) -> None:
        """Whether a user's receipts are public."""
        values = {"user": user, "receipts": receipts}
        await self._engine.write(lambda db: db.execute(SQL["save_receipts"], values) and None)

    async def badge_count(self, user: str) -> int:
        """How many different people wrote to a user while away, since the last tap: one scan of an index."""
        count: int = await self._engine.read(lambda db: db.execute(SQL["badge_count"], {"user": user}).fetchone()[0])
        return count

    async def badge_senders(self, user: str) -> tuple[int, frozenset[str]]:
        """(last tap, who wrote since)."""

        def work(db: sqlite3.Connection) -> tuple[int, frozenset[str]]:
            row = db.execute(SQL["activity"], {"user": user}).fetchone()
            senders = db.execute(SQL["badge_senders"], {"user": user}).fetchone()[0]
            return (row[0] if row else 0), frozenset(_anything.decode(senders))

        return await self._engine.read(work)

    async def save_undelivered(self, undelivered: Sequence[Undelivered]) -> None:
        """Note messages that did not reach their receivers after all."""
        rows = {"rows": _json(list(undelivered))}
        await self._engine.write(lambda db: db.execute(SQL["put_undelivered"], rows) and None)

    async def tap(self, user: str, at: int, limit: int, keep_since: int) -> tuple[int, list[Message]]:
        """Set the badge to 0; (how many people wrote before, what they wrote, newest first)."""

        def work(db: sqlite3.Connection) -> tuple[int, str]:
            count = db.execute(SQL["badge_count"], {"user": user}).fetchone()[0]
            values = {"user": user, "at": at, "limit": limit}
            messages = db.execute(SQL["undelivered_messages"], values).fetchone()[0]
            db.execute(SQL["save_tap"], {"user": user, "at": at})
            db.execute(SQL["expire_undelivered"], {"user": user, "before": min(at, keep_since)})
            return count, messages

        count, messages = await self._engine.write(work)
        return count, _messages.decode(messages)

    async def seen_by(self, channel: str, sender: str, seq: int) -> list[tuple[str, int]]:
        """(user, read at) of the members who have read a place, the sender and private readers left out."""
        text = await self._text("seen_by", channel=channel, sender=sender, seq=seq)
        return [(user, read_at) for user, read_at in _anything.decode(text)]

    async def seen_count(self, channel: str, sender: str, seq: int) -> int:
        """How many they are."""
        values = {"channel": channel, "sender": sender, "seq": seq}
        count: int = await self._engine.read(lambda db: db.execute(SQL["seen_count"], values).fetchone()[0])
        return count

    async def receipts(self, channel: str) -> list[tuple[str, int, int]]:
        """(user, seq, read at) of the members who have read anything and don't keep it private."""
        rows = _anything.decode(await self._text("receipts", channel=channel))
        found = [(user, receipt_seq(seq, skipped), read_at) for user, seq, read_at, skipped in rows]
        return sorted(receipt for receipt in found if receipt[1] > 0)

    async def cut_skipped(self, user: str, channel: str, seq: int) -> None:
        """The user marks unread from a seq on: what comes after it is no longer marked by a join."""
        values = {"user": user, "channel": channel, "seq": seq}
        await self._engine.write(lambda db: db.execute(SQL["cut_skipped"], values) and None)

    async def wrote_since(self, user: str, places: Sequence[tuple[str, int]]) -> list[str]:
        """Of these (channel, seq), those in which somebody else has written since."""
        found: list[str] = _anything.decode(await self._text("wrote_since", user=user, keys=_json(places)))
        return found

    async def public_readers(self, keys: Sequence[Key]) -> dict[Key, tuple[tuple[int, int], ...]]:
        """Of these (user, channel), the members whose receipts others may see, and what joins alone marked."""
        rows = _anything.decode(await self._text("public_readers", keys=_json(keys)))
        return {(user, channel): tuple((a, b) for a, b in skipped) for user, channel, skipped in rows}

    async def receipts_since(self, user: str, since: int, most_members: int, limit: int) -> list[SeenPlace]:
        """Receipts of others since a time, in the user's channels of up to so many members, in order."""
        text = await self._text("receipts_since", user=user, since=since, most=most_members, limit=limit)
        return [
            seen_place(reader, channel, Position(seq, id_, None), read_at, skipped)
            for channel, reader, seq, id_, read_at, skipped in _anything.decode(text)
        ]

    async def _text(self, name: str, **values: object) -> str:
        text: str = await self._engine.read(lambda db: db.execute(SQL[name], values).fetchone()[0])
        return text


# ---------------------------------------------------------------- in the writer's transaction


def _gather(db: sqlite3.Connection, needed: Wants, facts: Facts) -> None:
    """Adds to the facts what is needed."""
    if needed.channels:
        facts.channels |= {c.channel_id: c for c in _channels.decode(_all(db, "channels", needed.channels))}
    if needed.messages:
        facts.messages |= {(m.channel_id, m.id): m for m in _messages.decode(_all(db, "messages", needed.messages))}
    if needed.members:
        facts.members |= {(m.channel_id, m.user_id): m for m in _members.decode(_all(db, "members", needed.members))}
    if needed.pointers:
        rows = _pointers.decode(_all(db, "pointers", needed.pointers))
        facts.pointers |= {(channel, user): pointer for channel, user, pointer in rows}
    if needed.audience:
        _gather_audience(db, needed.audience, facts)
    if needed.followers:
        keys = [(room, channel_and_thread(room)[0]) for room in needed.followers]
        for room, user, member in _anything.decode(_all(db, "followers", keys)):
            facts.followers.setdefault(room, {})[user] = bool(member)
    for channel in needed.everyone:
        text = db.execute(SQL["everyone"], _with_threads(channel)).fetchone()[0]
        facts.everyone[channel] = tuple((room, user) for room, user in _anything.decode(text))
    for channel, n in needed.before_last:
        facts.before_last[channel, n] = _before_last(db, channel, n)
    for channel, user in needed.own_seqs:
        values = {"channel": channel, "user": user, "since": 1, "cap": MAX_OWN}
        facts.own_seqs[channel, user] = tuple(_anything.decode(db.execute(SQL["own_seqs"], values).fetchone()[0]))
    if needed.newest_but:
        _gather_newest(db, needed.newest_but, facts)


def _gather_audience(db: sqlite3.Connection, channels: Iterable[str], facts: Facts) -> None:
    audience: dict[str, list[str]] = {}
    for channel, user, muted_until in _anything.decode(_all(db, "audience", channels)):
        audience.setdefault(channel, []).append(user)
        if muted_until:
            facts.muted[channel, user] = muted_until
    facts.audience |= {channel: tuple(users) for channel, users in audience.items()}


def _gather_newest(db: sqlite3.Connection, keys: Iterable[Key], facts: Facts) -> None:
    for room, id_ in keys:
        if is_thread(room):
            found = _messages.decode(_all(db, "newest_reply_but", [(*channel_and_thread(room), id_)]))
        else:
            found = _messages.decode(_all(db, "newest_but", [(room, id_)]))
        if found:
            facts.newest_but[room, id_] = found[0]


def _store(db: sqlite3.Connection, changes: Changes) -> None:
    for channel in changes.purged:
        for part in ("messages", "undelivered"):
            db.execute(SQL[f"purge_{part}"], {"channel": channel})
        for part in ("members", "receipts", "threads"):
            db.execute(SQL[f"purge_{part}"], _with_threads(channel))
    for name, rows in (
        ("put_channels", changes.channels.values()),
        ("put_messages", changes.messages.values()),
        ("put_members", changes.members.values()),
        ("put_undelivered", changes.undelivered),
    ):
        if rows:
            db.execute(SQL[name], {"rows": _json(list(rows))})
    execute_rows(db, MERGES, [_receipt(key, pointer) for key, pointer in changes.pointers.items()])


def _with_threads(channel: str) -> dict[str, str]:
    """A channel, and the range of names that the rooms of its threads have."""
    return {"channel": channel, "first": channel + SEPARATOR, "last": channel + chr(ord(SEPARATOR) + 1)}


def _receipt(key: Key, pointer: Pointer) -> tuple[Any, ...]:
    channel, user = key
    p = pointer
    return (user, channel, p.epoch, p.seq, _json(sorted(p.apart)), p.id, p.at, p.read_at, p.change)


def _all(db: sqlite3.Connection, name: str, keys: Iterable[Any]) -> str:
    text: str = db.execute(SQL[name], {"keys": _json(list(keys))}).fetchone()[0]
    return text


def _before_last(db: sqlite3.Connection, channel: str, n: int) -> Position:
    row = db.execute(SQL["before_last"], {"channel": channel, "n": n}).fetchone()
    return _place(db, channel, row[0] - 1) if row else Position(0, None, None)


def _place(db: sqlite3.Connection, channel: str, seq: int) -> Position:
    found = _places.decode(_all(db, "by_seq", [(channel, seq)]))
    return Position(seq, found[0][2], found[0][3]) if found else Position(seq, None, None)


def _by_time(db: sqlite3.Connection, channel: str, time: int) -> Position:
    """Halves the range of seqs until the place is found: order by time is order by seq."""
    low, high = db.execute(SQL["seq_range"], {"channel": channel}).fetchone()
    best = Position(0, None, None)
    while 0 < low <= high:
        middle = _place(db, channel, (low + high) // 2)
        if middle.at is not None and middle.at <= time:
            best, low = middle, middle.seq + 1
        else:
            high = middle.seq - 1
    return best


def _cut(load: LedgerLoad, cap: int) -> LedgerLoad:
    """Keeps the newest `cap`; one more was asked for, to know whether there are more."""
    if len(load.entries) <= cap:
        return load
    return LedgerLoad(load.user_id, load.channel_id, load.state, load.change, load.entries[-cap:], True)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
