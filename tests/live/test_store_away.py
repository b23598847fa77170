"""A store that is away for a moment: what devices are told does not stop, and what needs it is done when it is back."""

import time
from typing import Any

import pytest

from readstate.domain.errors import HotStoreUnavailable

from .conftest import LiveService


class Away:
    """What is asked first fails, as often as is said."""

    def __init__(self, owner: object, name: str, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = times
        self._real = getattr(owner, name)
        monkeypatch.setattr(owner, name, self)

    async def __call__(self, *arguments: Any) -> Any:
        if self.left:
            self.left -= 1
            raise HotStoreUnavailable
        return await self._real(*arguments)


async def test_what_happens_is_told_also_when_nobody_knows_the_cursor_for_it(
    service: LiveService, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = await service.fresh("bob")
    before = bob.resume
    away = Away(service.rs.hot.users, "changes", 1, monkeypatch)

    await service.chat.send("alice", "m1")
    assert [frame["message_id"] for frame in await bob.heard("message.new")] == ["m1"]
    assert not away.left

    back = await service.device("bob", "tablet", resume=before)
    assert [frame["message_id"] for frame in await back.heard("message.new")] == ["m1"]


async def test_a_mute_ends_although_it_could_not_be_looked_up_at_first(
    service: LiveService, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = await service.fresh("bob")
    away = Away(service.rs.loader, "view", 0, monkeypatch)
    look = service.rs.live._unmuting._mark_expired

    async def look_in_vain(user: Any) -> None:
        away.left = 1
        await look(user)
        assert not away.left

    monkeypatch.setattr(service.rs.live._unmuting, "_mark_expired", look_in_vain)
    await service.chat.prefer("bob", muted=int(time.time() * 1000) + 500)

    await bob.first("unread.updated", muted=False)
