"""How commands speak: tables for people, JSON for scripts, one red line for errors."""

import sys
from datetime import UTC, datetime
from typing import NoReturn

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 500
"""Tables that go into a pipe are not cut to the width of some terminal."""


def console(*, stderr: bool = False) -> Console:
    """A console that takes texts as they are: what users wrote is never markup."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPE_WIDTH
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False)


def show(*parts: Table | Text | str) -> None:
    """Print for people."""
    for part in parts:
        console().print(part)


def show_json(answer: object) -> None:
    """Print for scripts: exactly what the service answered."""
    text = msgspec.json.format(msgspec.json.encode(answer), indent=2)
    sys.stdout.write(text.decode() + "\n")


def table(*columns: str) -> Table:
    """A table; columns whose heading begins with # hold numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column.lstrip("#"), justify="right" if column.startswith("#") else "left", overflow="fold")
    return made


def fields(rows: dict[str, object]) -> Table:
    """Names and values below each other."""
    made = Table.grid(padding=(0, 2, 0, 0))
    for name, value in rows.items():
        made.add_row(Text(name, "dim"), value if isinstance(value, Text) else plain(str(value)))
    return made


def plain(text: str | None) -> str:
    """A text of some user with nothing in it that a terminal would obey."""
    return "".join(char if char.isprintable() else "�" for char in text or "")


def moment(at: int | None) -> str:
    """A time in ms, readable."""
    if not at:
        return "-"
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def fail(detail: str, code: str, exit_code: int = 1) -> NoReturn:
    """End the command with one clear line."""
    first, _, rest = detail.partition("\n")
    console(stderr=True).print(Text("error: ", "bold red") + Text(f"{first.rstrip(':')} ({code})\n{rest}".rstrip()))
    raise SystemExit(exit_code)
