"""Old state plus the events that were sent equals the state fetched anew, whatever happened."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .actions import ACTIONS, FEW, Scene, a_lively_place
from .conftest import LiveService, live_service
from .state import Follower


@pytest.fixture
async def busy(tmp_path: Path) -> AsyncIterator[LiveService]:
    """A lively place, with small channels (counted by ledgers) and large ones (by timelines)."""
    async with live_service(tmp_path, fanout_max_members=FEW) as service:
        await a_lively_place(service.chat)
        yield service


@pytest.mark.parametrize("name", ACTIONS)
async def test_what_devices_hear_or_missed_adds_up(busy: LiveService, name: str) -> None:
    there = [("alice", "phone"), ("bob", "phone"), ("bob", "laptop"), ("carol", "phone"), ("dave", "phone")]
    away = [("bob", "tablet"), ("erin", "phone")]
    followers = [await Follower(busy, *place).start() for place in there]
    absent = [await Follower(busy, *place).start() for place in away]
    for follower in absent:
        await follower.device.close()

    for size in ("small", "large"):
        await ACTIONS[name](Scene(busy, followers[2].device, size))

    for follower in followers:
        await follower.agrees()
    for follower in absent:
        await follower.come_back()
        await follower.agrees()
