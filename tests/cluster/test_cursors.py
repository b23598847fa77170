"""Cursors in a cluster: what one instance gives out, every other one takes, and none what was made up."""

from base64 import urlsafe_b64encode
from typing import Any
from zlib import crc32

import msgspec
import pytest

from readstate.domain.model import NO_CHANGE, NO_POSITION
from readstate.services.cursors import SyncCursor
from readstate.workers import RECEIPT_PERSISTER
from tests.conftest import check_problem, eventually

from .fleet import PARTITIONS
from .hard import SMALL, Instance


class Phone:
    """A device that keeps what it hears."""

    connection_id = "phone"

    def __init__(self) -> None:
        self.events: list[Any] = []

    def push(self, frame: bytes) -> None:
        self.events.append(msgspec.json.decode(frame))

    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]


async def told(instance: Instance, user: str, cursor: str) -> Phone:
    """A device that comes back with a cursor, when it has heard what it missed."""
    phone = Phone()
    start = instance.rs.cursors.decode(cursor, SyncCursor, user)
    await instance.rs.live.attach(user, phone, start)
    await instance.rs.live.flushed(user)
    return phone


async def refuses(instance: Instance, user: str, cursor: str) -> None:
    answer = await instance.chat.call("GET", f"/v1/users/{user}/unread", params={"since": cursor})
    check_problem(answer, 400, "invalid_cursor", "since")


async def test_a_cursor_of_one_instance_is_good_at_another(one: Instance, two: Instance) -> None:
    sync = (await one.chat.sync("bob"))["sync"]
    await one.chat.send("alice", "m6", channel=SMALL)

    async def shown() -> bool:
        rows = (await two.chat.sync("bob", since=sync))["channels"]
        return [row["channel_id"] for row in rows] == [SMALL]

    await eventually(shown, "the other instance tells what changed")


async def test_a_made_up_cursor_is_good_at_none(one: Instance, two: Instance) -> None:
    raw = msgspec.msgpack.encode(SyncCursor(NO_CHANGE, (NO_POSITION,) * PARTITIONS, 0, one.rs.changes.store_id))
    made_up = urlsafe_b64encode(crc32(raw + b"bob").to_bytes(4) + raw).decode().rstrip("=")

    for instance in (one, two):
        await refuses(instance, "bob", made_up)


@pytest.mark.parametrize("partitions", [1, PARTITIONS + 1])
async def test_a_cursor_from_before_the_partitions_were_others_is_refused(one: Instance, partitions: int) -> None:
    cursor = SyncCursor(NO_CHANGE, (NO_POSITION,) * partitions, 0, one.rs.changes.store_id)

    await refuses(one, "bob", one.rs.cursors.encode(cursor, "bob"))


async def test_messages_from_before_a_join_are_not_among_those_missed(one: Instance, two: Instance) -> None:
    sync = (await one.chat.sync("frank"))["sync"]
    await one.chat.send("alice", "m6", channel=SMALL)
    await one.chat.reply("alice", "m6", "r1", channel=SMALL)
    await one.chat.join("frank", channel=SMALL)
    await one.chat.send("alice", "m7", channel=SMALL)

    phone = await told(two, "frank", sync)

    assert [event["message_id"] for event in phone.events if event["type"] == "message.new"] == ["m7"]


async def test_a_device_that_was_away_while_its_user_was_erased_must_sync(
    worker: Instance, one: Instance, two: Instance
) -> None:
    worker.start_worker(RECEIPT_PERSISTER)
    sync = (await one.chat.sync("bob"))["sync"]
    await two.chat.ask("DELETE", "/v1/users/bob")

    phone = await told(one, "bob", sync)

    assert "sync.required" in phone.kinds()
    for instance in (one, two):
        await refuses(instance, "bob", sync)
