"""Cursors are the service's own: one that is made up, changed or too old is refused, and shows nothing."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pytest

from readstate.domain.model import NO_CHANGE, NO_POSITION, LogPosition
from readstate.services import cursors
from tests import stores
from tests.conftest import GENERAL, Chat, Clock, check_problem

from .conftest import LiveService, live_service
from .device import Frame

DAY = 24 * 3600


@pytest.fixture(params=stores.ALL, autouse=True)
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and memory, or servers: both in any run."""
    monkeypatch.setattr(stores, "chosen", request.param)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def service(tmp_path: Path, clock: Clock) -> AsyncIterator[LiveService]:
    """Alice and bob in general, which carol is not in."""
    async with live_service(tmp_path, clock=clock, max_page=2) as service:
        await service.chat.open_channel("alice", "bob")
        yield service


def previews(events: list[Frame]) -> list[str]:
    return [event["preview"] for event in events if event["type"] == "message.new"]


def made_up(cursor: msgspec.Struct, owner: str) -> str:
    """As anyone can make one: with a checksum, which is what cursors had before they were signed."""
    raw = msgspec.msgpack.encode(cursor)
    return urlsafe_b64encode(crc32(raw + owner.encode()).to_bytes(4) + raw).decode().rstrip("=")


class Query:
    """A way to hand in a cursor over HTTP, and a cursor that fits."""

    def __init__(self, path: str, cursor: msgspec.Struct, owner: str = "bob", field: str = "cursor", **more: Any):
        self.path = path
        self.cursor = cursor
        self.owner = owner
        self.field = field
        self.more = more

    async def send(self, chat: Chat, cursor: str) -> Any:
        if self.path.endswith("/tap"):
            return await chat.call("POST", self.path, {"cursor": cursor})
        return await chat.call("GET", self.path, params={self.field: cursor, **self.more})


def queries(rs: Any) -> list[Query]:
    """One for each kind of cursor, with numbers that lead to everything there is."""
    at = rs.clock()
    sync = cursors.SyncCursor(NO_CHANGE, (NO_POSITION,), 0, rs.changes.store_id)
    inbox = cursors.InboxAfter("recent", "all", rs.cursors.encode(sync, "bob"), 0, 0, -at, "")
    page = cursors.SyncPage(rs.cursors.encode(sync, "bob"), None, False, at, "")
    return [
        Query("/v1/users/bob/unread", sync, field="since"),
        Query("/v1/users/bob/unread", page),
        Query("/v1/users/bob/inbox", inbox),
        Query("/v1/users/bob/unread/messages", cursors.MessagesAfter("newest", at, ""), order="newest"),
        Query("/v1/users/bob/unread/messages", cursors.MessagesAfter("oldest", 0, ""), order="oldest"),
        Query("/v1/users/bob/unread/messages", cursors.MessagesAfter("channel", 0, "a"), order="channel"),
        Query("/v1/users/bob/threads", cursors.ThreadsAfter(-at, "")),
        Query("/v1/users/bob/badge/tap", cursors.TapAfter(0, at, 1, at, at, GENERAL, "m")),
        Query("/v1/channels/general/members", cursors.MembersAfter(""), owner=GENERAL),
    ]


# ---------------------------------------------------------------- made up


async def test_a_made_up_cursor_is_refused(service: LiveService) -> None:
    await service.chat.send("alice", "m1", "m2")

    for query in queries(service.rs):
        answer = await query.send(service.chat, made_up(query.cursor, query.owner))
        check_problem(answer, 400, "invalid_cursor", query.field)


async def test_a_made_up_resume_shows_nothing(service: LiveService) -> None:
    await service.chat.send("alice", "m1", "m2")
    await service.chat.join("carol")
    everything = cursors.SyncCursor(NO_CHANGE, (NO_POSITION,), 0, service.rs.changes.store_id)

    carol = await service.device("carol", resume=made_up(everything, "carol"))

    events = await carol.heard()
    assert previews(events) == []
    assert [event["type"] for event in events] == ["sync.required", "badge.updated"]


async def test_a_made_up_cursor_shows_no_old_tap(service: LiveService) -> None:
    await service.chat.send("alice", "m1")
    await service.chat.tap("bob")
    at = service.rs.clock()
    bob = await service.device("bob")

    shown = await bob.do("badge.tap", cursor=made_up(cursors.TapAfter(0, at, 1, at, at, "z", "z"), "bob"))

    assert (shown["type"], shown["code"]) == ("error", "invalid_cursor")


async def test_a_cursor_that_was_changed_is_refused(service: LiveService) -> None:
    sync = (await service.chat.sync("bob"))["sync"]
    raw = urlsafe_b64decode(sync + "=" * (-len(sync) % 4))

    for index in range(len(raw)):
        other = urlsafe_b64encode(raw[:index] + bytes([raw[index] ^ 1]) + raw[index + 1 :]).decode().rstrip("=")
        answer = await service.chat.call("GET", "/v1/users/bob/unread", params={"since": other})
        check_problem(answer, 400, "invalid_cursor", "since")


async def test_a_device_with_a_refused_cursor_goes_on_after_one_sync(service: LiveService) -> None:
    """As after an upgrade: cursors from before cursors were signed are refused, once."""
    old = cursors.SyncCursor(NO_CHANGE, (NO_POSITION,), 0, service.rs.changes.store_id)
    bob = await service.device("bob", resume=made_up(old, "bob"))
    await bob.first("sync.required")
    await bob.cut()
    await service.chat.send("alice", "m1")

    back = await service.device("bob", resume=bob.resume)

    events = await back.heard()
    assert previews(events) == ["this is m1"]
    assert "sync.required" not in [event["type"] for event in events]


# ---------------------------------------------------------------- numbers


def numbers_of(cursor: msgspec.Struct) -> list[str]:
    return [name for name, value in msgspec.structs.asdict(cursor).items() if type(value) is int]


@pytest.mark.parametrize("number", [-(2**63), -(2**63) + 1, -1, 2**63 - 2, 2**63 - 1, 2**63, 2**64 - 1])
async def test_no_number_in_a_cursor_is_a_fault_of_the_service(service: LiveService, number: int) -> None:
    """Not even in one with the right signature."""
    await service.chat.send("alice", "m1", "m2", "m3")

    for query in queries(service.rs):
        for name in numbers_of(query.cursor):
            cursor = msgspec.structs.replace(query.cursor, **{name: number})
            answer = await query.send(service.chat, service.rs.cursors.encode(cursor, query.owner))
            assert answer.status_code in {200, 400}, (query.path, name, answer.text)


@pytest.mark.parametrize("positions", [(), (-1,), (2**63,), (0, 0)])
async def test_positions_that_fit_no_log_are_refused(service: LiveService, positions: tuple[LogPosition, ...]) -> None:
    cursor = service.rs.cursors.encode(cursors.SyncCursor(NO_CHANGE, positions, 0, service.rs.changes.store_id), "bob")

    answer = await service.chat.call("GET", "/v1/users/bob/unread", params={"since": cursor})
    bob = await service.device("bob", resume=cursor)

    check_problem(answer, 400, "invalid_cursor", "since")
    await bob.first("sync.required")


# ---------------------------------------------------------------- genuine, at another time


async def test_messages_from_before_a_join_were_not_missed(service: LiveService) -> None:
    carol = await service.fresh("carol")
    await carol.cut()
    await service.chat.send("alice", "m1", "m2")
    await service.chat.reply("bob", "m1", "r1")
    await service.chat.join("carol")
    await service.chat.send("alice", "m3")
    await service.chat.reply("bob", "m1", "r2")

    back = await service.device("carol", resume=carol.resume)

    assert previews(await back.heard()) == ["this is m3", "this is r2"]


@pytest.mark.parametrize("history", ["read", "unread", 1])
async def test_messages_from_between_leaving_and_coming_back_were_not_missed(
    service: LiveService, history: str | int
) -> None:
    bob = await service.fresh("bob")
    await service.chat.send("alice", "m1")
    await bob.heard()
    await bob.cut()
    await service.chat.leave("bob")
    await service.chat.send("alice", "m2")
    await service.chat.reply("alice", "m1", "r1")
    await service.chat.join("bob", history=history)
    await service.chat.send("alice", "m3")

    back = await service.device("bob", resume=bob.resume)

    assert previews(await back.heard()) == ["this is m3"]


async def test_who_joins_with_nothing_new_hears_of_the_channel_and_of_no_message(service: LiveService) -> None:
    sync = (await service.chat.sync("carol"))["sync"]
    await service.chat.send("alice", "m1")
    await service.chat.join("carol", history="unread")

    carol = await service.device("carol", resume=sync)

    events = await carol.heard()
    assert previews(events) == []
    [unread] = [event for event in events if event["type"] == "unread.updated"]
    assert unread["unread"] == 1


async def test_the_pages_of_a_tap_are_gone_after_ten_minutes(service: LiveService, clock: Clock) -> None:
    await service.chat.send("alice", "m1", "m2", "m3")
    cursor = (await service.chat.tap("bob"))["cursor"]
    clock.advance(seconds=600)
    again = [await service.chat.ask("POST", "/v1/users/bob/badge/tap", {"cursor": cursor}) for _ in range(2)]
    assert [[m["id"] for m in page["by_sender"][0]["messages"]] for page in again] == [["m1"], ["m1"]]

    clock.advance(seconds=1)

    answer = await service.chat.call("POST", "/v1/users/bob/badge/tap", {"cursor": cursor})
    check_problem(answer, 400, "invalid_cursor", "cursor")
    bob = await service.device("bob")
    assert (await bob.do("badge.tap", cursor=cursor))["code"] == "invalid_cursor"


# ---------------------------------------------------------------- erased meanwhile


async def refused(service: LiveService, user: str, cursor: str) -> None:
    """The device is told to sync, and the delta over HTTP is refused; a sync leads on."""
    answer = await service.chat.call("GET", f"/v1/users/{user}/unread", params={"since": cursor})
    check_problem(answer, 400, "invalid_cursor", "since")
    device = await service.device(user, "comes back", resume=cursor)
    await device.first("sync.required")
    sync = await service.chat.sync(user)
    assert (await service.chat.sync(user, since=sync["sync"]))["channels"] == []
    await device.close()


async def test_a_device_that_was_away_while_its_user_was_erased_must_sync(service: LiveService) -> None:
    bob = await service.fresh("bob")
    await bob.cut()
    await service.chat.ask("DELETE", "/v1/users/bob")

    await refused(service, "bob", bob.resume or "")


async def test_it_must_sync_also_when_the_user_is_back_and_has_read(service: LiveService, clock: Clock) -> None:
    sync = (await service.chat.sync("bob"))["sync"]
    await service.chat.ask("DELETE", "/v1/users/bob")
    await service.chat.open_channel("alice", "bob", channel="another")
    await service.chat.send("alice", "m1", channel="another")
    await service.chat.read("bob", "another")

    await refused(service, "bob", sync)


async def test_it_must_sync_after_days_and_a_restart(tmp_path: Path, clock: Clock) -> None:
    """A note of an erase is dropped after days: then older cursors of all users count as from before one."""
    async with live_service(tmp_path, clock=clock) as service:
        await service.chat.open_channel("alice", "bob")
        sync = (await service.chat.sync("bob"))["sync"]
        await service.chat.ask("DELETE", "/v1/users/bob")
    clock.advance(seconds=10 * DAY)
    async with live_service(tmp_path, clock=clock) as service:
        await refused(service, "bob", sync)
        await service.chat.ask("DELETE", "/v1/users/dave")

        await refused(service, "bob", sync)


async def test_erasing_one_user_costs_no_other_a_sync(service: LiveService) -> None:
    alice, bob = await service.fresh("alice"), await service.fresh("bob")
    await alice.cut()
    await bob.cut()
    await service.chat.send("alice", "m1")
    await service.chat.ask("DELETE", "/v1/users/carol")
    await service.rs.evict()

    back = await service.device("bob", resume=bob.resume)

    assert previews(await back.heard()) == ["this is m1"]
    assert (await service.chat.sync("alice", since=alice.resume))["channels"]
