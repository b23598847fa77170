"""Steps of telling that are held up by force: whatever comes in between, nothing is missed, nobody waits in vain."""

import asyncio
from typing import Any

import pytest

from readstate.domain.announcements import MessageCame
from readstate.profiles.consistency import Shared
from tests.conftest import GENERAL, eventually

from .conftest import LiveService
from .test_store_away import Away

SIDE = "side"


class Gate:
    """Stands in a call after it was done: every answer waits until one more is let through."""

    def __init__(self, owner: object, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = getattr(owner, name)
        self._let = asyncio.Semaphore(0)
        self._came = 0
        monkeypatch.setattr(owner, name, self)

    async def __call__(self, *arguments: Any) -> Any:
        answer = await self._real(*arguments)
        self._came += 1
        await self._let.acquire()
        return answer

    async def came(self, times: int = 1) -> None:
        """So many calls have come here."""

        async def there() -> bool:
            return self._came >= times

        await eventually(there, f"{times} have come to the gate")

    def let(self, times: int = 1) -> None:
        """Let so many go on."""
        for _ in range(times):
            self._let.release()

    def open(self) -> None:
        """From now on nobody waits."""
        self.let(1_000)


# ---------------------------------------------------------------- receipts


async def test_a_receipt_that_was_not_told_yet_holds_the_cursor_back(
    service: LiveService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.chat.send("bob", "m1")
    bob = await service.fresh("bob")
    gate = Gate(service.rs.receipts, "visible", monkeypatch)
    await service.chat.read("alice")
    await gate.came()
    await service.chat.send("carol", "m2")
    await bob.first("message.new", message_id="m2")

    await bob.cut()
    gate.open()

    back = await service.device("bob", resume=bob.resume)
    assert "alice" in {event["user_id"] for event in await back.heard("receipt.updated")}


async def test_receipts_that_could_not_be_looked_up_are_told_later(
    service: LiveService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.chat.send("bob", "m1")
    bob = await service.fresh("bob")
    away = Away(service.rs.receipts, "visible", 2, monkeypatch)

    await service.chat.read("alice")

    await bob.first("receipt.updated", user_id="alice")
    assert not away.left


async def test_a_ping_waits_for_receipts_from_before_it_and_for_none_after_it(
    service: LiveService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.chat.send("bob", "m1", "m2", "m3")
    bob = await service.fresh("bob")
    gate = Gate(service.rs.receipts, "visible", monkeypatch)
    await service.chat.read("alice", up_to="m1")
    await gate.came()
    pong = asyncio.create_task(bob.do("ping"))
    await service.chat.read("alice", up_to="m2")
    assert not pong.done()

    gate.let()
    await gate.came(2)

    assert (await pong)["type"] == "pong"
    assert [event["last_read_seq"] for event in bob._events if event["type"] == "receipt.updated"] == [1]
    gate.open()


async def test_receipts_that_come_during_a_lookup_leave_together_in_order(
    service: LiveService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.chat.send("bob", "m1", "m2", "m3")
    bob = await service.fresh("bob")
    gate = Gate(service.rs.receipts, "visible", monkeypatch)
    await service.chat.read("alice", up_to="m1")
    await gate.came()
    for user, message in (("carol", "m1"), ("alice", "m2"), ("alice", "m3")):
        await service.chat.read(user, up_to=message)

    gate.open()

    told = [(event["user_id"], event["last_read_seq"]) for event in await bob.heard("receipt.updated")]
    assert told == [("alice", 1), ("carol", 1), ("alice", 3)]


# ---------------------------------------------------------------- figures


async def test_a_ping_is_answered_while_figures_cannot_be_rendered(
    service: LiveService, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = await service.fresh("bob")
    away = Away(service.rs.renderer, "render", 1_000_000, monkeypatch)

    await service.chat.prefer("bob", muted=True)
    await bob.quiet()
    away.left = 0

    await bob.first("unread.updated", muted=True)


async def test_who_comes_back_beside_another_device_is_not_given_a_cursor_ahead_of_what_it_was_told(
    service: LiveService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.chat.open_channel("alice", "bob", channel=SIDE)
    await service.chat.send("alice", "s1", "s2", channel=SIDE)
    phone = await service.fresh("bob", "phone")
    laptop = await service.fresh("bob", "laptop")
    await laptop.close()
    since = Gate(service.rs.catch_up, "_events", monkeypatch)
    laptop = await service.device("bob", "laptop", hello=False)
    await laptop.say("hello", device="laptop", resume=phone.resume)
    await since.came()
    await service.chat.read("bob", SIDE)
    await phone.first("read_pointer.updated", channel_id=SIDE)
    await phone.quiet()
    render = Gate(service.rs.renderer, "render", monkeypatch)
    since.open()
    await render.came()
    await service.chat.send("carol", "m1")
    await laptop.first("message.new", message_id="m1")

    await laptop.cut()
    render.open()

    back = await service.device("bob", "laptop", resume=laptop.resume)
    assert [event["unread"] for event in await back.heard("unread.updated") if event["channel_id"] == SIDE] == [0]


async def test_a_message_that_could_not_be_told_is_looked_up(
    service: LiveService, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = await service.fresh("bob")
    away = Away(service.rs.hot.users, "count_delta", 1, monkeypatch)

    await service.chat.send("alice", "m1")

    await bob.first("message.new", message_id="m1")
    assert not away.left
    assert (await bob.first("unread.updated", channel_id=GENERAL))["unread"] == 1


@pytest.mark.parametrize(("kind", "how"), [("channel.focus", {"read": False}), ("mark_read", {"up_to": "m1"})])
async def test_an_answer_that_has_a_message_in_it_before_that_is_told_does_not_count_it_twice(
    service: LiveService, monkeypatch: pytest.MonkeyPatch, kind: str, how: dict[str, Any]
) -> None:
    """As in a cluster, where another process has put the message into the hot state."""
    await service.chat.send("alice", "m1")
    await service.chat.read("bob", up_to="m1")
    bob = await service.fresh("bob")
    live, late = service.rs.live, list[MessageCame]()

    async def comes_late(came: MessageCame) -> None:
        late.append(came)

    with monkeypatch.context() as slow:
        slow.setattr(live._sender, "_consistency", Shared())
        slow.setattr(live, "_message", comes_late)
        await service.chat.send("alice", "m2")
        answer = await bob.ask(kind, channel_id=GENERAL, **how)
    assert answer.get("after", answer)["unread"] == 1
    await live.on_announcements(late)

    message, *renderer = await bob.heard()
    assert (message["type"], message["message_id"]) == ("message.new", "m2")
    assert [event["unread"] for event in renderer if event["type"] == "unread.updated"] == [1]
