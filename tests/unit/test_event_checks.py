"""Senders of one request are looked up together."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from readstate.domain.errors import NotAMember
from readstate.domain.events import MessageEvent
from readstate.services.event_checks import EventChecks
from readstate.services.freshness import AlwaysFresh


class Views:
    """Answers when as many users as expected have been asked about."""

    def __init__(self, users: int) -> None:
        self.asked: list[tuple[str, list[str]]] = []
        self._all = asyncio.Barrier(users)

    async def view(self, user: str, names: Sequence[str]) -> Any:
        self.asked.append((user, list(names)))
        await self._all.wait()
        epoch = SimpleNamespace(epoch=len(user))
        return SimpleNamespace(
            user_rooms=[SimpleNamespace(channel_id=name, member=name != "left", pointer=epoch) for name in names]
        )


def message(sender: str, channel: str) -> MessageEvent:
    return MessageEvent(channel_id=channel, created_at=1, id="m", sender_id=sender, at=1)


async def test_every_user_is_asked_about_once_and_all_at_the_same_time() -> None:
    views: Any = Views(3)
    nothing: Any = None
    checks = EventChecks(views, nothing, nothing, AlwaysFresh(), nothing)
    pairs = [("ann", "c"), ("bo", "c"), ("ann", "d"), ("ann", "c"), ("carol", "left")]
    async with asyncio.timeout(10):
        found = await checks.members(pairs)
    assert views.asked == [("ann", ["c", "d"]), ("bo", ["c"]), ("carol", ["left"])]
    assert set(found) == {("ann", "c"), ("ann", "d"), ("bo", "c")}
    assert checks.sender(message("ann", "d"), found).epoch == 3
    with pytest.raises(NotAMember):
        checks.sender(message("carol", "left"), found)
    with pytest.raises(NotAMember):
        checks.sender(message("bo", "d"), found)
