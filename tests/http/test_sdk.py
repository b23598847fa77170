"""The Python SDK: every call against a real service, and its patience against one that fails on cue."""

import asyncio
import inspect
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from readstate import Readstate, asgi_app
from readstate.api import ChannelRead, NewMessage, UserRead
from readstate.client import ApiError, Client, Retries, SyncClient, errors
from readstate.domain import errors as served
from tests import stores
from tests.conftest import JWT_SECRET, SERVICE_KEY, eventually, token_for
from tests.servers import serving


@asynccontextmanager
async def service(data_dir: Path, key: str = SERVICE_KEY) -> AsyncIterator[Client]:
    """A client of a service in this process."""
    options: dict[str, Any] = {"service_keys": (SERVICE_KEY,), "jwt_secret": JWT_SECRET, "data_dir": str(data_dir)}
    options |= stores.settings_of(data_dir) | {"timings": stores.timings()}
    async with Readstate.open(**options) as rs, stores.with_workers(rs):
        transport = httpx.ASGITransport(asgi_app(rs))
        async with Client("http://readstate", key, transport=transport) as client:
            yield client


@pytest.fixture
async def readstate(tmp_path: Path) -> AsyncIterator[Client]:
    """Alice and bob are in general, where alice has written m1, m2 and m3."""
    async with service(tmp_path) as client:
        await client.put_channel("general", type="group", name="General", members=["alice", "bob"])
        texts = {f"m{n}": f"text {n}" for n in (1, 2, 3)}
        sent = (NewMessage(channel_id="general", sender_id="alice", id=name, text=texts[name]) for name in texts)
        await client.send_many(sent, wait=True)
        yield client


# ---------------------------------------------------------------- every call


async def test_channels_and_members(readstate: Client) -> None:
    assert (await readstate.put_channel("general", name="Everybody")).type == "group"
    changed = await readstate.change_members("general", add=["carol", "dave"], remove=["bob"], history=2)
    assert (changed.added, changed.removed, changed.member_count) == (2, 1, 3)

    first = await readstate.members("general", limit=2)
    rest = await readstate.members("general", cursor=first.cursor)
    assert [one.user_id for one in first.members + rest.members] == ["alice", "carol", "dave"]
    assert (await readstate.unread("carol", "general")).unread == 2
    channel = await readstate.get_channel("general")
    assert channel.name == "Everybody"
    assert channel.latest is not None
    assert channel.latest.id == "m3"

    await readstate.delete_channel("general")
    with pytest.raises(errors.ChannelNotFound):
        await readstate.get_channel("general")


async def test_messages_are_edited_and_deleted(readstate: Client) -> None:
    edited = await readstate.edit_message("general", "m2", mentions=["bob"])
    assert (edited.text, edited.mentions) == ("text 2", ("bob",))
    assert (await readstate.unread("bob", "general")).mentions == 1

    await readstate.delete_message("general", "m2")

    unread = await readstate.unread("bob", "general")
    assert (unread.unread, unread.mentions) == (2, 0)


async def test_of_many_messages_one_may_be_rejected(readstate: Client) -> None:
    good = NewMessage(channel_id="general", sender_id="alice")
    bad = NewMessage(channel_id="nowhere", sender_id="alice")

    accepted, rejected = await readstate.send_many([good, bad])

    assert accepted.status == "accepted"
    assert accepted.id.startswith("msg_")
    assert (rejected.status, rejected.code) == ("rejected", "channel_not_found")


async def test_reading_and_marking_unread(readstate: Client) -> None:
    assert (await readstate.read("bob", "general", messages=["m2"])).unread == 2
    assert (await readstate.read("bob", "general", up_to="m1")).unread == 1
    everything = await readstate.read("bob", "general")
    assert (everything.unread, everything.changed) == (0, True)

    again = await readstate.mark_unread("bob", "general", "m2")
    assert again.unread == 2
    late = await readstate.read("bob", "general", epoch=everything.last_read.epoch)
    assert (late.unread, late.changed) == (2, False)

    outcomes = await readstate.read_many(
        [
            UserRead(user_id="bob", channel_id="general", up_to_seq=2),
            UserRead(user_id="bob", channel_id="nowhere"),
        ]
    )
    assert [outcome.status for outcome in outcomes] == ["ok", "rejected"]
    assert (await readstate.unread("bob", "general")).unread == 1


async def test_everything_is_read_and_taken_back(readstate: Client) -> None:
    done = await readstate.read_all("bob")
    assert (done.changed, (await readstate.unread("bob", "general")).unread) == (1, 0)
    assert (await readstate.undo("bob", done.undo)).changed == 1
    assert (await readstate.unread("bob", "general")).unread == 3
    with pytest.raises(errors.UndoNotFound):
        await readstate.undo("bob", done.undo)

    listed = await readstate.read_all("bob", items=[ChannelRead(channel_id="general", up_to="m1")])
    assert listed.changed == 1
    assert (await readstate.unread("bob", "general")).unread == 2


async def test_a_sync_comes_page_by_page_and_then_as_what_changed(readstate: Client) -> None:
    for name in ("a", "b", "a,b"):
        await readstate.put_channel(name, type="group", members=["alice", "bob"])
        await readstate.send(name, "alice", wait=True)

    pages = [page async for page in readstate.sync_pages("bob", limit=3)]
    assert [len(page.channels) for page in pages] == [3, 1]
    assert {row.channel_id for page in pages for row in page.channels} == {"general", "a", "b", "a,b"}
    await readstate.read("bob", "b")
    changed = await readstate.sync("bob", since=pages[0].sync)
    assert [(row.channel_id, row.unread) for row in changed.channels] == [("b", 0)]

    for wanted in (["a,b"], ["a", "b"], ["a"]):
        rows = (await readstate.sync("bob", channels=wanted, only_unread=False)).channels
        assert sorted(row.channel_id for row in rows) == wanted


async def test_unread_messages_totals_and_reasons(readstate: Client) -> None:
    page = await readstate.unread_messages("bob", order="oldest", limit=2)
    rest = await readstate.unread_messages("bob", order="oldest", cursor=page.cursor)
    assert [message.id for message in page.messages + rest.messages] == ["m1", "m2", "m3"]

    await badge_is(readstate, 1)
    totals = await readstate.totals(["bob", "nobody"])
    assert (totals["bob"].unread, totals["bob"].badge, totals["nobody"].unread) == (3, 1, 0)
    why = await readstate.explain("bob", "general")
    assert (why.unread, why.agrees) == (3, True)
    assert (await readstate.recount("bob", "general")).after == 3


async def test_inbox_and_preferences(readstate: Client) -> None:
    await readstate.put_channel("later", type="direct", members=["bob", "carol"])
    await readstate.send("later", "carol", text="hi", wait=True)
    preferences = await readstate.put_preferences("bob", "general", pinned=True, muted=True)
    assert (preferences.pinned, preferences.muted, preferences.count) == (True, True, "all")
    assert await readstate.get_preferences("bob", "general") == preferences

    inbox = await readstate.inbox("bob", order="unread_first", limit=1)
    assert [(row.channel_id, row.pinned, row.unread) for row in inbox.conversations] == [("general", True, 3)]
    rest = await readstate.inbox("bob", order="unread_first", cursor=inbox.cursor)
    assert [(row.channel_id, row.peer_id) for row in rest.conversations] == [("later", "carol")]
    await readstate.put_preferences("bob", "later", archived=True)
    assert [row.channel_id for row in (await readstate.inbox("bob", filter="archived")).conversations] == ["later"]


async def badge_is(readstate: Client, senders: int) -> None:
    """Bob's badge, which in a cluster follows a moment after a message."""

    async def told() -> bool:
        return (await readstate.badge("bob")).senders == senders

    await eventually(told, f"the badge is {senders}")


async def test_badge_and_presence(readstate: Client) -> None:
    await badge_is(readstate, 1)
    tap = await readstate.tap("bob")
    assert [(one.sender_id, [m.id for m in one.messages]) for one in tap.by_sender] == [("alice", ["m3", "m2", "m1"])]

    here = await readstate.put_presence("bob", device="phone", online=True)
    assert (here.online, here.devices) == (True, ["phone"])
    await readstate.send("general", "alice", text="you are here", wait=True)
    assert (await readstate.badge("bob")).senders == 0
    await readstate.put_presence("bob", device="phone", online=False)
    assert not (await readstate.presence("bob")).online


async def test_threads_are_followed_and_read(readstate: Client) -> None:
    await readstate.send("general", "bob", id="r1", thread_id="m1", text="a reply", wait=True)
    panel = await readstate.threads("alice", filter="unread")
    assert [(row.thread_id, row.unread) for row in panel.threads] == [("m1", 1)]
    assert (await readstate.read_thread("alice", "general", "m1", up_to="r1")).unread == 0

    await readstate.unfollow("alice", "general", "m1")
    assert (await readstate.threads("alice")).threads == []
    with pytest.raises(errors.ThreadNotFound):
        await readstate.read_thread("alice", "general", "m1")
    await readstate.follow("alice", "general", "m1")
    assert len((await readstate.threads("alice", channel="general")).threads) == 1


async def is_stored(readstate: Client, message: str) -> None:
    """Somebody has seen a message, also by the database: in a cluster it follows a moment later."""

    async def shown() -> bool:
        return (await readstate.seen("general", message)).count > 0

    await eventually(shown, "the receipt is stored")


async def test_receipts_are_shown_unless_they_are_private(readstate: Client) -> None:
    await readstate.read("bob", "general", up_to="m2")
    await is_stored(readstate, "m2")
    seen = await readstate.seen("general", "m2")
    assert (seen.count, seen.of, [one.user_id for one in seen.users or ()]) == (1, 1, ["bob"])
    assert "bob" in {one.user_id for one in (await readstate.receipts("general")).receipts}

    assert (await readstate.put_user_preferences("bob", receipts="private")).receipts == "private"

    assert (await readstate.get_user_preferences("bob")).receipts == "private"
    assert (await readstate.seen("general", "m2")).count == 0


async def test_an_export_is_imported_elsewhere_and_a_user_erased(readstate: Client, tmp_path: Path) -> None:
    await readstate.read("bob", "general", up_to="m1")
    await is_stored(readstate, "m1")
    data = b"".join([chunk async for chunk in readstate.export()])

    async with service(tmp_path / "elsewhere") as other:
        report = await other.import_lines(data, first_line=1, stop=True)
        assert report.refused == []
        assert (await other.unread("bob", "general")).unread == 2
        assert (await other.erase_user("bob")).channels == 1
        with pytest.raises(errors.NotAMember):
            await other.unread("bob", "general")


async def test_the_service_tells_whether_it_is_ready(readstate: Client) -> None:
    assert (await readstate.ready())["status"] == "ok"


async def test_a_user_token_acts_as_its_user(tmp_path: Path) -> None:
    async with service(tmp_path, token_for("bob")) as bob:
        assert (await bob.inbox("me")).conversations == []
        with pytest.raises(errors.Forbidden):
            await bob.inbox("alice")


# ---------------------------------------------------------------- without an event loop


def test_the_sync_face_has_every_call_and_nothing_of_its_own() -> None:
    calls = {name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")}
    face = {name for name, _ in inspect.getmembers(SyncClient, inspect.isfunction) if not name.startswith("_")}

    assert face == calls - {"aclose"} | {"close", "run"}
    assert SyncClient.unread.__doc__ == Client.unread.__doc__


@pytest.fixture
def blocking(tmp_path: Path) -> Iterator[SyncClient]:
    with serving(tmp_path / "data") as server, SyncClient(server.url, server.service_key) as client:
        yield client


def test_programs_without_a_loop_call_it_too(blocking: SyncClient) -> None:
    blocking.put_channel("general", type="group", members=["alice", "bob"])
    for name in ("general", "other"):
        blocking.put_channel(name, type="group", members=["alice", "bob"])
        blocking.send(name, "alice", text="hello", wait=True)

    assert blocking.unread("bob", "general").unread == 1
    assert [len(page.channels) for page in blocking.sync_pages("bob", limit=1)] == [1, 1]
    assert next(iter(blocking.sync_pages("bob", limit=1))).totals.unread == 2
    with pytest.raises(errors.ChannelNotFound):
        blocking.get_channel("nowhere")


def test_threads_share_a_client_until_it_is_closed(blocking: SyncClient) -> None:
    blocking.put_channel("general", type="group", members=["alice", "bob"])
    send = partial(blocking.send, "general", "alice", wait=True)
    senders = [threading.Thread(target=send) for _ in range(8)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    assert blocking.unread("bob", "general").unread == 8

    blocking.close()
    blocking.close()
    with pytest.raises(RuntimeError, match="closed"):
        blocking.unread("bob", "general")


def test_closing_ends_what_other_threads_wait_for() -> None:
    asked, ended = threading.Event(), threading.Event()

    async def never(_: httpx.Request) -> httpx.Response:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    client = SyncClient("http://silent", None, transport=httpx.MockTransport(never))

    def ask() -> None:
        with pytest.raises(CancelledError):
            client.badge("bob")
        ended.set()

    waiting = threading.Thread(target=ask)
    waiting.start()
    assert asked.wait(30)
    client.close()
    waiting.join(30)
    assert ended.is_set()


# ---------------------------------------------------------------- errors


def test_an_error_of_the_service_is_raised_as_its_class() -> None:
    for code, kind in served.by_code().items():
        error = errors.refusal(code, kind.status, "as the service says")

        assert type(error) is kind is getattr(errors, kind.__name__)
        assert (error.code, error.status, error.detail) == (code, kind.status, "as the service says")


def test_an_unknown_code_is_raised_as_the_class_of_its_status() -> None:
    error = errors.refusal("room_not_found", 404, "of a newer service")

    assert type(error) is errors.NotFound
    assert error.code == "room_not_found"
    assert type(errors.refusal("teapot", 418, "of nobody")) is ApiError


# ---------------------------------------------------------------- patience


@dataclass(frozen=True)
class Patient(Retries):
    """Waits for nothing, and remembers how long it would have waited."""

    waited: list[float] = field(default_factory=list)

    async def wait(self, seconds: float) -> None:
        self.waited.append(seconds)


Event = Callable[[httpx.Request], httpx.Response]
READ = {"last_read": {"id": None, "seq": 0, "at": None, "epoch": 0}, "unread": 0, "label": "", "changed": False}


class Flaky:
    """A service that fails in a given way, call after call, and then answers."""

    def __init__(self, *failures: Event | Exception, answer: object = READ) -> None:
        self._failures = list(failures)
        self._answer = answer
        self.requests: list[httpx.Request] = []
        self.retries = Patient(tries=4)

    def client(self) -> Client:
        return Client("http://flaky", "key", retries=self.retries, transport=httpx.MockTransport(self._handle))

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if not self._failures:
            return httpx.Response(200, json=self._answer)
        failure = self._failures.pop(0)
        if isinstance(failure, Exception):
            raise failure
        return failure(request)


def problem(status: int, code: str, after: int | None = None) -> Event:
    body = {"code": code, "detail": f"told: {code}", "retry": status in {429, 503}, "status": status}
    headers = {} if after is None else {"Retry-After": str(after)}
    return lambda _: httpx.Response(status, json=body, headers=headers)


def page(status: int) -> Event:
    """What a proxy says."""
    return lambda _: httpx.Response(status, text="<html>")


BROKEN = httpx.RemoteProtocolError("the peer closed")
REFUSED = httpx.ConnectError("refused")


@pytest.mark.parametrize(
    "failure", [BROKEN, httpx.ReadError("reset"), REFUSED, page(502), page(503), problem(503, "storage_unavailable")]
)
async def test_a_read_is_tried_again_after_a_fault(failure: Event | Exception) -> None:
    flaky = Flaky(failure, failure)
    async with flaky.client() as client:
        await client.read("bob", "general")

    assert len(flaky.requests) == 3


async def test_a_message_without_an_id_is_sent_again_with_the_same_one() -> None:
    sent = {"results": [{"id": "x", "seq": 1, "thread_seq": None, "status": "duplicate"}]}
    flaky = Flaky(BROKEN, answer=sent)
    async with flaky.client() as client:
        await client.send("general", "alice", text="once")

    first, second = (json.loads(request.content)["id"] for request in flaky.requests)
    assert first == second
    assert first.startswith("msg_")


async def test_what_must_not_happen_twice_is_not_tried_again_once_it_may_have_happened() -> None:
    calls: list[Callable[[Client], Any]] = [
        lambda client: client.tap("bob"),
        lambda client: client.undo("bob", "token"),
        lambda client: client.read_all("bob"),
        lambda client: client.mark_unread("bob", "general", "m1"),
        lambda client: client.change_members("general", add=["carol"]),
        lambda client: client.edit_message("general", "m1", text="new"),
    ]
    for call in calls:
        for failure in (BROKEN, page(502), page(503)):
            flaky = Flaky(failure)
            async with flaky.client() as client:
                with pytest.raises(ApiError) as refused:
                    await call(client)
            assert refused.value.retry
            assert len(flaky.requests) == 1


@pytest.mark.parametrize("failure", [REFUSED, problem(429, "rate_limited", 1), problem(503, "stopping", 1)])
async def test_what_has_certainly_not_happened_is_tried_again_by_every_call(failure: Event | Exception) -> None:
    flaky = Flaky(failure, answer={"changed": 1})
    async with flaky.client() as client:
        assert (await client.undo("bob", "token")).changed == 1


async def test_mark_unread_with_its_epoch_is_safe_to_repeat() -> None:
    flaky = Flaky(BROKEN)
    async with flaky.client() as client:
        await client.mark_unread("bob", "general", "m1", epoch=3)

    assert len(flaky.requests) == 2


async def test_the_service_says_how_long_to_wait() -> None:
    flaky = Flaky(problem(429, "rate_limited", 7), problem(503, "unavailable", 2))
    async with flaky.client() as client:
        await client.read("bob", "general")

    first, second = flaky.retries.waited
    assert first >= 7
    assert second >= 2


async def test_pauses_grow_and_differ() -> None:
    flaky = Flaky(BROKEN, BROKEN, BROKEN)
    async with flaky.client() as client:
        await client.read("bob", "general")

    pauses = flaky.retries.waited
    assert all(0 <= pause <= most for pause, most in zip(pauses, (0.1, 0.2, 0.4), strict=True))
    assert len(set(pauses)) == 3


async def test_a_wait_beyond_the_deadline_is_not_begun() -> None:
    flaky = Flaky(problem(429, "rate_limited", 3600))
    async with flaky.client() as client:
        with pytest.raises(errors.RateLimited) as refused:
            await client.read("bob", "general")

    assert refused.value.retry_after == 3600
    assert flaky.retries.waited == []


async def test_tries_end() -> None:
    flaky = Flaky(*[REFUSED] * 9)
    async with flaky.client() as client:
        with pytest.raises(errors.Unreachable, match="refused") as failed:
            await client.read("bob", "general")

    assert failed.value.tries == len(flaky.requests) == 4


async def test_an_answer_that_never_comes_ends_with_the_deadline() -> None:
    async def never(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    retries = Retries(deadline=0.05)
    async with Client("http://silent", None, retries=retries, transport=httpx.MockTransport(never)) as client:
        with pytest.raises(errors.TimedOut):
            await client.unread("bob", "general")


@pytest.mark.parametrize(
    ("failure", "kind", "code"),
    [
        (problem(404, "not_a_member"), errors.NotAMember, "not_a_member"),
        (problem(404, "something_new"), errors.NotFound, "something_new"),
        (problem(418, "teapot"), ApiError, "teapot"),
        (problem(500, "internal"), ApiError, "internal"),
        (page(404), errors.NotReadstate, "http_404"),
        (lambda _: httpx.Response(200, text="hello"), errors.NotReadstate, "not_readstate"),
    ],
)
async def test_refusals_are_raised_by_their_code_and_at_once(failure: Event, kind: type[ApiError], code: str) -> None:
    flaky = Flaky(failure)
    async with flaky.client() as client:
        with pytest.raises(ApiError) as refused:
            await client.unread("bob", "general")

    assert type(refused.value) is kind
    assert refused.value.code == code
    assert len(flaky.requests) == 1


@pytest.mark.parametrize("url", ["http://", "nonsense", "ftp://example.com", "http://[::1", "http://x:port"])
async def test_an_address_that_is_none_is_told_at_once(url: str) -> None:
    async with Client(url, "key", retries=Patient()) as client:
        with pytest.raises(errors.Unreachable) as refused:
            await client.unread("bob", "general")

    assert refused.value.tries == 1


async def test_a_delete_that_finds_nothing_the_second_time_has_done_its_work() -> None:
    gone = problem(404, "channel_not_found")
    async with Flaky(BROKEN, gone).client() as client:
        await client.delete_channel("general")
    async with Flaky(gone).client() as client:
        with pytest.raises(errors.ChannelNotFound):
            await client.delete_channel("general")


async def test_an_export_that_breaks_off_is_not_taken_for_a_whole_one() -> None:
    async def half() -> AsyncIterator[bytes]:
        yield b"one line\n"
        raise httpx.ReadError("reset")

    flaky = Flaky(problem(503, "stopping"), lambda _: httpx.Response(200, content=half()))
    async with flaky.client() as client, aclosing(client.export()) as chunks:
        assert await anext(chunks) == b"one line\n"
        with pytest.raises(errors.Interrupted):
            await anext(chunks)
