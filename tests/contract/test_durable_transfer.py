"""What every durable store promises of moving in and out, and of forgetting a user."""

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from readstate.adapters.sql.sqlite.store import SqliteStore
from readstate.adapters.sql.store import SqlStore
from readstate.api import Refused
from readstate.domain.events import (
    AnyChannelEvent,
    ChannelEvent,
    DeleteEvent,
    Delivery,
    MembersEvent,
    MessageEvent,
    ReadEvent,
)
from readstate.domain.model import ChangeNumber, Message, Preferences, Undelivered
from readstate.domain.rooms import thread_room
from readstate.domain.rules import MessageRules
from readstate.timings import SqlTimings
from readstate.transfer.lines import Checks
from readstate.transfer.records import ChannelLine, MemberLine, MessageLine, Numbered, Record
from tests.online import nobody

from .conftest import FANOUT

NOW = 1_700_000_000_000
positions = itertools.count(1)
CHECKS = Checks(lambda: NOW + 10**6, MessageRules(1000, 10, 10, "full"))


@pytest.fixture
async def elsewhere(tmp_path: Path) -> AsyncIterator[SqlStore]:
    """An empty store of another make."""
    store = await SqliteStore.open(tmp_path / "elsewhere.db", FANOUT, SqlTimings())
    yield store
    await store.close()


async def apply(durable: SqlStore, *events: AnyChannelEvent) -> None:
    effects = await durable.apply([Delivery(event, next(positions)) for event in events], online=nobody)
    assert [effect.error for effect in effects] == [None] * len(effects)


def say(id_: str, sender: str = "alice", **more: object) -> MessageEvent:
    at = NOW + next(positions)
    fields: dict[str, object] = {"channel_id": "c", "created_at": at, "at": at, "text": id_, "preview": id_, **more}
    return MessageEvent(id=id_, sender_id=sender, **fields)  # type: ignore[arg-type]


async def a_life(durable: SqlStore) -> None:
    """A bit of everything that can be kept."""
    await apply(
        durable,
        ChannelEvent(channel_id="c", created_at=NOW, type="group", name='It\'s "C"'),
        ChannelEvent(channel_id="gone", created_at=NOW, type="direct"),
        MembersEvent(channel_id="c", created_at=NOW, add=("alice", "bob", "carol")),
        say("m1", mentions=("bob", "@channel")),
        say("m2", "bob", silent=True),
        say("m3", "zoe"),
        say("old", backfill=True),
        say("r1", "bob", thread_id="m1"),
        say("r2", "carol", thread_id="m1", also_to_channel=True),
        DeleteEvent(channel_id="c", created_at=NOW, id="m3"),
        DeleteEvent(channel_id="c", created_at=NOW, id="never seen"),
        MembersEvent(channel_id="c", created_at=NOW, remove=("carol",)),
        ChannelEvent(channel_id="gone", created_at=NOW, action="delete"),
    )
    await durable.merge([ReadEvent("alice", "c", 1, 1, (3,), "m1", NOW, NOW, ChangeNumber(1), NOW)])
    await durable.save_preferences("bob", "c", Preferences(2**53 - 1, "mentions", "private", True, 2), 1)
    await durable.save_seen("alice", NOW)
    await durable.save_receipts("bob", "private", 1)


async def exported(durable: SqlStore) -> list[Record]:
    return [record async for page in durable.transfer.export() for record in page]


async def taken(durable: SqlStore, records: Sequence[Record], stop: bool = False) -> list[Refused]:
    read = [CHECKS.read(number, msgspec.json.encode(record)) for number, record in enumerate(records, 1)]
    given = [one for one in read if isinstance(one, Numbered)]
    assert given == read
    return (await durable.transfer.take(given, stop)).refused


def lines(records: Sequence[Record]) -> set[bytes]:
    return {msgspec.json.encode(record, order="sorted") for record in records}


async def test_all_of_it_comes_out_and_goes_in_elsewhere(durable: SqlStore, elsewhere: SqlStore) -> None:
    await a_life(durable)
    records = await exported(durable)
    assert await taken(elsewhere, records) == []
    assert lines(await exported(elsewhere)) == lines(records)


async def test_and_back_again(durable: SqlStore, elsewhere: SqlStore) -> None:
    await a_life(elsewhere)
    records = await exported(elsewhere)
    assert await taken(durable, records) == []
    assert await taken(durable, records) == []
    assert lines(await exported(durable)) == lines(records)


async def test_pages_go_on_where_the_last_one_ended(durable: SqlStore) -> None:
    channels, users = [f"c{n:02}" for n in range(20)], [f"u{n:04}" for n in range(1100)]
    await apply(durable, *(ChannelEvent(channel_id=name, created_at=NOW, type="group") for name in channels))
    await apply(durable, *(say(f"m{n}", "u0000", channel_id=channels[n % 20]) for n in range(1100)))
    await apply(durable, *(say(f"r{n}", "u0000", channel_id="c00", thread_id="m0") for n in range(600)))
    await apply(durable, MembersEvent(channel_id="c07", created_at=NOW, add=tuple(users)))
    records = await exported(durable)
    assert len(records) == len(lines(records))
    kinds = Counter(type(record) for record in records)
    assert (kinds[ChannelLine], kinds[MessageLine], kinds[MemberLine]) == (20, 1700, 1100)


async def test_an_export_shows_one_moment(durable: SqlStore) -> None:
    await a_life(durable)
    before = lines(await exported(durable))
    pages = durable.transfer.export()
    records = list(await anext(pages))
    await apply(durable, say("later"), MembersEvent(channel_id="c", created_at=NOW, add=("dave",)))
    records += [record async for page in pages for record in page]
    assert lines(records) == before


async def test_what_does_not_fit_is_refused_and_leaves_nothing(durable: SqlStore) -> None:
    await a_life(durable)
    before = lines(await exported(durable))
    gap = Message("c", "far", 99, "alice", NOW + 10**5)
    result = await durable.transfer.take([Numbered(7, gap)], stop=True)
    assert [one.line for one in result.refused] == [7]
    assert lines(await exported(durable)) == before


async def test_an_erased_user_leaves_messages_only(durable: SqlStore) -> None:
    await a_life(durable)
    gone = await durable.transfer.erase("bob")
    assert (gone.erased.channels, gone.erased.threads) == (1, 1)
    assert set(gone.rooms) >= {"c", thread_room("c", "m1")}
    records = await exported(durable)
    left = [record for record in records if getattr(record, "user_id", None) == "bob"]
    assert left == []
    assert "m2" in {getattr(record, "id", None) for record in records}
    assert (await durable.load_channels(["c"]))["c"].member_count == 1
    assert await durable.load_user("bob") == []


async def test_what_was_read_before_an_erasure_takes_nothing_with_it_that_was_read_later(durable: SqlStore) -> None:
    def read(user: str, seq: int, at: int, apart: tuple[int, ...] = ()) -> ReadEvent:
        return ReadEvent(user, "c", 1, seq, apart, f"m{seq}", at, at, ChangeNumber(1), at)

    await durable.transfer.erase("bob", on_the_way=NOW)
    await durable.transfer.erase("carol", on_the_way=NOW)
    states = [read("bob", 9, NOW - 1), read("bob", 2, NOW + 1), read("dave", 3, NOW - 1)]
    states += [read("carol", 4, NOW + 1), read("carol", 1, NOW, (7,)), read("erin", 5, NOW + 1)]

    taken = await durable.merge_unless_erased(states)

    assert {(one.user_id, one.last_read_seq, one.apart) for one in taken} == {
        ("bob", 2, ()),
        ("carol", 4, ()),
        ("dave", 3, ()),
        ("erin", 5, ()),
    }
    found = await durable.read_states([(user, "c") for user in ("bob", "carol", "dave", "erin")])
    assert {user: (one.seq, one.apart) for (user, _), one in found.items()} == {
        "bob": (2, frozenset()),
        "carol": (4, frozenset()),
        "dave": (3, frozenset()),
        "erin": (5, frozenset()),
    }


async def test_what_did_not_get_through_of_somebody_erased_is_not_noted(durable: SqlStore) -> None:
    await a_life(durable)
    note = Undelivered("carol", NOW + 5, "bob", "c", "m2")
    await durable.transfer.erase("bob", NOW + 5)
    assert await durable.save_undelivered([note, replace(note, receiver_id="bob", sender_id="alice")]) == []
    later = replace(note, accepted_at=NOW + 6)
    assert await durable.save_undelivered([later, later]) == [later, later]
    assert await durable.badge_senders("carol") == (0, frozenset({"alice", "bob", "zoe"}))


async def test_when_a_user_was_erased_is_known_as_long_as_a_cursor_may_ask(durable: SqlStore) -> None:
    assert await durable.erased_until("bob") == 0

    await durable.transfer.erase("bob", NOW)
    assert (await durable.erased_until("bob"), await durable.erased_until("alice")) == (NOW, 0)

    days = 5 * 24 * 3600 * 1000
    await durable.transfer.erase("carol", NOW + days)
    assert await durable.erased_until("carol") == NOW + days
    assert await durable.erased_until("bob") == NOW
    assert await durable.erased_until("alice") == NOW  # whose erase it was is not kept


async def test_an_export_does_not_carry_the_key_of_cursors(durable: SqlStore, elsewhere: SqlStore) -> None:
    await a_life(durable)
    key = await durable.cursor_key()

    records = await exported(durable)
    assert await taken(elsewhere, records) == []

    assert key.hex() not in repr(records)
    assert await elsewhere.cursor_key() != key
