"""What did not get through while the database was away: it is noted later, at the latest when the service stops."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from readstate import Readstate
from readstate.api import NewMessage, PutChannel
from readstate.domain.errors import StorageUnavailable
from readstate.domain.model import Undelivered
from readstate.timings import ServiceTimings, Timings
from tests.conftest import eventually


async def refuse(_: Sequence[Undelivered]) -> None:
    raise StorageUnavailable("the database is away")


async def alice_writes(rs: Readstate) -> None:
    """To bob, who has a connection."""
    await rs.channels.put("c", PutChannel(type="group", members=("alice", "bob")))
    await rs.presence.connected("bob", "phone", "k1")
    await rs.messages.send([NewMessage(id="m1", channel_id="c", sender_id="alice", text="hello")])


async def bob_is_cut_afterwards(rs: Readstate, _: pytest.MonkeyPatch) -> None:
    """Before he confirms it."""
    await alice_writes(rs)
    await rs.presence.disconnected("bob", "phone", "k1")


async def bob_is_cut_meanwhile(rs: Readstate, patch: pytest.MonkeyPatch) -> None:
    """When the message is stored, and before it is looked whom it reaches."""
    reached = rs.hot.presence.reached

    async def after_the_cut(noted: Sequence[Undelivered]) -> list[Undelivered]:
        await rs.hot.presence.disconnect("bob", "phone", "k1")
        return await reached(noted)

    patch.setattr(rs.hot.presence, "reached", after_the_cut)
    await alice_writes(rs)


both = pytest.mark.parametrize("is_cut", [bob_is_cut_afterwards, bob_is_cut_meanwhile])


@both
async def test_it_is_noted_before_the_service_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cut: Callable[..., Awaitable[None]]
) -> None:
    async with Readstate.open(data_dir=str(tmp_path)) as rs:
        with monkeypatch.context() as away:
            away.setattr(rs.durable, "save_undelivered", refuse)
            await is_cut(rs, away)
            assert (await rs.badge.get("bob")).senders == 0
    async with Readstate.open(data_dir=str(tmp_path)) as rs:
        assert (await rs.badge.get("bob")).senders == 1


@both
async def test_it_is_noted_as_soon_as_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cut: Callable[..., Awaitable[None]]
) -> None:
    timings = Timings(services=ServiceTimings(housekeeping=0.01))
    async with Readstate.open(data_dir=str(tmp_path), timings=timings) as rs:
        with monkeypatch.context() as away:
            away.setattr(rs.durable, "save_undelivered", refuse)
            await is_cut(rs, away)
            await rs.presence.expire()
            assert (await rs.badge.get("bob")).senders == 0

        async def counted() -> bool:
            return (await rs.badge.get("bob")).senders == 1

        await eventually(counted, "the badge is 1")
