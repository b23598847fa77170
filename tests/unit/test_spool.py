"""The spool: what is appended waits on the disk until it is sent, in whatever order things are asked of it."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from zlib import crc32

import pytest
from msgspec import json
from msgspec.structs import replace

from readstate.adapters.kafka.spool import Spool
from readstate.domain.errors import ConfigurationError, Stopping, Unavailable
from readstate.domain.events import ReadEvent
from readstate.domain.folding.reads import fold_reads
from readstate.domain.model import ChangeNumber
from tests.conftest import eventually

ROOM = 2**24


def read(number: int, user: str | None = None) -> ReadEvent:
    """A read that can be told from every other."""
    at = 1_700_000_000_000 + number
    return ReadEvent(user or f"user {number}", "käse", 1, number, (), f"m{number}", at, at, ChangeNumber(number), at)


def reads(*numbers: int) -> list[ReadEvent]:
    return [read(number) for number in numbers]


def line_of(event: ReadEvent | bytes) -> bytes:
    """An event as the file has it."""
    body = event if isinstance(event, bytes) else json.encode(event)
    return f"{crc32(body):08x} ".encode() + body + b"\n"


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.spool"))


async def waiting(spool: Spool) -> list[ReadEvent]:
    return [event async for batch in spool.pending() for event in batch]


async def left_in(directory: Path) -> list[ReadEvent]:
    """What the next process finds."""
    spool = Spool.open(directory, max_bytes=ROOM)
    try:
        found = await waiting(spool)
        assert spool.depth == len(found)
        return found
    finally:
        await spool.close()


class Log:
    """Takes what is sent; or fails, or waits to be opened, when told so."""

    def __init__(self) -> None:
        self.batches: list[list[ReadEvent]] = []
        self.fails_after = 1_000_000
        self.open = asyncio.Event()
        self.open.set()
        self.asked = asyncio.Event()

    @property
    def events(self) -> list[ReadEvent]:
        return [event for batch in self.batches for event in batch]

    async def take(self, events: Sequence[ReadEvent]) -> None:
        self.asked.set()
        await self.open.wait()
        if len(self.batches) >= self.fails_after:
            raise Unavailable("the log is down")
        self.batches.append(list(events))


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "not" / "yet" / "there"


@pytest.fixture
async def spool(directory: Path) -> AsyncIterator[Spool]:
    spool = Spool.open(directory, max_bytes=ROOM)
    yield spool
    await spool.close()


@pytest.fixture
async def narrow(tmp_path: Path) -> AsyncIterator[Spool]:
    """Every append fills a segment."""
    spool = Spool.open(tmp_path / "narrow", max_bytes=ROOM, segment_bytes=1)
    yield spool
    await spool.close()


# ---------------------------------------------------------------- appending


async def test_what_was_appended_waits_for_the_next_process(spool: Spool, directory: Path) -> None:
    await spool.append(reads(1, 2))
    await spool.append(reads(3))
    assert spool.depth == 3
    assert spool.bytes == sum(path.stat().st_size for path in segments(directory))
    await spool.close()

    assert await left_in(directory) == reads(1, 2, 3)


async def test_what_several_processes_left_is_found_in_their_order(directory: Path) -> None:
    for number in range(1, 13):
        spool = Spool.open(directory, max_bytes=ROOM)
        await spool.append(reads(number))
        await spool.close()

    assert await left_in(directory) == reads(*range(1, 13))


async def test_callers_that_come_together_share_syncs(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = 0

    def sync(file: int) -> None:
        nonlocal syncs
        syncs += 1
        os.fsync(file)

    monkeypatch.setattr("readstate.adapters.kafka.segments._sync_data", sync)

    await asyncio.gather(*(spool.append(reads(number)) for number in range(500)))

    assert sorted(event.last_read_seq for event in await waiting(spool)) == list(range(500))
    assert syncs < 10


async def test_a_caller_that_gives_up_harms_nobody(spool: Spool) -> None:
    first, second = (asyncio.create_task(spool.append(reads(number))) for number in (1, 2))
    await asyncio.sleep(0)
    first.cancel()
    await second

    assert read(2) in await waiting(spool)


async def test_nothing_is_nothing(spool: Spool, log: Log, directory: Path) -> None:
    await spool.append([])
    assert await spool.drain(log.take) == 0
    assert (spool.depth, spool.bytes, log.batches, segments(directory)) == (0, 0, [], [])


async def test_whoever_finds_no_room_is_refused_and_leaves_nothing(directory: Path, log: Log) -> None:
    size = len(line_of(read(1)))
    spool = Spool.open(directory, max_bytes=3 * size + 10)
    await spool.append(reads(1, 2))

    asked = [spool.append(events) for events in (reads(3, 4), reads(5), reads(6))]
    two, one, late = await asyncio.gather(*asked, return_exceptions=True)

    assert one is None, "a smaller one still fits"
    for refused in (two, late):
        assert isinstance(refused, Unavailable)
        assert f"full ({2 * size} of {3 * size + 10} bytes)" in refused.detail
        assert refused.retry
    assert (spool.depth, spool.bytes) == (3, 3 * size)
    assert await waiting(spool) == reads(1, 2, 5)

    await spool.drain(log.take)
    await spool.append(reads(7))
    await spool.close()
    assert await left_in(directory) == reads(7)


async def test_a_bound_below_what_an_earlier_process_left_loses_nothing(directory: Path) -> None:
    spool = Spool.open(directory, max_bytes=ROOM)
    await spool.append(reads(1, 2, 3))
    await spool.close()

    spool = Spool.open(directory, max_bytes=1)
    with pytest.raises(Unavailable, match="full"):
        await spool.append(reads(4))
    assert await waiting(spool) == reads(1, 2, 3)
    await spool.close()


# ---------------------------------------------------------------- draining


async def test_a_drain_sends_the_oldest_first_and_leaves_nothing(narrow: Spool, tmp_path: Path, log: Log) -> None:
    for number in range(1, 4):
        await narrow.append(reads(number, 10 * number))

    assert await narrow.drain(log.take) == 6

    assert log.batches == [reads(1, 10), reads(2, 20), reads(3, 30)]
    assert (narrow.depth, narrow.bytes, segments(tmp_path / "narrow")) == (0, 0, [])


async def test_each_user_and_channel_goes_once_a_batch(spool: Spool, log: Log) -> None:
    steps = [read(number, "bob") for number in (10, 12, 11)]
    apart = replace(read(10, "bob"), apart=(15,))
    await spool.append([*steps, read(1)])
    await spool.append([apart])
    assert spool.depth == 5

    assert await spool.drain(log.take) == 5

    [batch] = log.batches
    assert batch == fold_reads([*steps, read(1), apart])
    assert [(event.user_id, event.last_read_seq, event.apart) for event in batch] == [
        ("bob", 12, (15,)),
        ("user 1", 1, ()),
    ]


async def test_what_the_log_refuses_stays_and_what_it_took_does_not(narrow: Spool, tmp_path: Path, log: Log) -> None:
    for number in range(1, 6):
        await narrow.append(reads(number))
    log.fails_after = 2

    with pytest.raises(Unavailable, match="the log is down"):
        await narrow.drain(log.take)

    assert (narrow.depth, await waiting(narrow)) == (3, reads(3, 4, 5))
    assert len(segments(tmp_path / "narrow")) == 3
    log.fails_after = 100
    await narrow.drain(log.take)
    assert log.events == reads(1, 2, 3, 4, 5)


async def test_a_log_that_is_down_for_long_does_not_scatter_what_waits(spool: Spool, directory: Path, log: Log) -> None:
    log.fails_after = 0
    for number in range(50):
        await spool.append(reads(number))
        with pytest.raises(Unavailable):
            await spool.drain(log.take)

    assert len(segments(directory)) == 2
    assert await waiting(spool) == reads(*range(50))


async def test_appends_go_on_during_a_drain_and_wait_for_the_next(spool: Spool, log: Log) -> None:
    await spool.append(reads(1))
    log.open.clear()
    draining = asyncio.create_task(spool.drain(log.take))
    await log.asked.wait()

    await spool.append(reads(2, 3))
    assert (spool.depth, await waiting(spool)) == (3, reads(1, 2, 3))
    log.open.set()

    assert await draining == 1
    assert (log.events, spool.depth, await waiting(spool)) == (reads(1), 2, reads(2, 3))


async def test_two_drains_at_once_send_nothing_twice(narrow: Spool, log: Log) -> None:
    for number in range(20):
        await narrow.append(reads(number))
    await asyncio.gather(narrow.drain(log.take), narrow.drain(log.take))
    assert log.events == reads(*range(20))


async def test_what_is_drained_while_it_is_looked_at_is_in_the_log(narrow: Spool, log: Log) -> None:
    for number in range(5):
        await narrow.append(reads(number))
    looking = narrow.pending()
    seen = list(await anext(looking))

    await narrow.drain(log.take)

    seen += [event async for batch in looking for event in batch]
    assert seen == reads(0)
    assert log.events == reads(*range(5))


async def test_a_segment_that_cannot_be_removed_is_sent_again(spool: Spool, directory: Path, log: Log) -> None:
    await spool.append(reads(1))
    [path] = segments(directory)

    async def take_and_put_a_directory_in_its_place(events: Sequence[ReadEvent]) -> None:
        await log.take(events)
        path.rename(directory / "elsewhere")
        path.mkdir()

    with pytest.raises(Unavailable, match="it will be sent again"):
        await spool.drain(take_and_put_a_directory_in_its_place)
    assert spool.depth == 1

    path.rmdir()
    (directory / "elsewhere").rename(path)
    await spool.drain(log.take)
    assert (log.events, spool.depth) == (reads(1, 1), 0)


# ---------------------------------------------------------------- in the background


async def test_the_background_sends_what_waits_and_tries_again_after_failures(spool: Spool, log: Log) -> None:
    tries = 0

    async def take_at_the_third_try(events: Sequence[ReadEvent]) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise Unavailable("the log is down")
        if tries == 2:
            raise ZeroDivisionError("a bug of whoever sends")
        await log.take(events)

    await spool.append(reads(1))
    spool.keep_draining(take_at_the_third_try, every=0.01)
    await eventually(lambda: is_empty(spool), "the first is sent")
    await spool.append(reads(2))
    await eventually(lambda: is_empty(spool), "the second is sent")

    assert log.events == reads(1, 2)


async def is_empty(spool: Spool) -> bool:
    return spool.depth == 0


async def test_what_an_earlier_process_left_is_sent_at_once(directory: Path, log: Log) -> None:
    before = Spool.open(directory, max_bytes=ROOM)
    await before.append(reads(1, 2))
    await before.close()

    spool = Spool.open(directory, max_bytes=ROOM)
    spool.keep_draining(log.take, every=3600)
    await eventually(lambda: is_empty(spool), "it is sent")
    await spool.close()

    assert log.batches == [reads(1, 2)]


async def test_what_an_earlier_process_left_is_restored_and_not_sent(directory: Path, log: Log) -> None:
    before = Spool.open(directory, max_bytes=ROOM)
    await before.append(reads(1, 2))
    await before.close()

    stores = Log()
    stores.fails_after = 0
    spool = Spool.open(directory, max_bytes=ROOM, restore=stores.take)
    await spool.append(reads(3))
    with pytest.raises(Unavailable):
        await spool.drain(log.take)
    assert (spool.depth, log.batches) == (3, [])

    stores.fails_after = 1
    assert await spool.drain(log.take) == 3
    await spool.append(reads(4))
    await spool.drain(log.take)
    await spool.close()

    assert stores.batches == [reads(1, 2)]
    assert log.events == reads(3, 4)


async def test_when_draining_stops_appends_go_on_and_what_was_being_sent_stays(
    spool: Spool, directory: Path, log: Log
) -> None:
    log.open.clear()
    await spool.append(reads(1))
    spool.keep_draining(log.take, every=0.01)
    await log.asked.wait()

    await spool.stop_draining()
    await spool.append(reads(2))
    log.open.set()
    await spool.close()

    assert log.events == []
    assert await left_in(directory) == reads(1, 2)


async def test_a_stop_insists(spool: Spool) -> None:
    async def swallow_the_first_cancellation(_: Sequence[ReadEvent]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    begun = asyncio.Event()
    await spool.append(reads(1))
    spool.keep_draining(swallow_the_first_cancellation, every=3600)
    await begun.wait()
    await spool.stop_draining()
    await spool.stop_draining()

    spool.keep_draining(swallow_the_first_cancellation, every=3600)
    with pytest.raises(RuntimeError, match="already"):
        spool.keep_draining(swallow_the_first_cancellation, every=3600)


async def test_closing_finishes_the_appends_and_takes_no_more(spool: Spool, directory: Path, log: Log) -> None:
    log.open.clear()
    await spool.append(reads(0))
    spool.keep_draining(log.take, every=3600)
    await log.asked.wait()
    appends = [asyncio.create_task(spool.append(reads(number))) for number in range(1, 5)]
    await asyncio.sleep(0)

    await spool.close()
    await spool.close()

    await asyncio.gather(*appends)
    for refused in (spool.append(reads(6)), spool.drain(log.take), waiting(spool)):
        with pytest.raises(Stopping):
            await refused
    assert await left_in(directory) == reads(*range(5))


# ---------------------------------------------------------------- one process


async def test_a_directory_belongs_to_one_spool(spool: Spool, directory: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"another process has the spool in .*a directory of its own"):
        Spool.open(directory, max_bytes=ROOM)
    await spool.close()
    assert await left_in(directory) == []


async def test_a_place_that_cannot_hold_a_spool_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"can't be kept in .*file/spool"):
        Spool.open(tmp_path / "file" / "spool", max_bytes=ROOM)

    (tmp_path / "000000000001.spool").mkdir()
    with pytest.raises(ConfigurationError, match=r"can't be read \(.*000000000001.spool: Is a directory"):
        Spool.open(tmp_path, max_bytes=ROOM)
    (tmp_path / "000000000001.spool").rmdir()
    assert await left_in(tmp_path) == []  # the failed one has let go of the directory
