"""`readstate export`, `import` and `erase`."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, TypeVar

import msgspec
import typer
from rich.progress import DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from readstate.api import Refused

from .chat import User
from .commands import MOVE, Commands
from .output import INTERRUPTED, note, plain, present, private_file, progress_bar
from .target import Json, Target, open_store, within

if TYPE_CHECKING:
    from readstate.client import Client
    from readstate.services.transfer import Transfer

app = Commands(MOVE)

T = TypeVar("T")
MAX_CHUNK = 500_000
"""Bytes of one request."""
MAX_LINES = 10_000
MAX_NAMED = 1_000
"""Refused lines that --json lists; without it each is printed as it comes."""


# ---------------------------------------------------------------- export


@app.with_examples("readstate export --output chat.jsonl", "readstate export | gzip > chat.jsonl.gz")
def export(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; else standard output.")] = None,
    *,
    target: Target,
) -> None:
    """Write everything as JSON Lines: channels, messages, members, pointers and preferences."""
    if output is None:
        _call(target, lambda transfer: _write(transfer, sys.stdout.buffer, None))
        sys.stdout.flush()
        return
    unfinished = output.with_name(f"{output.name}.part")
    try:
        with private_file(unfinished) as file, _progress() as bar:
            written = _call(target, lambda transfer: _write(transfer, file, bar))
        unfinished.replace(output)
    finally:
        unfinished.unlink(missing_ok=True)
    note(f"wrote {written:,} lines to {output}")


async def _write(transfer: "Client | Transfer", file: BinaryIO, bar: Progress | None) -> int:
    task = None if bar is None else bar.add_task("exporting", total=None, lines=0)
    lines = 0
    async for chunk in transfer.export():
        await asyncio.to_thread(file.write, chunk)
        lines += chunk.count(b"\n")
        if bar is not None and task is not None:
            bar.update(task, advance=len(chunk), lines=lines)
    return lines


# ---------------------------------------------------------------- import


class Chunk(msgspec.Struct, frozen=True):
    """Whole lines, and the number of the first of them."""

    first_line: int
    lines: int
    data: bytes


class Tally(msgspec.Struct):
    """The progress of an import."""

    accepted: int = 0
    refused_total: int = 0
    refused: list[Refused] = []
    next_line: int = 1
    stopped: bool = False


@app.with_examples(
    "readstate import chat.jsonl",
    "readstate import chat.jsonl --stop-on-error",
    "readstate import chat.jsonl --from-line 120001",
    "gunzip -c chat.jsonl.gz | readstate import -",
    name="import",
)
def import_(
    file: Annotated[str, typer.Argument(help="JSON Lines as an export writes them; - is standard input.")],
    from_line: Annotated[int, typer.Option(min=1, help="Continue at this line.")] = 1,
    stop_on_error: Annotated[bool, typer.Option("--stop-on-error", help="Stop at the first refused line.")] = False,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Import a file that an export wrote, or another product in the same format. Can be repeated."""
    tally = Tally(next_line=from_line)
    signal.signal(signal.SIGINT, _interrupt)
    try:
        piped = file == "-"
        with nullcontext(sys.stdin.buffer) if piped else Path(file).open("rb") as source, _progress() as bar:
            task = bar.add_task("importing", total=None if piped else Path(file).stat().st_size, lines=0)
            importing = _Importing(tally, stop_on_error, as_json, bar, task)
            _call(target, lambda transfer: importing.run(transfer, source, from_line), creates=True)
    except KeyboardInterrupt:
        _report(tally, as_json, f"interrupted: continue with --from-line {tally.next_line}")
        raise typer.Exit(INTERRUPTED) from None
    how = f"stopped at line {tally.next_line}: correct it, and continue with --from-line {tally.next_line}"
    _report(tally, as_json, how if tally.stopped else None)
    raise typer.Exit(1 if tally.refused_total else 0)


def _interrupt(*_: object) -> None:
    """At once, also while it reads a pipe: asyncio's own handler would wait for the read."""
    raise KeyboardInterrupt


def _report(tally: Tally, as_json: bool, ending: str | None) -> None:
    present(tally, as_json, f"accepted {tally.accepted:,} records, refused {tally.refused_total:,} lines")
    if ending and not as_json:
        note(ending)


class _Importing:
    """Sends a file to the service, chunk by chunk."""

    def __init__(self, tally: Tally, stop: bool, quiet: bool, bar: Progress, task: TaskID) -> None:
        self._tally = tally
        self._stop = stop
        self._quiet = quiet
        self._bar = bar
        self._task = task

    async def run(self, transfer: "Client | Transfer", file: BinaryIO, from_line: int) -> None:
        if from_line > 1 and not await self._skip(transfer, file, from_line):
            return
        chunks = _chunks(file, from_line)
        if from_line == 1:  # an empty file is sent too: the service refuses it
            chunks = chain([next(chunks, Chunk(1, 1, b""))], chunks)
        for chunk in chunks:
            if isinstance(chunk, Refused):
                self._refuse([chunk])
                self._tally.stopped = self._stop
                self._tally.next_line = chunk.line + (not self._stop)
            else:
                await self._send(transfer, chunk)
            if self._tally.stopped:
                return

    async def _skip(self, transfer: "Client | Transfer", file: BinaryIO, from_line: int) -> bool:
        """Check the header, and skip the lines before `from_line`."""
        header = file.readline(MAX_CHUNK)
        await self._send(transfer, Chunk(1, 1, header))
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

    async def _send(self, transfer: "Client | Transfer", chunk: Chunk) -> None:
        report = await transfer.import_lines(chunk.data, first_line=chunk.first_line, stop=self._stop)
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


def _chunks(file: BinaryIO, number: int) -> Iterator[Chunk | Refused]:
    """Split a file into chunks of whole lines; a line that no chunk can hold is refused here."""
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


@app.with_examples("readstate erase bob", "readstate erase bob --yes")
def erase(
    user: User,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Erase a user: read state, receipts, badge, follows, preferences and memberships. Messages stay."""
    if not yes:
        typer.confirm(f"Erase everything but the messages of {plain(user)}?", abort=True, err=True)
    gone = _call(target, lambda transfer: transfer.erase_user(user))
    text = (
        f"{gone.channels} channels, {gone.threads} threads, {gone.receipts} read pointers, {gone.badge} badge entries"
    )
    present(gone, as_json, f"erased {plain(user)}: {text}")


# ---------------------------------------------------------------- helpers


def _call(target: Target, ask: Callable[["Client | Transfer"], Awaitable[T]], *, creates: bool = False) -> T:
    """Call the running service, or the store without HTTP, which would hold a whole export in memory."""
    if target.runs:
        return target.call(ask, creates=creates)
    return within(open_store(target.settings(), creates=creates), lambda service: ask(service.transfer))


def _progress() -> Progress:
    return progress_bar(DownloadColumn(), TextColumn("{task.fields[lines]:,} lines"), TimeRemainingColumn())
