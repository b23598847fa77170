"""The durable store in one SQLite file."""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..api import Minus
from ..events import Delivery, ReadEvent
from ..fold import Changes, Effect, Facts, Key, Wants, fold, runs, wants
from ..model import Channel, Entry, Member, Message, Mode, Pointer, Position, Preferences, ReadState
from ..ports import Breakdown, LedgerLoad, SeatLoad, TimelineLoad, UndoItem, UnreadSource
from .sql import queries
from .sqlite_engine import SqliteEngine, connect, migrate

SQL = queries("sqlite")

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

    async def apply(self, deliveries: Sequence[Delivery]) -> list[Effect]:
        """Fold events of channels, in order, in one transaction."""
        return await self._engine.write(lambda db: self._apply(db, deliveries))

    def _apply(self, db: sqlite3.Connection, deliveries: Sequence[Delivery]) -> list[Effect]:
        effects: list[Effect] = []
        for run in runs(deliveries):
            changes, outcome = fold(run, _facts(db, wants(run)), self._limit)
            _store(db, changes)
            effects += outcome
        return effects

    async def merge(self, events: Sequence[ReadEvent]) -> None:
        """Merge read states; each (user, channel) at most once."""
        rows = [
            (
                e.user_id,
                e.channel_id,
                e.epoch,
                e.last_read_seq,
                e.apart,
                e.last_read_id,
                e.last_read_at,
                e.read_at,
                e.change,
            )
            for e in events
        ]
        await self._engine.write(lambda db: db.execute(SQL["merge_receipts"], {"rows": _json(rows)}) and None)

    async def save_preferences(self, user: str, channel: str, preferences: Preferences, change: int) -> None:
        """Keep a member's preferences."""
        values = {
            "user": user,
            "channel": channel,
            "muted_until": preferences.muted_until,
            "count": preferences.count,
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
        keys = [
            (index, user, channel, state.seq, int(mode is Mode.TIMELINE), sorted(state.apart))
            for index, (user, channel, mode, state) in enumerate(wanted)
        ]

        def work(db: sqlite3.Connection) -> tuple[str, str]:
            changes = db.execute(SQL["changes"], {"keys": _json([key[2] for key in keys])}).fetchone()[0]
            entries = db.execute(SQL["ledger_entries"], {"keys": _json(keys), "cap": cap}).fetchone()[0]
            return changes, entries

        changes, entries = await self._engine.read(work)
        numbers: dict[str, int] = dict(_anything.decode(changes))
        loads = [LedgerLoad(user, channel, state, numbers.get(channel, 0), []) for user, channel, _, state in wanted]
        for index, entry in _ledger_entries.decode(entries):
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

    async def members(self, channel: str, after: str, limit: int) -> list[Member]:
        """Members by id."""
        return _members.decode(await self._text("members_page", channel=channel, after=after, limit=limit))

    async def breakdown(self, user: str, channel: str, state: ReadState) -> Breakdown:
        """Count from scratch."""
        values = {"user": user, "channel": channel, "seq": state.seq, "apart": _json(sorted(state.apart))}

        def work(db: sqlite3.Connection) -> tuple[str, str]:
            groups = db.execute(SQL["breakdown"], values).fetchone()[0]
            facts = db.execute(SQL["explain_facts"], {"user": user, "channel": channel}).fetchone()
            return groups, facts[0] if facts else "[0,0]"

        groups, facts = await self._engine.read(work)
        after, own, deleted, silent, apart, unread, mentions = _anything.decode(groups)
        latest_seq, joined_seq = _anything.decode(facts)
        return Breakdown(unread, mentions, after, Minus(own, deleted, silent, apart), latest_seq, joined_seq)

    async def _text(self, name: str, **values: object) -> str:
        text: str = await self._engine.read(lambda db: db.execute(SQL[name], values).fetchone()[0])
        return text


# ---------------------------------------------------------------- in the writer's transaction


def _facts(db: sqlite3.Connection, needed: Wants) -> Facts:
    facts = Facts()
    facts.channels = {c.channel_id: c for c in _channels.decode(_all(db, "channels", needed.channels))}
    if needed.messages:
        facts.messages = {(m.channel_id, m.id): m for m in _messages.decode(_all(db, "messages", needed.messages))}
    if needed.members:
        facts.members = {(m.channel_id, m.user_id): m for m in _members.decode(_all(db, "members", needed.members))}
    if needed.pointers:
        rows = _pointers.decode(_all(db, "pointers", needed.pointers))
        facts.pointers = {(channel, user): pointer for channel, user, pointer in rows}
    if needed.threads:
        facts.threads = {(c, t): seq for c, t, seq in _anything.decode(_all(db, "threads", needed.threads))}
    if needed.audience:
        facts.audience = _grouped(_anything.decode(_all(db, "audience", needed.audience)))
    for channel in needed.everyone:
        text = db.execute(SQL["everyone"], {"channel": channel}).fetchone()[0]
        facts.everyone[channel] = tuple(_anything.decode(text))
    for channel, n in needed.before_last:
        facts.before_last[channel, n] = _before_last(db, channel, n)
    if needed.newest_but:
        newest = {m.channel_id: m for m in _messages.decode(_all(db, "newest_but", needed.newest_but))}
        facts.newest_but = {key: newest[key[0]] for key in needed.newest_but if key[0] in newest}
    return facts


def _store(db: sqlite3.Connection, changes: Changes) -> None:
    for channel in changes.purged:
        for part in ("messages", "members", "receipts", "threads"):
            db.execute(SQL[f"purge_{part}"], {"channel": channel})
    for name, rows in (
        ("put_channels", changes.channels.values()),
        ("put_messages", changes.messages.values()),
        ("put_members", changes.members.values()),
        ("put_threads", [(*key, seq) for key, seq in changes.threads.items()]),
        ("merge_receipts", [_receipt(key, pointer) for key, pointer in changes.pointers.items()]),
    ):
        if rows:
            db.execute(SQL[name], {"rows": _json(list(rows))})


def _receipt(key: Key, pointer: Pointer) -> tuple[Any, ...]:
    channel, user = key
    p = pointer
    return (user, channel, p.epoch, p.seq, sorted(p.apart), p.id, p.at, p.read_at, p.change)


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


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    groups: dict[str, list[str]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return {key: tuple(values) for key, values in groups.items()}


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
