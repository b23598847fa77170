"""Hot store and durable store are set apart, and brought together again: reconcile, rebuild, audit."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from readstate import Readstate
from readstate.api import MarkUnread, ReadTarget
from readstate.domain.events import Delivery, MessageEvent
from readstate.domain.model import ReadState, Undelivered
from readstate.ports import Durable, Hot
from readstate.services import audit
from readstate.services.audit import Drift
from readstate.services.freshness import AlwaysFresh
from readstate.telemetry import AUDITED, DRIFT, RECONCILED

from .on_servers import BIG, SMALL, count
from .repairing import KINDS, chat, durable_state, hot_state, read_durable_only, read_hot_only

ROOMS = pytest.mark.parametrize("room", [SMALL, BIG])


@pytest.fixture(params=KINDS)
async def rs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Readstate]:
    async with chat(request.param, tmp_path) as rs:
        yield rs


class Meanwhile(AlwaysFresh):
    """What happens between the first look and the second."""

    def __init__(self, happens: Callable[[], Awaitable[object]], passed: bool = True) -> None:
        self._happens = happens
        self._passed = passed

    async def passed(self) -> bool:
        await self._happens()
        return self._passed


def meanwhile(rs: Readstate, happens: Callable[[], Awaitable[object]], passed: bool = True) -> None:
    rs.repair._freshness = Meanwhile(happens, passed)


async def nothing() -> None:
    pass


# ---------------------------------------------------------------- reconcile


async def test_where_nothing_differs_nothing_is_done(rs: Readstate) -> None:
    await rs.reads.mark_read("bob", SMALL, ReadTarget(up_to="m3"))
    await rs.reads.mark_unread("bob", BIG, MarkUnread(from_="m2"))
    found = await rs.repair.reconcile()
    assert (found.database_behind, found.hot_store_behind, found.undecided) == (0, 0, 0)
    assert found.users == await rs.durable.count_users()
    assert 1 <= found.hot_users <= found.users
    assert found.states >= 2


@ROOMS
async def test_a_read_that_only_the_hot_store_has_comes_to_the_database(rs: Readstate, room: str) -> None:
    await read_hot_only(rs, room, 2, (4,))

    found = await rs.repair.reconcile()

    assert (found.database_behind, found.hot_store_behind) == (1, 0)
    assert await durable_state(rs, room) == ReadState(0, 2, frozenset({4}))
    await rs.evict()
    assert await count(rs, "bob", room) == 2
    assert (await rs.repair.reconcile()).database_behind == 0


@ROOMS
async def test_a_read_that_only_the_database_has_comes_to_the_hot_store(rs: Readstate, room: str) -> None:
    await read_durable_only(rs, room, 3)

    found = await rs.repair.reconcile()

    assert (found.database_behind, found.hot_store_behind) == (0, 1)
    assert await count(rs, "bob", room) == 2
    assert (await rs.repair.reconcile()).hot_store_behind == 0


@ROOMS
async def test_where_each_has_something_the_other_lacks_both_have_all(rs: Readstate, room: str) -> None:
    await read_hot_only(rs, room, 0, (2, 5))
    await read_durable_only(rs, room, 1, (4,))

    found = await rs.repair.reconcile()

    assert (found.database_behind, found.hot_store_behind) == (1, 1)
    merged = ReadState(0, 1, frozenset({2, 4, 5}))
    assert await hot_state(rs, room) == await durable_state(rs, room) == merged
    assert await count(rs, "bob", room) == 1


async def test_who_is_not_hot_is_left_alone(rs: Readstate) -> None:
    await rs.evict()
    found = await rs.repair.reconcile()
    assert (found.hot_users, found.states) == (0, 0)
    assert await rs.hot.users.pointers("bob") is None


async def test_what_is_on_its_way_through_the_log_is_no_difference(rs: Readstate) -> None:
    await read_hot_only(rs, SMALL, 2)

    async def it_arrives() -> None:
        await read_durable_only(rs, SMALL, 2)

    meanwhile(rs, it_arrives)
    found = await rs.repair.reconcile()
    assert (found.database_behind, found.hot_store_behind, found.undecided) == (0, 0, 0)


async def test_while_the_log_is_not_passed_nothing_is_said_of_what_the_database_lacks(rs: Readstate) -> None:
    await read_hot_only(rs, SMALL, 2)
    await read_durable_only(rs, BIG, 2)
    meanwhile(rs, nothing, passed=False)

    found = await rs.repair.reconcile()

    assert (found.database_behind, found.hot_store_behind, found.undecided) == (0, 1, 1)
    assert await durable_state(rs, SMALL) == ReadState()


async def test_what_was_marked_unread_meanwhile_stays_unread(rs: Readstate) -> None:
    await read_hot_only(rs, SMALL, 4)

    async def bob_marks_unread() -> None:
        await rs.reads.mark_unread("bob", SMALL, MarkUnread(from_="m2"))

    meanwhile(rs, bob_marks_unread)
    await rs.repair.reconcile()
    assert await count(rs, "bob", SMALL) == 4
    await rs.evict()
    assert await count(rs, "bob", SMALL) == 4


async def test_case_12_who_is_erased_meanwhile_leaves_nothing_behind(rs: Readstate) -> None:
    await read_hot_only(rs, SMALL, 2)
    meanwhile(rs, lambda: rs.transfer.erase_user("bob"))
    await rs.repair.reconcile()
    assert await rs.durable.read_states([("bob", SMALL), ("bob", BIG)]) == {}
    assert "bob" not in await rs.durable.users_after("", 100)


async def test_who_reads_while_it_looks_loses_nothing(rs: Readstate) -> None:
    await read_hot_only(rs, SMALL, 2)

    async def bob_reads_on() -> None:
        await rs.reads.mark_read("bob", SMALL, ReadTarget(up_to="m4"))
        await rs.evict()

    meanwhile(rs, bob_reads_on)
    await rs.repair.reconcile()
    assert await count(rs, "bob", SMALL) == 1


async def test_progress_is_told_up_to_the_end(rs: Readstate) -> None:
    told: list[tuple[int, int]] = []
    await rs.repair.reconcile(lambda done, total: told.append((done, total)))
    everyone = await rs.durable.count_users()
    assert told[-1] == (everyone, everyone)


# ---------------------------------------------------------------- rebuild


async def test_a_rebuild_loads_everyone_and_everything(rs: Readstate) -> None:
    await rs.reads.mark_read("bob", BIG, ReadTarget(up_to="m2"))
    await rs.evict()
    told: list[tuple[int, int]] = []

    built = await rs.repair.rebuild(lambda done, total: told.append((done, total)))

    users = await rs.durable.users_after("", 100)
    assert (built.users, built.channels) == (len(users), 2)
    assert told[-1] == (len(users) + 2, len(users) + 2)
    assert None not in await rs.hot.users.changes(users)
    assert None not in await rs.hot.channels.channels([SMALL, BIG])
    view = await rs.hot.users.view("bob", "all")
    assert view is not None
    assert view.unloaded == []
    assert await count(rs, "bob", SMALL) == 5
    assert await count(rs, "bob", BIG) == 3


async def test_a_rebuild_that_begins_anew_brings_no_drift_along(rs: Readstate) -> None:
    await write_behind_the_hot_store(rs, SMALL)
    assert (await rs.audit.run(10, patience=0)).drift != []
    await rs.repair.rebuild(clear=True)
    assert (await rs.audit.run(10, patience=0)).drift == []
    assert await count(rs, "bob", SMALL) == 6


# ---------------------------------------------------------------- audit


async def write_behind_the_hot_store(rs: Readstate, room: str) -> None:
    """A message that the durable store has, and that the hot store is never told of."""
    now = rs.clock()
    event = MessageEvent(channel_id=room, created_at=now, id="unheard of", sender_id="alice", at=now)
    await rs.durable.apply([Delivery(event, await rs.durable.last_position() + 1)], rs.hot.presence.online)


async def test_an_audit_of_what_agrees_finds_nothing(rs: Readstate) -> None:
    before = AUDITED._value.get(), DRIFT._value.get()
    found = await rs.audit.run(10, patience=10)
    assert found.drift == []
    assert 2 <= found.counted <= 10
    assert found.badges == 0  # nobody has asked for one
    assert (AUDITED._value.get(), DRIFT._value.get()) == (before[0] + found.counted, before[1])


async def test_case_14_a_durable_store_that_trails_is_no_drift(rs: Readstate) -> None:
    await read_hot_only(rs, SMALL, 3)
    assert (await rs.audit.run(10, patience=10)).drift == []


@ROOMS
async def test_an_audit_finds_a_count_that_has_drifted(rs: Readstate, room: str) -> None:
    await write_behind_the_hot_store(rs, room)
    before = DRIFT._value.get()

    found = await rs.audit.run(100, patience=0)

    assert Drift("bob", room, "count", 5, 6) in found.drift
    assert {one.channel_id for one in found.drift} == {room}
    assert DRIFT._value.get() == before + len(found.drift)
    await rs.explain.recount("bob", room)
    assert "bob" not in {one.user_id for one in (await rs.audit.run(100, patience=0)).drift}


async def test_an_audit_finds_a_read_that_the_hot_store_has_lost(rs: Readstate) -> None:
    await read_durable_only(rs, SMALL, 3)
    assert (await rs.audit.run(10, patience=0)).drift == [Drift("bob", SMALL, "pointer", 0, 3)]
    await rs.repair.reconcile()
    assert (await rs.audit.run(10, patience=0)).drift == []


async def test_a_difference_that_does_not_stand_is_no_drift(rs: Readstate) -> None:
    await read_durable_only(rs, SMALL, 3)
    looks = rs.audit._differs

    async def looks_and_repairs(user: str, channel: str) -> Drift | None:
        found = await looks(user, channel)
        if found:
            await rs.repair.reconcile()
        return found

    rs.audit._differs = looks_and_repairs  # type: ignore[method-assign]
    assert (await rs.audit.run(10, patience=30)).drift == []


# ---------------------------------------------------------------- badges


async def put_a_stranger_on_the_badge(rs: Readstate) -> None:
    """Somebody is in the set of whom the durable store knows nothing: 2 instead of 1."""
    assert await rs.badge.count("bob") == 1
    await rs.hot.badges.add([Undelivered("bob", rs.clock() + 1, "stranger", SMALL, "never sent")])


async def test_an_audit_counts_the_badges_that_are_kept_ready(rs: Readstate) -> None:
    assert await rs.badge.count("bob") == 1
    before = AUDITED._value.get()
    found = await rs.audit.run(100, patience=10)
    assert (found.badges, found.drift) == (1, [])
    assert AUDITED._value.get() == before + found.counted + 1


async def test_an_audit_finds_a_badge_that_has_drifted_and_reconcile_repairs_it(rs: Readstate) -> None:
    await put_a_stranger_on_the_badge(rs)
    before, repaired = DRIFT._value.get(), RECONCILED.labels("badge")._value.get()

    assert (await rs.audit.run(100, patience=0)).drift == [Drift("bob", None, "badge", 2, 1)]

    assert DRIFT._value.get() == before + 1
    assert (await rs.repair.reconcile()).badges == 1
    assert RECONCILED.labels("badge")._value.get() == repaired + 1
    assert await rs.badge.count("bob") == 1
    assert (await rs.audit.run(100, patience=0)).drift == []
    assert (await rs.repair.reconcile()).badges == 0


async def test_a_badge_whose_difference_does_not_stand_is_no_drift(
    rs: Readstate, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_a_stranger_on_the_badge(rs)
    looks = audit.badge_drift

    async def looks_and_it_is_tapped(hot: Hot, durable: Durable, users: Sequence[str]) -> list[Drift]:
        found = await looks(hot, durable, users)
        if found:
            await rs.badge.tap("bob")
        return found

    monkeypatch.setattr(audit, "badge_drift", looks_and_it_is_tapped)
    assert (await rs.audit.run(100, patience=30)).drift == []


async def test_a_badge_that_agrees_again_at_the_second_look_is_left_alone(rs: Readstate) -> None:
    await put_a_stranger_on_the_badge(rs)
    await read_hot_only(rs, SMALL, 2)  # so that there is something to wait for
    meanwhile(rs, lambda: rs.badge.tap("bob"))
    assert (await rs.repair.reconcile()).badges == 0


# ---------------------------------------------------------------- samples


async def test_a_sample_has_those_first_who_are_hot(rs: Readstate) -> None:
    await rs.evict()
    await rs.loader.ready("guest1")
    drawn = await rs.audit._sample(2)  # out of all
    assert drawn[0] == ("guest1", BIG)
    assert len(drawn) == 2
