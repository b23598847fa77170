"""Commands to Valkey that arrive long after their sender has given them up: they change nothing any more."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from readstate import Readstate
from readstate.adapters.valkey import Function
from readstate.adapters.valkey.short_way import READ
from readstate.adapters.valkey.users import APPLY, INSTALL, LEDGERS, MOVE, PREFER
from readstate.api import MarkUnread, PutPreferences, ReadTarget
from readstate.domain.errors import HotStoreUnavailable
from readstate.stack import Valkey
from tests.conftest import eventually

from .on_servers import ASKS_AGAIN, SMALL, count, hot, message, on_servers, two_channels


class Lane:
    """A way to Valkey on which what is sent can be held up, and arrive long after its sender has gone."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: list[tuple[bytes, asyncio.StreamWriter]] = []
        self.hold: bytes | None = None
        """What is held up: the first that contains this, with all that follows it on its connection."""

    async def __aenter__(self) -> "Lane":
        self._listener = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}/0"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        answers, there = await asyncio.open_connection("127.0.0.1", self._port)
        back = asyncio.create_task(_copy(answers, writer))
        held = False
        try:
            while data := await reader.read(65_536):
                if held or (self.hold is not None and self.hold in data):
                    held, self.hold = True, None
                    self._held.append((data, there))
                else:
                    there.write(data)
            if held:
                await asyncio.Event().wait()
        finally:
            back.cancel()
            writer.close()
            there.close()

    @property
    def is_holding(self) -> bool:
        return bool(self._held)

    async def let_go(self) -> None:
        """What was held up arrives now, and is answered to nobody."""
        for data, there in self._held:
            there.write(data)
            await there.drain()
        self._held.clear()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
    writer.close()


@pytest.fixture(scope="module")
def own_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with Valkey(tmp_path_factory.mktemp("late") / "valkey", persistent=False) as server:
        yield server


@pytest.fixture
async def lane(own_valkey: Valkey) -> AsyncIterator[Lane]:
    async with Lane(own_valkey.port) as lane:
        yield lane


@pytest.fixture
async def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lane: Lane) -> AsyncIterator[Readstate]:
    async with on_servers(tmp_path, lane.url, timings=ASKS_AGAIN) as rs:
        await two_channels(rs)
        await rs.messages.send([message("alice", f"m{n}") for n in range(1, 4)])
        assert await count(rs, "bob") == 3
        yield rs


async def arrived(rs: Readstate, lane: Lane, own_valkey: Valkey) -> None:
    """All that was held up has been executed."""

    def calls() -> int:
        stats = own_valkey.info("commandstats")
        return sum(int(line.split(",")[0].partition("=")[2]) for name, line in stats.items() if "fcall" in name)

    before = calls()
    await lane.let_go()

    async def more() -> bool:
        return calls() > before

    await eventually(more, "the late command is executed")


async def test_a_read_that_arrives_late_does_not_undo_a_mark_unread(
    late: Readstate, lane: Lane, own_valkey: Valkey
) -> None:
    lane.hold = READ.name.encode()
    await late.reads.mark_read("bob", SMALL, ReadTarget(up_to="m3"))
    assert lane.is_holding
    await late.reads.mark_unread("bob", SMALL, MarkUnread(from_="m1"))
    assert await count(late, "bob") == 3

    await arrived(late, lane, own_valkey)

    assert await count(late, "bob") == 3
    await late.evict()
    assert await count(late, "bob") == 3


async def test_a_mark_unread_that_arrives_late_does_not_undo_a_read(
    late: Readstate, lane: Lane, own_valkey: Valkey
) -> None:
    lane.hold = MOVE.name.encode()
    await late.reads.mark_unread("bob", SMALL, MarkUnread(from_="m1"))
    assert lane.is_holding
    await late.reads.mark_read("bob", SMALL, ReadTarget(up_to="m3"))
    assert await count(late, "bob") == 0

    await arrived(late, lane, own_valkey)

    assert await count(late, "bob") == 0


async def test_a_read_that_was_refused_and_arrives_late_does_not_undo_a_mark_unread(
    late: Readstate, lane: Lane, own_valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = hot(late)._client
    monkeypatch.setattr(client, "_timings", replace(client._timings, patience=0.0))
    lane.hold = READ.name.encode()
    with pytest.raises(HotStoreUnavailable):
        await late.reads.mark_read("bob", SMALL, ReadTarget(up_to="m3"))
    monkeypatch.undo()
    await late.reads.mark_unread("bob", SMALL, MarkUnread(from_="m1"))
    assert await count(late, "bob") == 3

    await arrived(late, lane, own_valkey)

    assert await count(late, "bob") == 3
    await late.evict()
    assert await count(late, "bob") == 3


async def test_preferences_that_arrive_late_are_not_those_that_count(
    late: Readstate, lane: Lane, own_valkey: Valkey
) -> None:
    lane.hold = PREFER.name.encode()
    await late.preferences.put("bob", SMALL, PutPreferences(count="none"))
    assert lane.is_holding
    await late.preferences.put("bob", SMALL, PutPreferences(count="all"))
    assert await count(late, "bob") == 3

    await arrived(late, lane, own_valkey)

    assert await count(late, "bob") == 3


async def test_messages_and_deletes_that_arrive_late_change_nothing(
    late: Readstate, lane: Lane, own_valkey: Valkey
) -> None:
    lane.hold = APPLY.name.encode()
    await late.messages.send([message("alice", "m4")])
    assert lane.is_holding
    await late.reads.mark_read("bob", SMALL, ReadTarget(messages=("m4",)))
    await late.messages.delete(SMALL, "m1")
    assert await count(late, "bob") == 2

    await arrived(late, lane, own_valkey)

    assert await count(late, "bob") == 2


@pytest.mark.parametrize("script", [INSTALL, LEDGERS], ids=["user", "ledger"])
async def test_a_load_that_arrives_late_brings_nothing_back(
    late: Readstate, lane: Lane, own_valkey: Valkey, script: Function
) -> None:
    await late.evict()
    lane.hold = script.name.encode()
    assert await count(late, "bob") == 3
    assert lane.is_holding
    await late.reads.mark_read("bob", SMALL, ReadTarget(messages=("m2",)))
    await late.messages.delete(SMALL, "m1")
    assert await count(late, "bob") == 1

    await arrived(late, lane, own_valkey)

    assert await count(late, "bob") == 1
    await late.messages.send([message("alice", "m4")])
    assert await count(late, "bob") == 2
