"""What every durable store promises of threads, badges, receipts and archives."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any, cast

import pytest
from msgspec import structs

from readstate.adapters.sql.postgres.engine import PostgresEngine
from readstate.adapters.sql.postgres.session import PostgresSession
from readstate.adapters.sql.postgres.store import PostgresStore
from readstate.adapters.sql.sqlite.store import SqliteDatabase
from readstate.adapters.sql.store import SqlStore
from readstate.domain.errors import StorageUnavailable
from readstate.domain.events import (
    AnyChannelEvent,
    ChannelEvent,
    DeleteEvent,
    Delivery,
    MembersEvent,
    MessageEvent,
    ReadEvent,
)
from readstate.domain.facts import Effect
from readstate.domain.model import FOREVER, ChangeNumber, LogPosition, Mode, Preferences, ReadState
from readstate.domain.rooms import thread_room
from readstate.domain.rules import has_seen, receipt_seq
from readstate.ports import Activity, Durable, TapCursor
from tests.online import nobody, only

from .conftest import CAP

NOW = 1_700_000_000_000
ROOM = thread_room("c", "root")
positions = itertools.count(1)
times = itertools.count(NOW + 1)


async def apply(durable: Durable, *events: AnyChannelEvent, online: Sequence[str] = ()) -> list[Effect]:
    return await durable.apply([Delivery(event, next(positions)) for event in events], online=only(*online))


def say(id_: str, sender: str = "alice", **more: object) -> MessageEvent:
    at = next(times)
    fields: dict[str, object] = {"text": id_, "at": at, "channel_id": "c", "created_at": at, **more}
    return MessageEvent(id=id_, sender_id=sender, **fields)  # type: ignore[arg-type]


def members(*add: str, remove: tuple[str, ...] = (), **more: object) -> MembersEvent:
    return MembersEvent(channel_id="c", created_at=NOW, add=add, remove=remove, **more)  # type: ignore[arg-type]


def read(user: str, seq: int, apart: tuple[int, ...] = (), epoch: int = 0, read_at: int = NOW) -> ReadEvent:
    return ReadEvent(user, "c", epoch, seq, apart, f"m{seq}", NOW + seq, read_at, ChangeNumber(7), NOW)


@pytest.fixture(autouse=True)
async def _a_channel_with_three(durable: Durable) -> None:
    put = ChannelEvent(channel_id="c", created_at=NOW, type="group")
    await apply(durable, put, members("alice", "bob", "carol"))


async def unread_replies(durable: Durable, user: str) -> list[str] | None:
    """The unread replies of a follower; None for somebody who doesn't follow."""
    user_rooms = {user_room.channel_id: user_room for user_room in await durable.load_user(user)}
    if ROOM not in user_rooms or not user_rooms[ROOM].member:
        return None
    [load] = await durable.load_ledgers([(user, ROOM, Mode.LEDGER, user_rooms[ROOM].pointer.state)], CAP)
    return [entry.id for entry in load.entries]


async def test_a_thread_is_a_room_whose_members_follow_it(durable: Durable) -> None:
    await apply(durable, say("root"), say("r1", "bob", thread_id="root"), say("r2", "bob", thread_id="root"))
    assert await unread_replies(durable, "alice") == ["r1", "r2"]
    assert await unread_replies(durable, "bob") == []
    assert await unread_replies(durable, "carol") is None
    room = (await durable.load_channels([ROOM]))[ROOM]
    assert (room.type, room.last_seq, room.member_count) == ("thread", 2, 2)
    assert room.latest is not None
    assert (room.latest.id, room.latest.seq) == ("r2", 2)


async def test_following_by_hand_begins_at_the_end_and_a_mention_at_its_reply(durable: Durable) -> None:
    await apply(durable, say("root"), say("r1", "bob", thread_id="root"))
    await apply(durable, members("carol", thread_id="root"))
    assert await unread_replies(durable, "carol") == []
    await apply(durable, members(remove=("carol",), thread_id="root"))
    assert await unread_replies(durable, "carol") is None
    later = [say("r2", "bob", thread_id="root"), say("r3", "bob", thread_id="root", mentions=("carol",))]
    await apply(durable, *later)
    assert await unread_replies(durable, "carol") == ["r3"]


async def test_a_deleted_reply_is_neither_unread_nor_the_latest(durable: Durable) -> None:
    replies = [say(f"r{n}", "bob", thread_id="root") for n in (1, 2)]
    await apply(durable, say("root"), *replies, DeleteEvent(channel_id="c", created_at=NOW, id="r2"))
    assert await unread_replies(durable, "alice") == ["r1"]
    latest = (await durable.load_channels([ROOM]))[ROOM].latest
    assert latest is not None
    assert latest.id == "r1"


async def test_a_deleted_channel_takes_its_threads_and_badges_along(durable: Durable) -> None:
    await apply(durable, say("root"), say("r1", "bob", thread_id="root"))
    assert await durable.badge_count("alice") == 1
    await apply(durable, ChannelEvent(channel_id="c", created_at=NOW, action="delete"))
    assert await durable.badge_count("alice") == 0
    assert await unread_replies(durable, "alice") is None
    assert (await durable.load_channels([ROOM]))[ROOM].deleted


# ---------------------------------------------------------------- badge


async def test_case_9_who_was_away_is_decided_once_and_told_again_when_the_message_comes_again(
    durable: Durable,
) -> None:
    """The writer that stored it may have died before anybody was told; meanwhile presence has changed."""
    message = Delivery(say("m1"), 0, part=0)
    [first] = await durable.apply([message], only("carol"), "log")
    [again] = await durable.apply([message], only("bob"), "log")
    assert [one.receiver_id for one in first.undelivered] == ["bob"]
    assert [one.receiver_id for one in first.reached] == ["carol"]
    assert again.undelivered == first.undelivered
    assert again.reached == first.reached
    assert [await durable.badge_count(user) for user in ("bob", "carol")] == [1, 0]


async def test_whom_it_may_not_have_reached_is_told_until_it_is_called_complete(durable: Durable) -> None:
    """The message writer stores a batch while the one before is incomplete."""
    one, two, three, four = (Delivery(say(f"m{offset}"), offset, part=0) for offset in range(4))
    await durable.apply([one], only("bob"), "log")
    [again, new] = await durable.apply([one, two], only("carol"), "log")
    assert [[effect.receiver_id for effect in some.reached] for some in (again, new)] == [["bob"], ["carol"]]

    repeated = await durable.apply([one, two], nobody, "log")
    assert [effect.reached for effect in repeated] == [again.reached, new.reached]
    assert [effect.position for effect in repeated] == [again.position, new.position]

    await durable.apply([three], only("bob"), "log", {0: again.position})
    told = [effect.reached for effect in await durable.apply([one, two, three], nobody, "log")]
    assert told[:2] == [[], new.reached]
    assert [effect.receiver_id for effect in told[2]] == ["bob"]

    await durable.apply([four], nobody, "log", {0: LogPosition(new.position + 1)})
    assert [effect.reached for effect in await durable.apply([one, two, three, four], nobody, "log")] == [
        [],
        [],
        [],
        [],
    ]


async def test_of_a_topic_made_anew_nothing_counts_as_complete(durable: Durable) -> None:
    """Its offsets start over. Its log positions are above all earlier ones."""
    [old] = await durable.apply([Delivery(say("m1"), 70, part=0)], nobody, "log")
    complete = {0: old.position}
    await durable.apply([Delivery(say("m2"), 0, part=0)], only("bob"), "another log", complete)
    await durable.apply([Delivery(say("m3"), 1, part=0)], nobody, "another log", complete)
    [again] = await durable.apply([Delivery(say("m2"), 0, part=0)], nobody, "another log", complete)
    assert [one.receiver_id for one in again.reached] == ["bob"]


async def test_what_is_known_of_offsets_that_are_reused_is_forgotten(durable: Durable) -> None:
    await durable.apply([Delivery(say("m1"), 0, 0, 1), Delivery(say("m2"), 1, 0, 1)], only("bob"), "log")
    await durable.apply([Delivery(say("m3"), 1, 0, 2)], nobody, "log")
    [again] = await durable.apply([Delivery(say("m3"), 1, 0, 2)], nobody, "log")
    assert again.reached == []


async def test_each_part_of_a_log_knows_whom_its_own_last_batch_may_not_have_reached(durable: Durable) -> None:
    here, there = Delivery(say("m1"), 7, part=0), Delivery(say("m2"), 7, part=1)
    await durable.apply([here, there], only("bob"), "log")
    await durable.apply([Delivery(say("m3"), 8, part=1)], nobody, "log")
    [again] = await durable.apply([here], nobody, "log")
    assert [one.message_id for one in again.reached] == ["m1"]


async def test_who_was_noted_since_deleted_or_erased_is_not_reached_again(durable: SqlStore) -> None:
    batch = [Delivery(say(f"m{offset}"), offset, part=0) for offset in range(2)]
    effects = await durable.apply(batch, only("bob", "carol"), "log")
    await durable.save_undelivered([one for one in effects[0].reached if one.receiver_id == "bob"])
    again = await durable.apply(batch, nobody, "log")
    assert [[one.receiver_id for one in effect.reached] for effect in again] == [["carol"], ["bob", "carol"]]
    assert [[one.receiver_id for one in effect.undelivered] for effect in again] == [["bob"], []]

    await durable.transfer.erase("carol", next(times))
    again = await durable.apply(batch, nobody, "log")
    assert [[one.receiver_id for one in effect.reached] for effect in again] == [[], ["bob"]]

    delete = Delivery(DeleteEvent(channel_id="c", created_at=NOW, id="m1"), 0, part=1)
    await durable.apply([delete], nobody, "log")
    assert [effect.reached for effect in await durable.apply(batch, nobody, "log")] == [[], []]


async def test_whom_a_message_did_not_reach_is_told_again_also_when_it_is_deleted(durable: Durable) -> None:
    message, delete = say("m1"), DeleteEvent(channel_id="c", created_at=NOW, id="m1")
    batch = [Delivery(message, 0, part=0), Delivery(delete, 1, part=0)]
    [first, _] = await durable.apply(batch, nobody, "log")
    [again, _] = await durable.apply(batch, nobody, "log")
    assert len(first.undelivered) == 2
    assert sorted(one.receiver_id for one in again.undelivered) == ["bob", "carol"]


async def test_what_is_noted_twice_is_shown_once(durable: Durable) -> None:
    [effect] = await apply(durable, say("m1"), online=["bob", "carol"])
    for _ in range(2):
        await durable.save_undelivered(effect.reached)
    assert [message.id for _, message in (await durable.tap("bob", next(times), 10)).messages] == ["m1"]


async def test_what_is_gone_is_not_noted(durable: Durable) -> None:
    [first, second, third] = await apply(durable, say("m1"), say("m2"), say("m3", "carol"), online=["bob"])
    [one], [two], [three] = (effect.reached for effect in (first, second, third))
    await apply(durable, DeleteEvent(channel_id="c", created_at=NOW, id="m2"))
    by_another = structs.replace(one, sender_id="carol")
    never_there = structs.replace(one, message_id="never there"), structs.replace(one, channel_id="nowhere")
    assert await durable.save_undelivered([one, two, three, by_another, *never_there]) == [one, three]
    assert await durable.save_undelivered([two]) == []
    assert await durable.badge_senders("bob") == (0, frozenset({"alice", "carol"}))
    await apply(durable, ChannelEvent(channel_id="c", created_at=NOW, action="delete"))
    assert await durable.save_undelivered([one, three]) == []
    assert await durable.badge_count("bob") == 0


async def test_which_notes_are_gone_is_told_by_their_receivers(durable: Durable) -> None:
    [first, second] = await apply(durable, say("m1"), say("m2", "carol"))
    notes = [*first.undelivered, *second.undelivered]
    assert await durable.receivers_of_gone(notes) == set()
    assert await durable.receivers_of_gone([]) == set()
    [for_bob] = [note for note in first.undelivered if note.receiver_id == "bob"]
    others = [structs.replace(for_bob, receiver_id="eve"), structs.replace(for_bob, accepted_at=NOW - 1)]
    assert await durable.receivers_of_gone([*notes, others[0]]) == {"eve"}
    assert await durable.receivers_of_gone([*notes, *others]) == {"bob", "eve"}
    await apply(durable, ChannelEvent(channel_id="c", created_at=NOW, action="delete"))
    assert await durable.receivers_of_gone(notes) == {"alice", "bob", "carol"}


async def test_different_people_are_counted_for_those_who_are_away(durable: Durable) -> None:
    await apply(durable, say("m1"), say("m2"), say("m3", "carol"), online=["carol"])
    assert await durable.badge_count("bob") == 2
    assert await durable.badge_senders("bob") == (0, frozenset({"alice", "carol"}))
    assert await durable.badge_count("carol") == 0
    assert await durable.badge_count("alice") == 1


async def test_a_tap_gives_what_was_written_newest_first_and_begins_anew(durable: Durable) -> None:
    first, second, third = say("m1"), say("m2", "carol"), say("m3")
    await apply(durable, first, second)
    tapped = await durable.tap("bob", second.created_at, 10)
    assert (tapped.since, tapped.at, tapped.senders) == (0, second.created_at, 2)
    assert [(at, message.id) for at, message in tapped.messages] == [
        (second.created_at, "m2"),
        (first.created_at, "m1"),
    ]
    assert await durable.badge_senders("bob") == (second.created_at, frozenset())
    await apply(durable, third)
    assert await durable.badge_count("bob") == 1
    again = await durable.tap("bob", third.created_at, 10)
    assert (again.since, again.senders) == (second.created_at, 1)


async def test_what_was_accepted_before_the_tap_and_stored_after_it_does_not_count(durable: Durable) -> None:
    late = say("late")
    await durable.tap("bob", late.created_at, 10)
    await apply(durable, late)
    assert await durable.badge_count("bob") == 0


async def test_a_tap_shows_no_more_than_asked_for_but_counts_everyone(durable: Durable) -> None:
    await apply(durable, say("m1"), say("m2", "carol"), say("m3"))
    tapped = await durable.tap("bob", next(times), 1)
    assert (tapped.senders, [message.id for _, message in tapped.messages]) == (2, ["m3"])


async def test_what_comes_after_the_time_of_a_tap_is_left_for_the_next_one(durable: Durable) -> None:
    """Its clock may be another instance's."""
    before, after = say("m1"), say("m2", "carol")
    await apply(durable, before, after)
    tapped = await durable.tap("bob", before.created_at, 10)
    assert (tapped.senders, [message.id for _, message in tapped.messages]) == (1, ["m1"])
    assert await durable.badge_senders("bob") == (before.created_at, frozenset({"carol"}))


async def test_the_rest_of_what_a_tap_showed_comes_in_pages(durable: Durable) -> None:
    first, together = say("first"), say("m0", "carol")
    names = [f"m{n}" for n in range(1, 8)]
    same = [structs.replace(say(name, "carol"), created_at=together.created_at) for name in names]
    await apply(durable, first, together, *same)
    tapped = await durable.tap("bob", next(times), 3)
    await apply(durable, say("after the tap"))
    shown, page = [], tapped.messages
    while page:
        shown += [message.id for _, message in page]
        accepted_at, last = page[-1]
        place = TapCursor(accepted_at, last.at, last.channel_id, last.id)
        page = await durable.tapped("bob", tapped.since, tapped.at, place, 3)
    assert shown == [*reversed(["m0", *names]), "first"]


async def test_a_tap_that_takes_too_long_changes_nothing(durable: Durable) -> None:
    await apply(durable, say("m1"))
    with pytest.raises(StorageUnavailable):
        await durable.tap("bob", next(times), 10, until=0.0)
    assert await durable.badge_senders("bob") == (0, frozenset({"alice"}))


async def test_what_was_shown_and_is_old_is_removed(durable: Durable) -> None:
    old, shown, new = say("m1"), say("m2", "zoe"), say("m3", "carol")
    await apply(durable, old, shown, new)
    await durable.tap("bob", shown.created_at, 10)

    async def expire(before: int, tapped: int) -> int:
        after: str | None = ""
        removed = 0
        while after is not None:
            after, some = await durable.expire_undelivered(after, before, tapped, 1)
            removed += some
        return removed

    async def left(user: str) -> list[str]:
        rest = await durable.tapped(user, 0, next(times), TapCursor(next(times), 0, "", ""), 10)
        return [message.id for _, message in rest]

    assert await expire(next(times), shown.created_at - 1) == 0
    assert await expire(old.created_at, shown.created_at) == 1
    assert await left("bob") == ["m3", "m2"]
    assert await expire(next(times), next(times)) == 1
    assert await left("bob") == ["m3"]
    assert await left("alice") == ["m3", "m2"]
    assert await durable.badge_count("bob") == 1


async def shown(durable: Durable, user: str, since: int = 0) -> list[str]:
    """What a tap of now would show, oldest first."""
    found = await durable.tapped(user, since, next(times), TapCursor(next(times), 0, "", ""), 100)
    return [message.id for _, message in reversed(found)]


async def number(durable: SqlStore, statement: str) -> int:
    """The answer to a statement, beside whatever the store has under way."""
    if isinstance(durable._database, PostgresEngine):
        async with durable._database._pool.acquire() as connection:
            return int(await connection.fetchval(statement))
    engine = cast(SqliteDatabase, durable._database)._engine
    return int(await engine.read(lambda db: db.execute(statement).fetchone()[0]))


async def until_it_waits(durable: SqlStore, task: asyncio.Task[Any]) -> None:
    """Until the transaction of a task waits for another one, or is over because it does not."""
    waiting = 0
    while not waiting and not task.done():
        waiting = await number(durable, "SELECT count(*) FROM pg_locks WHERE NOT granted")


async def test_a_sender_has_one_row_for_each_receiver_and_channel_until_a_tap(durable: SqlStore) -> None:
    everything = [say(f"{sender} {n}", sender) for n in range(10) for sender in ("alice", "carol")]
    await apply(durable, *everything[:10])
    await apply(durable, *everything[10:])
    assert await number(durable, "SELECT count(*) FROM undelivered") == 4
    assert await number(durable, "SELECT count(*) FROM away_sets") == 1
    assert await shown(durable, "bob") == [one.id for one in everything]
    await durable.tap("bob", next(times), 10)
    await apply(durable, say("again"), say("and again"))
    assert await number(durable, "SELECT count(*) FROM undelivered") == 5
    assert await shown(durable, "bob", everything[-1].created_at) == ["again", "and again"]


async def test_a_tap_shows_only_what_came_while_the_user_was_away(durable: Durable) -> None:
    await apply(durable, say("m1"))
    await apply(durable, say("m2"), online=["bob"])
    await apply(durable, say("m3"), say("silent", silent=True), say("other", "carol"))
    assert await shown(durable, "bob") == ["m1", "m3", "other"]
    assert await shown(durable, "carol") == ["m1", "m2", "m3"]


async def test_a_mention_in_a_muted_channel_shows_no_other_message_of_its_sender(durable: Durable) -> None:
    await durable.save_preferences("bob", "c", Preferences(muted_until=FOREVER), 1)
    await apply(durable, say("m1"), say("m2", mentions=("bob",)), say("m3"))
    assert await shown(durable, "bob") == ["m2"]
    assert await durable.badge_count("bob") == 1


async def test_a_tap_shows_replies_in_followed_threads_and_no_others(durable: Durable) -> None:
    await apply(durable, say("root", "bob"), say("r1", thread_id="root"), say("m1"), say("r2", thread_id="root"))
    assert await shown(durable, "bob") == ["r1", "m1", "r2"]
    assert await shown(durable, "carol") == ["root", "m1"]


async def test_somebody_who_was_out_for_a_while_is_shown_what_came_before_and_after(durable: Durable) -> None:
    await apply(durable, say("m1"), say("m2"), members(remove=("bob",)))
    assert await shown(durable, "bob") == []
    await apply(durable, say("m3"), members("bob"), say("m4"))
    assert await shown(durable, "bob") == ["m1", "m2", "m4"]


async def test_messages_in_one_batch_on_both_sides_of_a_tap(durable: Durable) -> None:
    """Accepted before and after it, applied together after it: the later ones count."""
    before, first, second = say("before"), say("first"), say("second")
    await durable.tap("bob", before.created_at, 10)
    await apply(durable, before, first, second)
    assert await durable.badge_count("bob") == 1
    tapped = await durable.tap("bob", first.created_at, 10)
    assert [message.id for _, message in tapped.messages] == ["first"]
    assert await durable.badge_count("bob") == 1
    assert await shown(durable, "bob", first.created_at) == ["second"]


async def test_a_tap_leaves_what_was_accepted_after_it_and_applied_before(durable: Durable) -> None:
    """The message has no row of its own, because the tap had not ended the row of the first one."""
    first, second = say("first"), say("second")
    await apply(durable, first, second)
    tapped = await durable.tap("bob", first.created_at, 10)
    assert (tapped.senders, [message.id for _, message in tapped.messages]) == (1, ["first"])
    assert await durable.badge_count("bob") == 1
    tapped = await durable.tap("bob", second.created_at, 10)
    assert (tapped.senders, [message.id for _, message in tapped.messages]) == (1, ["second"])
    assert await durable.badge_count("bob") == 0


async def test_a_message_that_is_older_than_the_first_one_is_counted_by_a_tap_between_them(durable: Durable) -> None:
    older, newer = say("older"), say("newer")
    await apply(durable, newer)
    await apply(durable, older)
    tapped = await durable.tap("bob", older.created_at, 10)
    assert (tapped.senders, [message.id for _, message in tapped.messages]) == (1, ["older"])
    assert await durable.badge_count("bob") == 1


async def test_a_tap_waits_for_a_decision_that_relies_on_what_it_ends(
    durable: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer has found the row of the first message, and stores nothing for the second. Then comes the tap."""
    first, second = say("first"), say("second")
    await apply(durable, first)
    begun, go_on = asyncio.Event(), asyncio.Event()
    run = PostgresSession.run

    async def slowly(self: PostgresSession, name: str, **values: object) -> int:
        changed = await run(self, name, **values)
        if name == "put_first_undelivered":
            begun.set()
            await go_on.wait()
        return changed

    async with asyncio.TaskGroup() as tasks:
        if isinstance(durable, PostgresStore):
            monkeypatch.setattr(PostgresSession, "run", slowly)
            tasks.create_task(apply(durable, second))
            await begun.wait()
            tap = tasks.create_task(durable.tap("bob", first.created_at, 10))
            await until_it_waits(durable, tap)
            go_on.set()
        else:  # one transaction after another
            tasks.create_task(apply(durable, second))
            tap = tasks.create_task(durable.tap("bob", first.created_at, 10))
    assert [message.id for _, message in (await tap).messages] == ["first"]
    assert await durable.badge_count("bob") == 1
    assert await shown(durable, "bob", first.created_at) == ["second"]


async def test_a_decision_waits_for_a_tap_that_ends_what_it_would_rely_on(
    durable: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tap has looked for later messages, and found none. Then the second one is applied."""
    first, second = say("first"), say("second")
    await apply(durable, first)
    begun, go_on = asyncio.Event(), asyncio.Event()
    run = PostgresSession.run

    async def slowly(self: PostgresSession, name: str, **values: object) -> int:
        changed = await run(self, name, **values)
        if name == "renew_undelivered":
            begun.set()
            await go_on.wait()
        return changed

    async with asyncio.TaskGroup() as tasks:
        if isinstance(durable, PostgresStore):
            monkeypatch.setattr(PostgresSession, "run", slowly)
            tasks.create_task(durable.tap("bob", first.created_at, 10))
            await begun.wait()
            await until_it_waits(durable, tasks.create_task(apply(durable, second)))
            go_on.set()
        else:
            tasks.create_task(durable.tap("bob", first.created_at, 10))
            tasks.create_task(apply(durable, second))
    assert await durable.badge_count("bob") == 1
    assert await shown(durable, "bob", first.created_at) == ["second"]


async def test_an_erased_receiver_is_in_no_set_and_a_new_one_of_that_name_is_shown_only_new_messages(
    durable: SqlStore,
) -> None:
    await apply(durable, say("m1"), say("m2"))
    await durable.transfer.erase("bob", next(times))
    assert await number(durable, "SELECT count(*) FROM away_sets WHERE CAST(receivers AS text) LIKE '%bob%'") == 0
    await apply(durable, members("bob"), say("m3"), say("m4"))
    assert await shown(durable, "bob") == ["m3", "m4"]
    assert await shown(durable, "carol") == ["m1", "m2", "m3", "m4"]


async def test_rows_of_somebody_who_never_taps_end_too(durable: SqlStore) -> None:
    old, new = say("m1"), say("m2", "carol")
    await apply(durable, old, new)
    found = [await durable.expire_untapped(after, old.created_at, 10) for after in ("", "carol")]
    assert found == [("carol", 2, ["bob", "carol"]), (None, 0, [])]
    assert await durable.badge_count("bob") == 1
    assert await durable.badge_count("carol") == 0
    assert await shown(durable, "bob") == ["m2"]
    await apply(durable, say("m3"))
    assert await durable.badge_count("bob") == 2
    assert await shown(durable, "bob") == ["m2", "m3"]
    await durable.expire_untapped("zoe", next(times) + 2 * 24 * 3600 * 1000 + 1, 10)
    assert await number(durable, "SELECT count(*) FROM away_sets") == 0


async def test_a_store_without_badges_keeps_nothing_for_them(durable: SqlStore) -> None:
    durable.keeps_badge = False
    [effect] = await apply(durable, say("m1", mentions=("bob",)), online=["carol"])
    assert (effect.undelivered, effect.reached) == ([], [])
    assert await durable.badge_count("bob") == 0
    assert await number(durable, "SELECT count(*) FROM undelivered") == 0
    assert await number(durable, "SELECT count(*) FROM away_sets") == 0


async def test_an_older_tap_takes_nothing_back(durable: Durable) -> None:
    message = say("m1")
    await apply(durable, message)
    await durable.tap("bob", message.created_at, 10)
    assert (await durable.tap("bob", message.created_at - 1, 10)).at == message.created_at
    assert await durable.badge_count("bob") == 0


async def test_activity_is_kept_apart_from_each_other(durable: Durable) -> None:
    assert await durable.activity("bob") == Activity()
    await durable.save_seen("bob", 50)
    await durable.save_seen("bob", 40)
    await durable.save_receipts("bob", "private", 1)
    await durable.tap("bob", 60, 10)
    assert await durable.activity("bob") == Activity(60, 50, "private")


# ---------------------------------------------------------------- receipts


async def seen_by(durable: Durable, seq: int) -> list[tuple[str, int]]:
    """(user, read at) of those other than alice who have read a place, by time."""
    found = [one for one in await durable.readers("c") if one.user_id != "alice"]
    seen = [(one.user_id, one.pointer.read_at) for one in found if has_seen(one.pointer, seq, one.skipped)]
    assert await durable.seen_count("c", "alice", seq) == len(seen)
    return sorted(seen, key=lambda reader: reader[1])


async def readers(durable: Durable) -> dict[str, int]:
    """How far those have read who have read anything."""
    found = {one.user_id: receipt_seq(one.pointer.seq, one.skipped) for one in await durable.readers("c")}
    return {user: seq for user, seq in found.items() if seq}


async def test_readers_by_the_time_they_read_without_the_sender(durable: Durable) -> None:
    await apply(durable, say("m1"), say("m2"), say("m3"))
    await durable.merge([read("bob", 2, (), read_at=NOW + 9), read("carol", 1, (3,), read_at=NOW + 5)])
    assert await seen_by(durable, 1) == [("carol", NOW + 5), ("bob", NOW + 9)]
    assert await seen_by(durable, 2) == [("bob", NOW + 9)]
    assert await seen_by(durable, 3) == [("carol", NOW + 5)]
    assert [await durable.seen_count("c", "alice", seq) for seq in (1, 2, 3)] == [2, 1, 1]


async def test_what_joins_alone_marked_is_no_receipt(durable: Durable) -> None:
    await apply(durable, say("m1"), say("m2"), members("dave"), members(remove=("dave",)))
    await apply(durable, say("m3"), members("dave"))
    assert [await durable.seen_count("c", "alice", seq) for seq in (1, 2, 3)] == [0, 0, 0]
    assert "dave" not in await readers(durable)
    await apply(durable, say("m4"))
    await durable.merge([read("dave", 4)])
    assert [await durable.seen_count("c", "alice", seq) for seq in (1, 3, 4)] == [0, 0, 1]
    assert (await readers(durable))["dave"] == 4


async def test_what_is_marked_unread_and_read_again_is_a_receipt(durable: Durable) -> None:
    await apply(durable, say("m1"), say("m2"), say("m3"), members("dave"))
    await durable.cut_skipped("dave", "c", 2)
    await durable.merge([read("dave", 1, epoch=1)])
    assert [await durable.seen_count("c", "alice", seq) for seq in (1, 2, 3)] == [0, 0, 0]
    await durable.merge([read("dave", 3, epoch=1)])
    assert [await durable.seen_count("c", "alice", seq) for seq in (1, 2, 3)] == [0, 1, 1]


async def test_private_readers_and_those_who_left_are_in_no_answer(durable: Durable) -> None:
    await apply(durable, say("m1"))
    await durable.merge([read("bob", 1), read("carol", 1)])
    await durable.save_preferences("bob", "c", Preferences(receipts="private"), 1)
    assert await seen_by(durable, 1) == [("carol", NOW)]
    await durable.save_receipts("carol", "private", 1)
    assert await seen_by(durable, 1) == []
    assert await durable.seen_count("c", "alice", 1) == 0
    assert list(await readers(durable)) == ["alice"]
    await apply(durable, members(remove=("alice",)))
    assert await readers(durable) == {}


# ---------------------------------------------------------------- archives


async def test_in_which_channels_somebody_else_has_written(durable: Durable) -> None:
    await apply(durable, say("m1"), say("m2", "bob"), say("m3", "bob"))
    assert await durable.wrote_since("bob", [("c", 0)]) == ["c"]
    assert await durable.wrote_since("bob", [("c", 1)]) == []
    assert await durable.wrote_since("alice", [("c", 1), ("elsewhere", 0)]) == ["c"]
    await apply(durable, say("r1", thread_id="m2"), say("old", backfill=True))
    assert await durable.wrote_since("bob", [("c", 1)]) == []


async def test_preferences_outlive_leaving(durable: Durable) -> None:
    wanted = Preferences(0, "mentions", "private", True, 5)
    await durable.save_preferences("bob", "c", wanted, 1)
    await apply(durable, members(remove=("bob",)), members("bob"))
    [user_room] = await durable.load_user("bob")
    assert user_room.preferences == structs.replace(wanted, change=1)
    assert user_room.pointer.state == ReadState()


async def test_an_older_change_number_never_replaces_newer_preferences(durable: Durable) -> None:
    newer = Preferences(5, "mentions", "private", True, 5)
    await durable.save_preferences("bob", "c", newer, 8)
    await durable.save_preferences("bob", "c", Preferences(), 7)
    [user_room] = await durable.load_user("bob")
    assert user_room.preferences == structs.replace(newer, change=8)
    await durable.save_preferences("bob", "c", Preferences(pinned=True), 9)
    [user_room] = await durable.load_user("bob")
    assert user_room.preferences == Preferences(pinned=True, change=ChangeNumber(9))


async def test_an_older_change_number_never_replaces_a_newer_wish_for_all_channels(durable: Durable) -> None:
    await durable.save_receipts("bob", "private", 8)
    await durable.save_receipts("bob", "public", 7)
    assert (await durable.activity("bob")).receipts == "private"
    await durable.save_seen("bob", 50)
    await durable.save_receipts("bob", "public", 9)
    assert await durable.activity("bob") == Activity(0, 50, "public")
