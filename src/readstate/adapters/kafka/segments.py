"""The files of a spool.

A spool is a directory of numbered segments. A segment is a file of lines; a line is an event after its CRC-32:

    9a0bc1f5 {"user_id":"bob","channel_id":"general","epoch":0,"last_read_seq":12,"apart":[],…}

A damaged line does not affect its neighbours. The events are those of the log and are compatible between versions in
the same way: readers ignore fields they don't know.

Lines that were synced and cannot be read later (damaged, or of a version that this one does not understand) are
skipped. Their segment is renamed instead of removed: `000000000007.damaged`. Renamed back, it is read at the next
start.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import structlog
from msgspec import Struct, json

from readstate.domain.errors import ConfigurationError, Unavailable
from readstate.domain.events import ReadEvent
from readstate.domain.folding.reads import fold_reads

LOCK_FILE = "lock"
WAITING, DAMAGED = ".spool", ".damaged"

_NAME = re.compile(r"(\d{12})(\.spool|\.damaged)")
_encode = json.Encoder().encode
_decode = json.Decoder(ReadEvent).decode
_sync_data = getattr(os, "fdatasync", os.fsync)  # fdatasync is cheaper, but not every system has it

log = structlog.get_logger()


class Entry(NamedTuple):
    """The events of one caller, as lines."""

    lines: bytes
    events: int

    @classmethod
    def of(cls, events: Sequence[ReadEvent]) -> "Entry":
        return cls(b"".join(map(_line, events)), len(events))


class Segment(Struct, eq=False):
    number: int
    path: Path
    size: int = 0
    events: int = 0
    damaged: int = 0


class Batch(NamedTuple):
    segment: Segment
    states: list[ReadEvent]
    events: int


class Segments:
    """The files. Not thread-safe: once opened, one thread calls it; other threads only read its counters."""

    def __init__(self, directory: Path, lock: int, max_bytes: int, segment_bytes: int) -> None:
        self.depth = self.bytes = self.damaged = 0
        self.last = 0
        """The number of the newest segment that ever existed."""
        self.name = _name(lock)
        self._directory = directory
        self._lock = lock
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._waiting: list[Segment] = []
        self._newest: tuple[Segment, int] | None = None
        """The segment that is appended to, and its file. It is in `_waiting` like the others."""
        self._refusing = False

    @classmethod
    def open(cls, directory: Path, max_bytes: int, segment_bytes: int) -> "Segments":
        try:
            _make_directory(directory)
            lock = _lock(directory)
        except OSError as error:
            raise ConfigurationError(f"the spool can't be kept in {str(directory)!r}: {error.strerror}") from error
        segments = cls(directory, lock, max_bytes, segment_bytes)
        try:
            segments._find()
        except OSError as error:
            os.close(lock)
            where = error.filename or str(directory)
            raise ConfigurationError(f"the spool can't be read ({where}: {error.strerror})") from error
        return segments

    def close(self) -> None:
        self._seal()
        os.close(self._lock)

    # ------------------------------------------------------------ appending

    def append(self, entries: Sequence[Entry]) -> list[Unavailable | None]:
        """Write the entries that fit, with one sync; returns a refusal or None for each entry."""
        room = self._max_bytes - self.bytes
        taken: list[Entry] = []
        answers: list[Unavailable | None] = []
        for entry in entries:
            fits = len(entry.lines) <= room
            answers.append(None if fits else self._full())
            if fits:
                taken.append(entry)
                room -= len(entry.lines)
        if taken:
            try:
                self._write(b"".join(entry.lines for entry in taken), sum(entry.events for entry in taken))
            except OSError as error:
                reason = f"the spool can't be written ({error.strerror}); nothing was kept"
                answers = [Unavailable(reason) for _ in entries]
        self._log_refusal(next(filter(None, answers), None))
        return answers

    def _full(self) -> Unavailable:
        return Unavailable(
            "the log takes no reads right now, and the spool that keeps them meanwhile is full "
            f"({self.bytes} of {self._max_bytes} bytes)"
        )

    def _write(self, lines: bytes, events: int) -> None:
        segment, file = self._newest = self._newest or self._begin()
        try:
            left = memoryview(lines)
            while left:
                left = left[os.write(file, left) :]
            _sync_data(file)
        except BaseException:
            self._undo(segment, file)
            raise
        segment.size += len(lines)
        segment.events += events
        self.bytes += len(lines)
        self.depth += events
        if segment.size >= self._segment_bytes:
            self._seal()

    def _begin(self) -> tuple[Segment, int]:
        self.last += 1  # a number is never used twice, even if this fails
        segment = Segment(self.last, self._directory / f"{self.last:012}{WAITING}")
        file = os.open(segment.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        try:
            _sync_directory(self._directory)
        except OSError:
            os.close(file)
            segment.path.unlink(missing_ok=True)
            raise
        self._waiting.append(segment)
        return segment, file

    def _undo(self, segment: Segment, file: int) -> None:
        """Undo a failed write: refused events must not count later, not even after a crash."""
        try:
            os.ftruncate(file, segment.size)
            os.fsync(file)
        except OSError as error:
            # Then the events count after a crash, although they were refused. That is harmless.
            log.error("a refused write can't be undone", action="spool", file=segment.path.name, error=str(error))
        self._seal()  # after a failed sync the page cache cannot be trusted
        if not segment.size:
            with contextlib.suppress(OSError):  # a drain removes it later
                self._remove(segment)

    def _seal(self) -> None:
        newest, self._newest = self._newest, None
        if newest is not None:
            with contextlib.suppress(OSError):  # the content is synced, or was undone
                os.close(newest[1])

    def _log_refusal(self, refusal: Unavailable | None) -> None:
        """Log once when refusals begin and once when they end: there may be thousands a second."""
        if refusal is not None and not self._refusing:
            log.error("reads are refused", action="spool", reason=refusal.explained, events=self.depth)
        elif refusal is None and self._refusing:
            log.info("the spool takes reads again", action="spool", events=self.depth)
        self._refusing = refusal is not None

    # ------------------------------------------------------------ reading and removing

    def all(self) -> list[Segment]:
        """All segments, oldest first."""
        return list(self._waiting)

    def states(self, segment: Segment) -> list[ReadEvent]:
        """A segment's events, folded; empty if the segment was removed."""
        return fold_reads(self._events(segment)) if segment in self._waiting else []

    def oldest(self, last: int) -> Batch | None:
        """Seal and read the oldest segment, unless it is newer than `last`."""
        if not self._waiting or self._waiting[0].number > last:
            return None
        segment = self._waiting[0]
        if self._newest is not None and self._newest[0] is segment:
            self._seal()
        events = self._events(segment)
        return Batch(segment, fold_reads(events), len(events))

    def retire(self, segment: Segment) -> None:
        try:
            self._remove(segment)
        except OSError as error:
            reason = f"the spool can't remove {segment.path.name} ({error.strerror}); it will be sent again"
            raise Unavailable(reason) from error

    def _remove(self, segment: Segment) -> None:
        """A segment with unreadable lines is renamed, not removed."""
        with contextlib.suppress(FileNotFoundError):
            if segment.damaged:
                segment.path.rename(segment.path.with_suffix(DAMAGED))
            else:
                segment.path.unlink()
        if segment in self._waiting:
            self._waiting.remove(segment)
            self.bytes -= segment.size
            self.depth -= segment.events
        with contextlib.suppress(OSError):  # a file that reappears after a power cut is sent again
            _sync_directory(self._directory)

    def _events(self, segment: Segment) -> list[ReadEvent]:
        """Read a segment's events again: lines may have been damaged since they were written."""
        try:
            content = _content(segment.path)
        except OSError as error:
            raise Unavailable(f"the spool can't be read ({segment.path.name}: {error.strerror})") from error
        events, damaged = _parse((content or b"")[: segment.size])
        lost = segment.events - len(events)
        self._note_damage(segment, max(damaged, segment.damaged + lost))
        segment.events -= lost
        self.depth -= lost
        return events

    def _note_damage(self, segment: Segment, damaged: int) -> None:
        if damaged > segment.damaged:
            self.damaged += damaged - segment.damaged
            segment.damaged = damaged
            kept = segment.path.with_suffix(DAMAGED).name
            log.error("lines of the spool can't be read and are skipped", action="spool", lines=damaged, kept=kept)

    # ------------------------------------------------------------ segments of an earlier process

    def _find(self) -> None:
        for path in sorted(self._directory.iterdir()):
            name = _NAME.fullmatch(path.name)
            if name is None:
                continue
            self.last = max(self.last, int(name[1]))
            if name[2] == WAITING:
                self._recover(Segment(int(name[1]), path))
        if self.depth:
            log.info("reads of an earlier process wait in the spool", action="spool", events=self.depth)

    def _recover(self, segment: Segment) -> None:
        content = _content(segment.path)
        if content is None:
            self._note_damage(segment, 1)
        else:
            segment.size = content.rfind(b"\n") + 1
            if segment.size < len(content):  # a write was cut off before it was acknowledged
                _cut(segment.path, segment.size)
            events, damaged = _parse(content[: segment.size])
            segment.events = len(events)
            self._note_damage(segment, damaged)
        if not segment.events:
            self._remove(segment)
            return
        self._waiting.append(segment)
        self.bytes += segment.size
        self.depth += segment.events


# ---------------------------------------------------------------- lines


def _line(event: ReadEvent) -> bytes:
    body = _encode(event)
    return b"%08x %b\n" % (crc32(body), body)


def _parse(content: bytes) -> tuple[list[ReadEvent], int]:
    """The events, and the number of lines that cannot be read."""
    lines = content.split(b"\n")[:-1]
    events = [event for event in map(_event, lines) if event is not None]
    return events, len(lines) - len(events)


def _event(line: bytes) -> ReadEvent | None:
    body = line[9:]
    if line[:9] != b"%08x " % crc32(body):
        return None
    try:
        return _decode(body)
    except (ValueError, RecursionError):  # not JSON, not UTF-8 or not an event
        return None


# ---------------------------------------------------------------- files


def _content(path: Path) -> bytes | None:
    """The content of a file; None if the disk cannot read it or the file is gone."""
    try:
        return path.read_bytes()
    except OSError as error:
        if error.errno not in {errno.EIO, errno.ENOENT}:
            raise
        log.error("a file of the spool can't be read", action="spool", file=path.name, error=str(error))
        return None


def _cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)
        os.fsync(file.fileno())


def _make_directory(directory: Path) -> None:
    """Create and sync each level before the next."""
    if not directory.is_dir():
        _make_directory(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)
        _sync_directory(directory.parent)


def _sync_directory(directory: Path) -> None:
    """A new file survives a power cut only if its directory is synced too."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _lock(directory: Path) -> int:
    """Lock the directory. The lock ends with the process; its file is never removed."""
    handle = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if not isinstance(error, BlockingIOError):
            raise
        raise ConfigurationError(
            f"another process has the spool in {str(directory)!r}: each process needs a directory of its own"
        ) from error
    return handle


def _name(lock: int) -> str:
    """The spool's name, in the lock file; the first process creates it."""
    name = os.pread(lock, 100, 0).decode("ascii", "replace")
    if not name:
        name = secrets.token_hex(8)
        os.pwrite(lock, name.encode(), 0)
        os.fsync(lock)
    return name
