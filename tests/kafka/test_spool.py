"""What the next process finds in the spool: after kills, power cuts, full disks, damage, and from other versions."""

import asyncio
import itertools
import os
import random
import resource
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import json
from msgspec.structs import replace

from readstate.adapters.kafka import segments as module
from readstate.adapters.kafka.spool import Spool
from readstate.domain.errors import ConfigurationError, Unavailable
from readstate.domain.events import ReadEvent
from tests.effort import examples
from tests.unit.test_spool import ROOM, Log, left_in, line_of, read, reads, segments, waiting

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@contextmanager
def child(task: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Another process that runs one of the functions at the end of this file, and is killed with the block."""
    command = [sys.executable, "-m", __spec__.name if __spec__ else "", task, *map(str, arguments)]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        try:
            yield process
        finally:
            process.kill()


class Witness:
    """What a process said before it died: numbers that it tried, that were kept or refused, and that it sent."""

    def __init__(self) -> None:
        self.numbers: defaultdict[str, set[int]] = defaultdict(set)

    def on_announcements(self, line: str) -> None:
        word, *numbers = line.split()
        if word in {"tried", "kept", "refused", "sent"}:
            self.numbers[word].update(map(int, numbers))

    def check(self, found: Sequence[ReadEvent]) -> None:
        there = {event.last_read_seq for event in found}
        assert sorted(found, key=lambda event: event.last_read_seq) == reads(*sorted(there)), "each once, unchanged"
        assert self.numbers["kept"] <= there | self.numbers["sent"], "nothing acknowledged is lost"
        assert there <= self.numbers["tried"], "nothing is made up"
        assert not self.numbers["refused"] & (there | self.numbers["sent"]), "nothing refused counts"


# ---------------------------------------------------------------- killed


async def test_killed_at_every_step_it_loses_nothing_and_makes_nothing_up(tmp_path: Path) -> None:
    with child("die_at_every_step", tmp_path) as process:
        process.communicate(timeout=120)
        assert process.returncode == 0

    steps = len(names_in(tmp_path)) // 2
    assert steps > 20
    for step in range(1, steps + 1):
        witness = Witness()
        for line in (tmp_path / f"{step}.said").read_text().splitlines():
            witness.on_announcements(line)
        witness.check(await left_in(tmp_path / str(step)))
    assert all(witness.numbers.values()), "the last one lives through the whole story"
    assert witness.numbers["tried"] == witness.numbers["kept"] | witness.numbers["refused"]


async def test_killed_at_random_under_load_again_and_again(directory: Path) -> None:
    chance = random.Random(7)
    witness = Witness()
    for lap in range(5):
        with child("append_forever", directory, lap) as process:
            assert process.stdout is not None
            for line in itertools.islice(process.stdout, chance.randrange(1, 1500)):
                witness.on_announcements(line)
            process.kill()
            for line in process.stdout:
                witness.on_announcements(line)
        witness.check(await left_in(directory))
    assert witness.numbers["kept"]


# ---------------------------------------------------------------- without power


class Disk:
    """Forgets all that was not synced: a file keeps what it had, a directory the names it had, at their last sync."""

    def __init__(self, directory: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory, self.log = directory, log
        self.names: dict[str, int] = {}
        self.contents: dict[int, bytes] = {}
        self.kept: set[int] = set()
        self.cuts: list[tuple[dict[str, bytes], set[int]]] = []
        """What a power cut would have left before and after each sync, and what had to be there."""
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self.sync)
        monkeypatch.setattr(module, "_sync_data", self.sync)

    def sync(self, file: int) -> None:
        self.cut()
        self._fsync(file)
        inodes = {path.name: path.stat().st_ino for path in self.directory.iterdir()}
        synced = os.fstat(file).st_ino
        if synced == self.directory.stat().st_ino:
            self.names = inodes
        for name, inode in inodes.items():
            if inode == synced:
                self.contents[inode] = (self.directory / name).read_bytes()
        self.cut()

    def cut(self) -> None:
        left = {name: self.contents.get(inode, b"") for name, inode in self.names.items()}
        self.cuts.append((left, self.kept - {event.last_read_seq for event in self.log.events}))


async def test_a_power_cut_at_any_moment_loses_nothing(
    directory: Path, tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(directory, log, monkeypatch)
    spool = Spool.open(directory, max_bytes=ROOM, segment_bytes=400)
    for number in range(0, 40, 4):
        await asyncio.gather(*(keep(spool, disk, number + caller) for caller in range(4)))
        if number % 12 == 0:
            await spool.drain(log.take)
    await spool.close()
    monkeypatch.undo()

    assert len(disk.cuts) > 20
    for count, (files, must_be_there) in enumerate(disk.cuts):
        for name, content in files.items():
            lay(tmp_path / str(count), content).rename(tmp_path / str(count) / name)
        found = {event.last_read_seq for event in await left_in(tmp_path / str(count))}
        assert must_be_there <= found


async def keep(spool: Spool, disk: Disk, number: int) -> None:
    await spool.append(reads(number))
    disk.kept.add(number)
    disk.cut()


# ---------------------------------------------------------------- a full disk, and two processes


def ask(process: subprocess.Popen[str], *numbers: int) -> str:
    """Have the other process append, and return what it says."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(" ".join(map(str, numbers)) + "\n")
    return next(line for line in process.stdout if line.startswith(("kept", "refused"))).strip()


def limit_files(process: subprocess.Popen[str], size: int) -> None:
    """From now on no file of the other process can grow beyond `size` bytes: to it, the disk is full."""
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


async def test_a_full_disk_refuses_keeps_nothing_of_it_and_recovers_by_itself(directory: Path) -> None:
    size = len(line_of(read(100)))
    with child("obey", directory) as process:
        assert ask(process, 100) == "kept 100"
        for number, room in enumerate([0, 1, size - 1, size, size + 1, 2 * size - 1], 101):
            limit_files(process, size + room)
            refused = ask(process, number * 10, number * 10 + 1)
            assert refused == "refused the spool can't be written (File too large); nothing was kept"
            before = [path.read_bytes() for path in segments(directory)]
            assert before == [line_of(event) for event in reads(*range(100, number))]
            limit_files(process, room % size)
            assert ask(process, number).startswith("refused"), "not into a new file either"
            assert [path.read_bytes() for path in segments(directory)] == before
            limit_files(process, resource.RLIM_INFINITY)
            assert ask(process, number) == f"kept {number}"
        process.kill()
        process.wait()

    assert await left_in(directory) == reads(*range(100, 107))


async def test_a_directory_belongs_to_one_process_until_that_ends(directory: Path) -> None:
    with child("obey", directory) as process:
        assert ask(process, 1) == "kept 1"
        with pytest.raises(ConfigurationError, match="another process has the spool"):
            Spool.open(directory, max_bytes=ROOM)
        assert ask(process, 2) == "kept 2"
        process.kill()
        process.wait()

    assert await left_in(directory) == reads(1, 2)


# ---------------------------------------------------------------- damage


def lay(directory: Path, content: bytes, number: int = 1) -> Path:
    """A segment as an earlier process might have left it."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{number:012}.spool"
    path.write_bytes(content)
    return path


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def left_of(directory: Path, content: bytes) -> tuple[list[ReadEvent], int]:
    """What is found of a segment with this content, and the damage that is counted."""
    path = lay(directory, content)
    spool = Spool.open(directory, max_bytes=ROOM)
    try:
        found = await waiting(spool)
        assert spool.depth == len(found)
        return found, spool.damaged
    finally:
        await spool.close()
        path.unlink(missing_ok=True)


async def test_a_torn_line_is_cut_wherever_it_is_torn(tmp_path: Path) -> None:
    lines = [line_of(read(number)) for number in (1, 2, 3)]
    whole = b"".join(lines)
    for size in range(len(whole) + 1):
        complete = whole[:size].count(b"\n")
        assert await left_of(tmp_path, whole[:size]) == (reads(1, 2, 3)[:complete], 0), f"torn at {size}"


async def test_a_torn_line_is_cut_on_the_disk_too(directory: Path, log: Log) -> None:
    path = lay(directory, line_of(read(1)) + line_of(read(2))[:-5])

    spool = Spool.open(directory, max_bytes=ROOM)
    assert path.read_bytes() == line_of(read(1))
    assert spool.bytes == len(line_of(read(1)))
    await spool.append(reads(3))
    await spool.drain(log.take)
    await spool.close()

    assert log.events == reads(1, 3)
    assert names_in(directory) == ["lock"]


async def test_a_changed_byte_costs_its_own_line_alone(tmp_path: Path) -> None:
    lines = [line_of(read(number)) for number in (1, 2, 3)]
    start, end = len(lines[0]), len(lines[0]) + len(lines[1]) - 1
    for place in range(start, end):
        content = bytearray(b"".join(lines))
        content[place] ^= 0x55
        damaged = 1 + (content[place] == ord("\n"))
        assert await left_of(tmp_path, bytes(content)) == (reads(1, 3), damaged), f"byte {place}"


@given(content=st.binary(max_size=300), torn=st.binary(max_size=50))
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_no_content_is_an_error(tmp_path: Path, content: bytes, torn: bytes) -> None:
    good = line_of(read(1))
    found, damaged = await left_of(tmp_path, content + b"\n" + good + torn.replace(b"\n", b""))
    assert (found, damaged) == (reads(1), content.count(b"\n") + 1)


async def test_a_file_of_zeros_is_a_torn_one(tmp_path: Path) -> None:
    assert await left_of(tmp_path, line_of(read(1)) + bytes(5000)) == (reads(1), 0)


async def test_a_damaged_segment_is_kept_when_its_rest_is_sent(directory: Path, log: Log) -> None:
    damaged = line_of(read(2)).replace(b"m2", b"m9")
    content = line_of(read(1)) + damaged + line_of(read(3))
    lay(directory, content, number=41)

    spool = Spool.open(directory, max_bytes=ROOM)
    await spool.drain(log.take)
    assert (log.events, spool.depth, spool.bytes, spool.damaged) == (reads(1, 3), 0, 0, 1)
    kept = directory / "000000000041.damaged"
    assert kept.read_bytes() == content

    await spool.close()
    spool = Spool.open(directory, max_bytes=ROOM)
    await spool.append(reads(4))
    assert [path.name for path in segments(directory)] == ["000000000042.spool"], "a number is never used twice"
    await spool.close()
    assert await left_in(directory) == reads(4)

    kept.rename(kept.with_suffix(".spool"))
    assert await left_in(directory) == reads(1, 3, 4)


async def test_damage_that_comes_while_it_waits_is_found_by_the_drain(directory: Path, log: Log) -> None:
    spool = Spool.open(directory, max_bytes=ROOM)
    await spool.append(reads(1, 2, 3))
    [path] = segments(directory)
    path.write_bytes(path.read_bytes().replace(b"m2", b"m9"))

    assert await waiting(spool) == reads(1, 3)
    assert await spool.drain(log.take) == 2
    assert (log.events, spool.depth, spool.damaged) == (reads(1, 3), 0, 1)
    assert path.with_suffix(".damaged").exists()
    await spool.close()


async def test_a_segment_that_somebody_removed_does_not_stop_the_others(directory: Path, log: Log) -> None:
    spool = Spool.open(directory, max_bytes=ROOM, segment_bytes=1)
    for number in (1, 2, 3):
        await spool.append(reads(number))
    segments(directory)[1].unlink()

    assert await spool.drain(log.take) == 2
    assert (log.events, spool.depth, spool.bytes, spool.damaged) == (reads(1, 3), 0, 0, 1)
    await spool.close()


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that can be opened and not be read")
async def test_a_file_that_the_disk_cannot_read_is_kept_and_the_others_are_sent(directory: Path, log: Log) -> None:
    lay(directory, line_of(read(2)), number=2)
    (directory / "000000000001.spool").symlink_to("/proc/self/mem")  # its first bytes are an input/output error

    spool = Spool.open(directory, max_bytes=ROOM)
    await spool.drain(log.take)

    assert (log.events, spool.damaged) == (reads(2), 1)
    assert (directory / "000000000001.damaged").is_symlink()
    await spool.close()


async def test_other_files_in_the_directory_are_left_alone(directory: Path, log: Log) -> None:
    others = ["000000000001.spool.bak", "1.spool", "notes.txt"]
    for name in others:
        lay(directory, line_of(read(1))).rename(directory / name)
    spool = Spool.open(directory, max_bytes=ROOM)
    assert await spool.drain(log.take) == 0
    await spool.close()
    assert names_in(directory) == sorted([*others, "lock"])


# ---------------------------------------------------------------- other versions


async def test_an_event_of_a_newer_version_is_read_without_what_is_unknown(tmp_path: Path) -> None:
    fields = json.decode(json.encode(read(1))) | {"v": 2, "device": "phone", "deep": [{"er": None}]}
    assert await left_of(tmp_path, line_of(json.encode(fields))) == ([replace(read(1), v=2)], 0)


async def test_an_event_of_an_older_version_gets_the_defaults_of_what_it_does_not_have(tmp_path: Path) -> None:
    fields = json.decode(json.encode(read(1)))
    fields.pop("v", None)
    assert await left_of(tmp_path, line_of(json.encode(fields))) == ([read(1)], 0)


async def test_an_event_that_is_whole_and_not_understood_is_kept(directory: Path) -> None:
    strange = [b"{}", b"[1]", b'{"user_id":"\xff"}', b"[" * 100_000, b""]
    path = lay(directory, b"".join(map(line_of, strange)))

    assert await left_in(directory) == []
    assert path.with_suffix(".damaged").stat().st_size == sum(map(len, map(line_of, strange)))


# ---------------------------------------------------------------- what the other processes do


def say(word: str, numbers: Sequence[int], to: int = 1) -> None:
    _write(to, f"{word} {' '.join(map(str, numbers))}\n".encode())


_write = os.write
"""Saying something is no step that one can die at."""


class Telling:
    """A spool that says of everything what becomes of it."""

    def __init__(self, directory: Path, to: int = 1) -> None:
        self.spool = Spool.open(directory, max_bytes=ROOM, segment_bytes=1000)
        self.to = to

    async def append(self, *numbers: int) -> None:
        say("tried", numbers, self.to)
        try:
            await self.spool.append(reads(*numbers))
        except Unavailable:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            say("refused", numbers, self.to)
        else:
            say("kept", numbers, self.to)

    async def send(self, events: Sequence[ReadEvent]) -> None:
        say("sent", [event.last_read_seq for event in events], self.to)


async def tell_a_story(directory: Path, to: int) -> None:
    """A bit of everything: appends together and alone, a full disk, a log that fails, drains."""
    telling = Telling(directory, to)

    async def fail(_: Sequence[ReadEvent]) -> None:
        raise Unavailable

    await asyncio.gather(*(telling.append(number, number + 1) for number in range(100, 110, 2)))
    with suppress(Unavailable):
        await telling.spool.drain(fail)
    await telling.append(200)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
    await telling.append(201, 202)
    await telling.append(203)
    await telling.spool.drain(telling.send)
    await asyncio.gather(*(telling.append(number) for number in range(300, 310)))
    await telling.spool.close()


def die_at_every_step(root: str) -> None:
    """One process for each step of the story, which is killed there; the last one lives."""
    for step in itertools.count(1):
        pid = os.fork()
        if not pid:
            said = os.open(Path(root) / f"{step}.said", os.O_WRONLY | os.O_CREAT)
            die_at(step)
            asyncio.run(tell_a_story(Path(root) / str(step), said))
            os._exit(0)
        if os.waitpid(pid, 0)[1] == 0:
            return


def die_at(step: int) -> None:
    """Count all that is done to files; at the step, do half of it at most."""
    steps = itertools.count(1)

    def counted(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if next(steps) == step:
                with suppress(OSError):
                    if function is _write:
                        _write(arguments[0], arguments[1][: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    for name in ("write", "fsync", "ftruncate", "unlink", "rename", "mkdir", "open", "close"):
        setattr(os, name, counted(getattr(os, name)))
    module._sync_data = counted(module._sync_data)


def append_forever(directory: str, lap: str) -> None:
    """Eight callers and a drain whose log fails now and then."""
    chance = random.Random(lap)
    numbers = itertools.count(int(lap) * 1_000_000)

    async def call(telling: Telling) -> None:
        while True:
            await telling.append(*itertools.islice(numbers, chance.randrange(1, 10)))

    async def run() -> None:
        telling = Telling(Path(directory))

        async def send(events: Sequence[ReadEvent]) -> None:
            if chance.random() < 0.3:
                raise Unavailable
            await telling.send(events)

        telling.spool.keep_draining(send, every=0.01)
        await asyncio.gather(*(call(telling) for _ in range(8)))

    asyncio.run(run())


def obey(directory: str) -> None:
    """Appends the numbers of each line that comes."""

    async def run() -> None:
        spool = Spool.open(Path(directory), max_bytes=ROOM)
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                await spool.append(reads(*map(int, line.split())))
                print("kept", line.strip(), flush=True)
            except Unavailable as refusal:
                print("refused", refusal.detail, flush=True)

    asyncio.run(run())


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
