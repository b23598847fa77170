"""What every durable store promises of badges and taps."""

import asyncio
from typing import Any, cast

import pytest
from msgspec import structs

from readstate.adapters.sql.postgres.engine import PostgresEngine
from readstate.adapters.sql.postgres.session import PostgresSession
from readstate.adapters.sql.postgres.store import PostgresStore
from readstate.adapters.sql.sqlite.store import SqliteDatabase
from readstate.adapters.sql.store import SqlStore
from readstate.domain.errors import StorageUnavailable
from readstate.domain.events import ChannelEvent
from readstate.domain.model import FOREVER, Preferences
from readstate.ports import Activity, Durable, TapCursor

from .people import NOW, a_channel_with_three, apply, members, say, times


@pytest.fixture(autouse=True)
async def _opened(durable: Durable) -> None:
    await a_channel_with_three(durable)


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


@pytest.mark.parametrize("more", [{}, {"thread_id": "root"}], ids=["message", "reply"])
async def test_a_tap_waits_for_a_decision_that_relies_on_what_it_ends(
    durable: SqlStore, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    """The writer has found the row of the first message, and stores nothing for the second. Then comes the tap."""
    root, first, second = say("root", "bob"), say("first", **more), say("second", **more)
    await apply(durable, root, first)
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


@pytest.mark.parametrize("gone", ["c", "alice", "bob"])
@pytest.mark.parametrize("first", ["tap", "end"])
async def test_a_tap_writes_no_row_of_a_channel_or_a_person_that_ends_meanwhile(
    durable: SqlStore, monkeypatch: pytest.MonkeyPatch, gone: str, first: str
) -> None:
    """It renews the row of a later message, whose rows another transaction removes at that moment."""
    tapped, later = say("first"), say("second")
    await apply(durable, tapped, later)

    async def end() -> None:
        if gone == "c":
            await apply(durable, ChannelEvent(channel_id="c", created_at=NOW, action="delete"))
        else:
            await durable.transfer.erase(gone, next(times))

    works = {"tap": lambda: durable.tap("bob", tapped.created_at, 10), "end": end}
    second = "end" if first == "tap" else "tap"
    after = {"tap": "renew_undelivered", "end": "purge_undelivered" if gone == "c" else "erase_undelivered"}
    begun, go_on = asyncio.Event(), asyncio.Event()
    run = PostgresSession.run

    async def slowly(self: PostgresSession, name: str, **values: object) -> int:
        changed = await run(self, name, **values)
        if name == after[first]:
            begun.set()
            await go_on.wait()
        return changed

    async with asyncio.TaskGroup() as tasks:
        if isinstance(durable, PostgresStore):
            monkeypatch.setattr(PostgresSession, "run", slowly)
            tasks.create_task(works[first]())
            await begun.wait()
            await until_it_waits(durable, tasks.create_task(works[second]()))
            go_on.set()
        else:
            tasks.create_task(works[first]())
            tasks.create_task(works[second]())
    assert await durable.badge_count("bob") == 0
    assert await number(durable, "SELECT count(*) FROM undelivered WHERE receiver_id = 'bob'") == 0


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
