"""Output of commands: tables for people, JSON for scripts, one red line for an error."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, NoReturn

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

INTERRUPTED = 130
"""The exit code after Ctrl+C."""
PIPE_WIDTH = 500
"""Width of tables in a pipe, which no terminal cuts."""


def console(*, stderr: bool = False) -> Console:
    """A console without markup, because texts of users may look like it."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPE_WIDTH
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False)


def show(*parts: Table | Text | str) -> None:
    for part in parts:
        console().print(part)


def show_json(answer: object) -> None:
    """Print exactly what the service answered."""
    text = msgspec.json.format(msgspec.json.encode(answer), indent=2)
    sys.stdout.write(text.decode() + "\n")


def present(answer: object, as_json: bool, *parts: Table | Text | str) -> None:
    """Print the answer for scripts, or these parts for people."""
    if as_json:
        show_json(answer)
    else:
        show(*parts)


def note(text: str | Text) -> None:
    """Print beside the output, on stderr."""
    console(stderr=True).print(text, soft_wrap=True)


def progress_bar(*columns: ProgressColumn, hidden: bool = False) -> Progress:
    """A bar on stderr with these columns, if stderr is a terminal."""
    screen = console(stderr=True)
    shown = (TextColumn("{task.description}"), BarColumn(), *columns)
    return Progress(*shown, console=screen, disable=hidden or not screen.is_terminal, transient=True)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar; call the function with (done, total)."""
    with progress_bar(TaskProgressColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def table(*columns: str) -> Table:
    """A table; columns whose heading begins with # hold numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column.lstrip("#"), justify="right" if column.startswith("#") else "left", overflow="fold")
    return made


def fields(rows: dict[str, object]) -> Table:
    """Names and values, one below the other."""
    made = Table.grid(padding=(0, 2, 0, 0))
    for name, value in rows.items():
        made.add_row(Text(name, "dim"), value if isinstance(value, Text) else plain(str(value)))
    return made


def plain(text: str | None) -> str:
    """A text of a user without control characters for the terminal."""
    return "".join(char if char.isprintable() else "�" for char in text or "")


def utc(at: int | None) -> str:
    """A time in ms, readable."""
    if not at:
        return "-"
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def private_file(path: Path) -> BinaryIO:
    """A new file that only its owner can read."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def replace_private_file(path: Path, content: bytes) -> None:
    """Write such a file at once: a reader sees the old or the new one."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with private_file(fresh) as file:
        file.write(content)
    fresh.replace(path)


def fail(detail: str, code: str, exit_code: int = 1) -> NoReturn:
    """End the command with one line on stderr."""
    first, _, rest = detail.partition("\n")
    console(stderr=True).print(Text("error: ", "bold red") + Text(f"{first.rstrip(':')} ({code})\n{rest}".rstrip()))
    raise SystemExit(exit_code)
