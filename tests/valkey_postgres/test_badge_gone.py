"""What is gone (a deleted channel, an erased sender) comes back to no badge, however late its events and notes arrive.

The badge by the set is the badge by SQL, and a tap shows as many people as the badge has said.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from readstate import Readstate
from readstate.api import NewMessage, PutChannel
from readstate.domain.errors import StorageUnavailable
from readstate.domain.model import Undelivered
from readstate.ports import HotBadges
from readstate.profiles.wiring import Services
from tests.conftest import Clock
from tests.contract.valkey import single

from .away import PATIENT, Cluster, a_cluster
from .on_servers import on_servers
from .repairing import KINDS

GROUP = "group"


async def delete(services: Services | Readstate) -> None:
    await services.channels.delete(GROUP)


async def erase(services: Services | Readstate) -> None:
    await services.transfer.erase_user("alice")


Goes = Callable[[Services | Readstate], Awaitable[None]]
Happens = Callable[[], Awaitable[object]]
When = Callable[[pytest.MonkeyPatch, HotBadges, Happens], None]
GONE = pytest.mark.parametrize("goes", [delete, erase], ids=["the channel is deleted", "the sender is erased"])


def before(monkeypatch: pytest.MonkeyPatch, badges: HotBadges, happens: Happens) -> None:
    """Something happens once, right before senders are added to badges."""
    add = badges.add

    async def happens_first(undelivered: Sequence[Undelivered], *, or_reload: bool = True) -> object:
        monkeypatch.setattr(badges, "add", add)
        await happens()
        return await add(undelivered, or_reload=or_reload)

    monkeypatch.setattr(badges, "add", happens_first)


def after(monkeypatch: pytest.MonkeyPatch, badges: HotBadges, happens: Happens) -> None:
    """Something happens once, right after senders were added to badges."""
    add = badges.add

    async def happens_then(undelivered: Sequence[Undelivered], *, or_reload: bool = True) -> object:
        monkeypatch.setattr(badges, "add", add)
        changed = await add(undelivered, or_reload=or_reload)
        await happens()
        return changed

    monkeypatch.setattr(badges, "add", happens_then)


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    async with a_cluster(Clock(), timings=PATIENT) as cluster:
        await cluster.open(GROUP, "alice", "bob", "carol")
        yield cluster


# ---------------------------------------------------------------- events that come late


@GONE
async def test_an_event_that_comes_when_all_is_gone_puts_nobody_on_the_badge(cluster: Cluster, goes: Goes) -> None:
    await cluster.send("alice", GROUP, "m1")
    await cluster.write()
    await goes(cluster.instances[0])
    assert await cluster.badge("bob") == 0  # it is loaded now
    await cluster.update()
    assert await cluster.badge("bob") == 0
    assert (await cluster.tap("bob")).senders == 0


@GONE
async def test_an_event_that_comes_again_puts_nobody_back(cluster: Cluster, goes: Goes) -> None:
    await cluster.say("alice", GROUP, "m1")
    await goes(cluster.instances[0])
    assert await cluster.badge("bob") == 0
    await cluster.update(again=2)  # bob's and carol's
    assert await cluster.badge("bob") == 0


async def test_who_wrote_elsewhere_too_stays_on_the_badge(cluster: Cluster) -> None:
    await cluster.open("elsewhere", "alice", "bob")
    await cluster.send("alice", "elsewhere", "m1")
    cluster.clock.advance(ms=1)
    await cluster.send("alice", GROUP, "m2")  # the newest, and so what the events are folded to
    await cluster.send("carol", GROUP, "m3")
    await cluster.write()
    await delete(cluster.instances[0])
    assert await cluster.badge("bob") == 1
    await cluster.update(again=3)
    assert await cluster.badge("bob") == 1


@GONE
async def test_what_goes_right_after_it_was_put_on_a_badge_is_on_it_no_more(
    cluster: Cluster, goes: Goes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await cluster.badge("bob") == 0
    await cluster.send("alice", GROUP, "m1")
    await cluster.write()
    after(monkeypatch, cluster.hot.badges, lambda: goes(cluster.instances[0]))
    await cluster.update()
    assert await cluster.badge("bob") == 0


async def test_a_badge_that_could_not_be_checked_is_checked_when_the_batch_comes_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.send("alice", GROUP, "m1")
    await cluster.write()
    await delete(cluster.instances[0])
    assert await cluster.badge("bob") == 0
    cluster.badges_told()

    async def is_away(_: Sequence[Undelivered]) -> set[str]:
        raise StorageUnavailable("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(cluster.durable, "receivers_of_gone", is_away)
        with pytest.raises(StorageUnavailable):
            await cluster.update()
    await cluster.update()
    assert await cluster.badge("bob") == 0
    assert sorted(cluster.badges_told()) == ["bob", "carol"]


async def test_only_who_is_new_on_a_badge_is_looked_up(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Undelivered] = []
    usual = cluster.durable.receivers_of_gone

    async def notes(noted: Sequence[Undelivered]) -> set[str]:
        asked.extend(noted)
        return await usual(noted)

    monkeypatch.setattr(cluster.durable, "receivers_of_gone", notes)
    await cluster.say("alice", GROUP, "m1")
    assert asked == []  # nobody's badge is loaded
    assert await cluster.badge("bob") == 1
    await cluster.say("alice", GROUP, "m2")
    assert asked == []  # known
    await cluster.say("carol", GROUP, "m3")
    assert [(one.receiver_id, one.sender_id) for one in asked] == [("bob", "carol")]


# ---------------------------------------------------------------- notes of what did not get through


@pytest.fixture(params=KINDS)
async def rs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Readstate]:
    """One process, in which bob has a device connected and alice writes to him."""
    if request.param == KINDS[0]:
        async with Readstate.open(data_dir=str(tmp_path)) as rs:
            await alice_writes(rs)
            yield rs
    else:
        async with on_servers(tmp_path, single().url) as rs:
            await alice_writes(rs)
            yield rs


async def alice_writes(rs: Readstate) -> None:
    await rs.channels.put(GROUP, PutChannel(type="group", members=("alice", "bob")))
    await rs.presence.connected("bob", "phone", "1")
    await rs.messages.send([NewMessage(channel_id=GROUP, sender_id="alice", id="m1", text="Hi")])
    assert await rs.badge.count("bob") == 0  # it is loaded now


async def is_empty(rs: Readstate) -> None:
    assert await rs.badge.count("bob") == await rs.durable.badge_count("bob") == 0
    tap = await rs.badge.tap("bob")
    assert (tap.senders, tap.by_sender) == (0, [])


async def test_what_did_not_get_through_is_on_the_badge(rs: Readstate) -> None:
    await rs.presence.disconnected("bob", "phone", "1")
    assert await rs.badge.count("bob") == await rs.durable.badge_count("bob") == 1


@GONE
async def test_what_did_not_get_through_and_is_gone_is_on_no_badge(rs: Readstate, goes: Goes) -> None:
    await goes(rs)
    await rs.presence.disconnected("bob", "phone", "1")
    await is_empty(rs)


async def test_what_did_not_get_through_and_is_deleted_is_on_no_badge(rs: Readstate) -> None:
    await rs.messages.delete(GROUP, "m1")
    await rs.presence.disconnected("bob", "phone", "1")
    await is_empty(rs)


@GONE
@pytest.mark.parametrize("when", [before, after])
async def test_what_goes_while_it_is_noted_is_on_no_badge(
    rs: Readstate, goes: Goes, when: When, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database has the note, and it is about to come to the badge or has just come there."""

    async def goes_and_is_asked_for() -> None:
        await goes(rs)
        assert await rs.badge.count("bob") == 0

    when(monkeypatch, rs.hot.badges, goes_and_is_asked_for)
    await rs.presence.disconnected("bob", "phone", "1")
    await is_empty(rs)


async def test_an_erased_sender_who_comes_back_counts_again(rs: Readstate) -> None:
    await erase(rs)
    await rs.channels.put(GROUP, PutChannel(members=("alice",)))
    await rs.messages.send([NewMessage(channel_id=GROUP, sender_id="alice", id="m2", text="Again")])
    await rs.presence.disconnected("bob", "phone", "1")
    assert await rs.badge.count("bob") == await rs.durable.badge_count("bob") == 1
    [alice] = (await rs.badge.tap("bob")).by_sender
    assert [message.id for message in alice.messages] == ["m2"]
