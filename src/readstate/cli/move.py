"""Commands that move everything in and out, and erase a user."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO, Protocol, TypeVar

import msgspec
import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from readstate.api import Erased, ImportReport, Refused
from readstate.profiles.service import Readstate
from readstate.settings import Settings

from .chat import User
from .help import examples
from .output import console, plain, show, show_json
from .place import Json, Place, at_a_place, is_running, require_store

app = typer.Typer()

T = TypeVar("T")
MAX_CHUNK = 500_000
"""Bytes that are sent at once."""
MAX_LINES = 10_000
MAX_NAMED = 1_000
"""Refused lines that --json names; without it each is told as it comes."""
INTERRUPTED = 130


class Door(Protocol):
    """Where records go in and out: a client of a running service, or the service itself in this process."""

    def export(self) -> AsyncGenerator[bytes, None]:
        """Everything, in pieces."""

    async def import_lines(self, data: bytes, *, first_line: int = 1, stop: bool = False) -> object:
        """Take lines; answers with an ImportReport, or what looks like one."""

    async def erase_user(self, user: str) -> object:
        """Erase a user; answers with an Erased, or what looks like one."""


# ---------------------------------------------------------------- export


@app.command(
    rich_help_panel="Move",
    epilog=examples("readstate export --output chat.jsonl", "readstate export | gzip > chat.jsonl.gz"),
)
@at_a_place
def export(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; else standard output.")] = None,
    *,
    place: Place,
) -> None:
    """Write everything as JSON Lines: channels, messages, members, pointers and preferences."""
    if output is None:
        _at(place, lambda door: _pour(door, sys.stdout.buffer, None))
        sys.stdout.flush()
        return
    unfinished = output.with_name(f"{output.name}.part")
    try:
        with _private(unfinished) as file, _progress() as bar:
            written = _at(place, lambda door: _pour(door, file, bar))
        unfinished.replace(output)
    finally:
        unfinished.unlink(missing_ok=True)
    console(stderr=True).print(f"wrote {written:,} lines to {output}")


async def _pour(door: Door, file: BinaryIO, bar: Progress | None) -> int:
    task = None if bar is None else bar.add_task("exporting", total=None, lines=0)
    lines = 0
    async for chunk in door.export():
        await asyncio.to_thread(file.write, chunk)
        lines += chunk.count(b"\n")
        if bar is not None and task is not None:
            bar.update(task, advance=len(chunk), lines=lines)
    return lines


@contextmanager
def _private(path: Path) -> Iterator[BinaryIO]:
    """A new file that only its owner can read: it holds what people wrote."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        yield file


# ---------------------------------------------------------------- import


class Chunk(msgspec.Struct, frozen=True):
    """Whole lines, and the number of the first of them."""

    first_line: int
    lines: int
    data: bytes


class Tally(msgspec.Struct):
    """How far an import has come."""

    accepted: int = 0
    refused_total: int = 0
    refused: list[Refused] = []
    next_line: int = 1
    stopped: bool = False


@app.command(
    "import",
    rich_help_panel="Move",
    epilog=examples(
        "readstate import chat.jsonl",
        "readstate import chat.jsonl --stop-on-error",
        "readstate import chat.jsonl --from-line 120001",
        "gunzip -c chat.jsonl.gz | readstate import -",
    ),
)
@at_a_place
def import_(
    file: Annotated[str, typer.Argument(help="JSON Lines as an export has them; - is standard input.")],
    from_line: Annotated[int, typer.Option(min=1, help="Go on from this line.")] = 1,
    stop_on_error: Annotated[bool, typer.Option("--stop-on-error", help="Stop at the first refused line.")] = False,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Take in what an export wrote, or what another product wrote in its form. May be repeated."""
    tally = Tally(next_line=from_line)
    signal.signal(signal.SIGINT, _interrupt)
    try:
        with _source(file) as source, _progress() as bar:
            task = bar.add_task("importing", total=None if file == "-" else Path(file).stat().st_size, lines=0)
            feeding = _Feeding(tally, stop_on_error, as_json, bar, task)
            _at(place, lambda door: feeding.run(door, source, from_line), creates=True)
    except KeyboardInterrupt:
        _tell(tally, as_json, f"interrupted: go on with --from-line {tally.next_line}")
        raise typer.Exit(INTERRUPTED) from None
    how = f"stopped at line {tally.next_line}: mend it, and go on with --from-line {tally.next_line}"
    _tell(tally, as_json, how if tally.stopped else None)
    raise typer.Exit(1 if tally.refused_total else 0)


def _interrupt(*_: object) -> None:
    """At once, also while it waits for a pipe: the handler of asyncio would let the reading go on."""
    raise KeyboardInterrupt


@contextmanager
def _source(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
    else:
        with Path(file).open("rb") as opened:
            yield opened


def _tell(tally: Tally, as_json: bool, ending: str | None) -> None:
    if as_json:
        show_json(tally)
        return
    show(f"accepted {tally.accepted:,} records, refused {tally.refused_total:,} lines")
    if ending:
        console(stderr=True).print(ending)


class _Feeding:
    """Hands a file to the service, chunk by chunk."""

    def __init__(self, tally: Tally, stop: bool, quiet: bool, bar: Progress, task: TaskID) -> None:
        self._tally = tally
        self._stop = stop
        self._quiet = quiet
        self._bar = bar
        self._task = task

    async def run(self, door: Door, file: BinaryIO, from_line: int) -> None:
        if from_line > 1 and not await self._skip(door, file, from_line):
            return
        nothing = Chunk(1, 1, b"")
        for chunk in _chunks(file, from_line) if from_line > 1 else _or(nothing, _chunks(file, 1)):
            if isinstance(chunk, Refused):
                self._refuse([chunk])
                self._tally.stopped = self._stop
                self._tally.next_line = chunk.line + (not self._stop)
            else:
                await self._feed(door, chunk)
            if self._tally.stopped:
                return

    async def _skip(self, door: Door, file: BinaryIO, from_line: int) -> bool:
        """Look at the header, and pass by what is there already."""
        header = file.readline(MAX_CHUNK)
        await self._feed(door, Chunk(1, 1, header))
        if self._tally.stopped:
            return False
        size = len(header)
        for _ in range(from_line - 2):
            while (part := file.readline(MAX_CHUNK)) and not part.endswith(b"\n"):
                size += len(part)
            size += len(part)
        self._bar.update(self._task, advance=size, lines=from_line - 1)
        self._tally.next_line = from_line
        return True

    async def _feed(self, door: Door, chunk: Chunk) -> None:
        answer = await door.import_lines(chunk.data, first_line=chunk.first_line, stop=self._stop)
        report = msgspec.convert(answer, ImportReport, from_attributes=True)
        self._refuse(report.refused)
        self._tally.accepted += report.accepted
        self._tally.next_line = report.next_line
        self._tally.stopped = report.next_line < chunk.first_line + chunk.lines
        self._bar.update(self._task, advance=len(chunk.data), lines=report.next_line - 1)

    def _refuse(self, refused: list[Refused]) -> None:
        self._tally.refused_total += len(refused)
        self._tally.refused += refused[: max(MAX_NAMED - len(self._tally.refused), 0)]
        for one in [] if self._quiet else refused:
            self._bar.console.print(f"line {one.line}: {plain(one.reason)}")


def _or(otherwise: Chunk, chunks: Iterator[Chunk | Refused]) -> Iterator[Chunk | Refused]:
    """What there is; if there is nothing, something that the service can refuse."""
    yield next(chunks, otherwise)
    yield from chunks


def _chunks(file: BinaryIO, number: int) -> Iterator[Chunk | Refused]:
    """A file in chunks that end with a line; a line that is too long for any is refused here."""
    first, lines, size = number, list[bytes](), 0
    while line := file.readline(MAX_CHUNK + 1):
        too_long = len(line) > MAX_CHUNK
        if lines and (too_long or size + len(line) > MAX_CHUNK or len(lines) == MAX_LINES):
            yield Chunk(first, len(lines), b"".join(lines))
            first, lines, size = number, [], 0
        if too_long:
            while line and not line.endswith(b"\n"):
                line = file.readline(MAX_CHUNK)
            yield Refused(number, f"the line is longer than {MAX_CHUNK:,} bytes")
            first = number + 1
        else:
            lines.append(line)
            size += len(line)
        number += 1
    if lines:
        yield Chunk(first, len(lines), b"".join(lines))


# ---------------------------------------------------------------- erase


@app.command(rich_help_panel="Move", epilog=examples("readstate erase bob", "readstate erase bob --yes"))
@at_a_place
def erase(
    user: User,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Erase a user: read state, receipts, badge, follows, preferences and memberships. Messages stay."""
    if not yes:
        typer.confirm(f"Erase everything but the messages of {plain(user)}?", abort=True, err=True)
    gone = msgspec.convert(_at(place, lambda door: door.erase_user(user)), Erased, from_attributes=True)
    if as_json:
        show_json(gone)
        return
    show(
        f"erased {plain(user)}: {gone.channels} channels, {gone.threads} threads, {gone.receipts} read pointers, "
        f"{gone.badge} notes for badges"
    )


# ---------------------------------------------------------------- where


def _at(place: Place, ask: Callable[[Door], Awaitable[T]], *, creates: bool = False) -> T:
    """Ask the service that runs; else the store itself, not over HTTP, which would hold an export in memory."""
    if place.url or is_running(settings := place.settings()):
        return place.call(ask, creates=creates)
    return asyncio.run(_inside(settings, ask, creates))


async def _inside(settings: Settings, ask: Callable[[Door], Awaitable[T]], creates: bool) -> T:
    if not creates:
        await require_store(settings)
    async with Readstate.open(settings=settings) as service:
        return await ask(service.transfer)


def _progress() -> Progress:
    screen = console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[lines]:,} lines"),
        TimeRemainingColumn(),
        console=screen,
        disable=not screen.is_terminal,
    )
