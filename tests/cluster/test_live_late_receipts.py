"""What others have read is announced before it is stored: a device that comes back in between is told it later."""

import json
from typing import Any

import pytest

from readstate.domain.announcements import PointerMoved
from readstate.workers import RECEIPT_PERSISTER
from tests.conftest import eventually

from .hard import BIG, GUESTS, Instance
from .test_live_after_a_loss import Screen, synced


class Listener(Screen):
    """Keeps the receipts that it hears."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen.state, screen.cursor)
        self.receipts: list[tuple[str, int]] = []

    def push(self, frame: bytes) -> None:
        super().push(frame)
        event: dict[str, Any] = json.loads(frame)
        if event["type"] == "receipt.updated":
            self.receipts.append((event["user_id"], event["last_read_seq"]))


def is_deaf_to(instance: Instance, user: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this user reads is announced before anybody listens there, however long the announcement takes."""
    on_announcements = instance.rs.live._pointer

    def hear_others(moved: PointerMoved) -> None:
        if moved.user_id != user:
            on_announcements(moved)

    monkeypatch.setattr(instance.rs.live, "_pointer", hear_others)


async def test_a_receipt_that_was_only_in_the_log_when_a_device_came_back(
    worker: Instance, one: Instance, two: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = GUESTS[:2]
    is_deaf_to(one, first, monkeypatch)
    screen = Listener(await synced(one))
    await two.chat.read(first, BIG, up_to="m2")

    await screen.connect(one)
    await one.rs.live.flushed("bob")
    assert screen.receipts == []

    await two.chat.read(second, BIG, up_to="m3")

    async def heard(user: str) -> bool:
        return user in {name for name, _ in screen.receipts}

    await eventually(lambda: heard(second), "what happens now is told at once")
    assert not await heard(first)
    worker.start_worker(RECEIPT_PERSISTER)
    await eventually(lambda: heard(first), "what had happened before is told when it is stored")
    assert dict(screen.receipts) == {first: 2, second: 3}
