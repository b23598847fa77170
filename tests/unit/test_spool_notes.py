"""The database is told that reads wait in a spool, and is never waited for twice. The hot store gets what it lost."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from readstate.adapters.kafka.spool import Spool
from readstate.adapters.kafka.spool_notes import SpoolNotes, SpoolReport
from readstate.domain.errors import HotStoreUnavailable, StorageUnavailable
from readstate.domain.events import ReadEvent
from readstate.domain.model import ChangeNumber
from readstate.timings import KafkaTimings

TIMINGS = KafkaTimings()
READ = ReadEvent("bob", "general", 0, 1, (), "m1", 1, 1, ChangeNumber(1), 1)


class Notebook:
    """A database that may be away."""

    def __init__(self) -> None:
        self.notes: dict[str, int] = {}
        self.calls = 0
        self.is_away = False

    async def note_spool(self, name: str, until: int) -> None:
        self._call()
        self.notes[name] = until

    async def drop_spool(self, name: str) -> None:
        self._call()
        self.notes.pop(name, None)

    def _call(self) -> None:
        self.calls += 1
        if self.is_away:
            raise StorageUnavailable


class Scene:
    def __init__(self, directory: Path) -> None:
        self.now = 1_000_000
        self.spool = Spool.open(directory, max_bytes=2**20)
        self.notebook = Notebook()
        self.notes = SpoolNotes(self.spool, self.notebook, lambda: self.now, TIMINGS)

    async def drain(self) -> None:
        async def send(_: object) -> None:
            pass

        await self.spool.drain(send)


@pytest.fixture
async def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "spool")


async def test_what_waits_is_noted_once_and_dropped_when_nothing_waits(scene: Scene) -> None:
    await scene.spool.append([READ])
    for _ in range(3):
        await scene.notes.keep()
    assert scene.notebook.notes == {scene.spool.name: scene.now + TIMINGS.note_counts_ms}
    assert scene.notebook.calls == 1

    await scene.drain()
    for _ in range(3):
        await scene.notes.keep()
    assert scene.notebook.notes == {}
    assert scene.notebook.calls == 2
    await scene.spool.close()


async def test_a_note_is_renewed_in_time(scene: Scene) -> None:
    await scene.spool.append([READ])
    await scene.notes.keep()
    scene.now += TIMINGS.note_renew_ms
    await scene.notes.keep()
    assert scene.notebook.notes == {scene.spool.name: scene.now + TIMINGS.note_counts_ms}
    await scene.spool.close()


async def test_a_note_that_an_earlier_process_has_left_is_dropped(scene: Scene) -> None:
    scene.notebook.notes[scene.spool.name] = scene.now + TIMINGS.note_counts_ms
    await scene.notes.keep()
    assert scene.notebook.notes == {}
    await scene.spool.close()


async def test_a_database_that_is_away_is_not_asked_again_at_once(scene: Scene) -> None:
    scene.notebook.is_away = True
    await scene.spool.append([READ])
    for _ in range(3):
        await scene.notes.keep()
    assert scene.notebook.calls == 1

    scene.notebook.is_away = False
    scene.now += TIMINGS.note_pause_ms
    await scene.notes.keep()
    assert scene.notebook.notes == {scene.spool.name: scene.now + TIMINGS.note_counts_ms}
    await scene.spool.close()


async def test_a_spool_keeps_its_name(tmp_path: Path) -> None:
    names = set()
    for _ in range(2):
        spool = Spool.open(tmp_path / "spool", max_bytes=2**20)
        names.add(spool.name)
        await spool.close()
    other = Spool.open(tmp_path / "other", max_bytes=2**20)
    assert len(names) == 1
    assert other.name not in names
    await other.close()


# ---------------------------------------------------------------- a hot store that has lost a part


class Hot:
    """Knows the number of each user's slot, and what was merged."""

    def __init__(self) -> None:
        self.numbers = {"bob": 1, "carol": 1}
        self.merged: list[str] = []
        self.is_away = False

    async def note_spool(self, instance: str, depth: int) -> None:
        pass

    def seen(self) -> int:
        return max(self.numbers.values())

    def of_user(self, user: str) -> int:
        return self.numbers[user]

    async def apply(self, changes: Sequence[Any]) -> None:
        if self.is_away:
            raise HotStoreUnavailable
        self.merged += [change.user_id for change in changes]

    def take_merged(self) -> list[str]:
        merged, self.merged = self.merged, []
        return merged


@pytest.fixture
async def hot() -> Hot:
    return Hot()


@pytest.fixture
async def report(scene: Scene, hot: Hot) -> AsyncIterator[SpoolReport]:
    """Reads of two users wait, and are in the hot store."""
    users: Any = hot
    report = SpoolReport(scene.spool, scene.notes, hot, users, "i1")
    await scene.spool.append([READ, replace(READ, user_id="carol")])
    await report.renew()
    hot.take_merged()
    yield report
    await scene.spool.close()


async def test_reads_in_a_spool_are_merged_for_users_of_lost_slots_only(hot: Hot, report: SpoolReport) -> None:
    hot.numbers["bob"] = 2
    await report.renew()
    assert hot.take_merged() == ["bob"]
    await report.renew()
    assert hot.take_merged() == []
    hot.numbers["carol"] = 3
    await report.renew()
    assert hot.take_merged() == ["carol"]
    hot.numbers = {"bob": 4, "carol": 4}
    await report.renew()
    assert hot.take_merged() == ["bob", "carol"]


async def test_a_merge_that_fails_is_made_again(hot: Hot, report: SpoolReport) -> None:
    hot.numbers["bob"], hot.is_away = 2, True
    with pytest.raises(HotStoreUnavailable):
        await report.renew()
    hot.numbers["carol"], hot.is_away = 3, False
    await report.renew()
    assert hot.take_merged() == ["bob", "carol"]
