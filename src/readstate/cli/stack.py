"""`readstate stack`: real servers for development, in the background."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn
from rich.text import Text

from readstate.domain.errors import ConfigurationError, ReadstateError
from readstate.stack import PROFILE, VARIABLES, SoftwareMissing, Stack, check_names, locked, read_state

from .commands import RUN, Commands
from .output import console, note, present, replace_private_file, show, table
from .target import Json

app = Commands(RUN, "stack", "Real servers for development: Valkey, PostgreSQL and Kafka on free ports.")

Directory = Annotated[Path, typer.Option("--dir", help="Directory of the servers and their data.")]
DEFAULT = Path("readstate-stack")
OPTIONAL = frozenset({"kafka"})
"""Servers that the usual stack leaves out if their software is not installed."""
STYLES = {"running": "green", "not answering": "yellow", "died": "bold red", "stopped": "dim"}


@app.with_examples(
    "export $(readstate stack up)",
    "readstate stack up --with valkey-cluster,replica,postgres,kafka",
    "readstate stack up --brokers 3",
    "readstate stack up --dir /var/tmp/servers --env .env",
)
def up(
    directory: Directory = DEFAULT,
    names: Annotated[
        str | None,
        typer.Option(
            "--with",
            show_default="the previous ones, else valkey,postgres,kafka",
            help="Servers, comma separated: valkey, valkey-cluster, replica (the write replica), postgres, kafka.",
        ),
    ] = None,
    brokers: Annotated[
        int | None,
        typer.Option(
            min=1, max=5, show_default="as before, else 1", help="Kafka brokers; three survive the loss of one."
        ),
    ] = None,
    env: Annotated[
        Path | None, typer.Option("--env", help="File to write the READSTATE_ lines to; its other lines are kept.")
    ] = None,
) -> None:
    """Start the servers that are not running, wait until they answer, and print their READSTATE_ lines."""
    named = _split(names)
    check_names(named)
    with locked(directory, _note_waiting):
        servers = Stack(directory)
        with _Display() as display:
            errors = servers.up(named, display.report, brokers=brokers)
        lines = [f"{name}={value}\n" for name, value in servers.env.items()]
    if env is None:
        sys.stdout.write("".join(lines))
    else:
        _write_env(env, lines)
    fatal = [_report_error(name, error, name in named) for name, error in errors.items()]
    if any(fatal):
        raise typer.Exit(1)


@app.with_examples("readstate stack down", "readstate stack down --dir servers --wipe")
def down(
    directory: Directory = DEFAULT,
    wipe: Annotated[bool, typer.Option("--wipe", help="Remove the data too.")] = False,
) -> None:
    """Stop the servers; their data and ports are kept for the next start."""
    if read_state(directory) is None:
        show(f"there are no servers in {directory}")
        return
    with locked(directory, _note_waiting):
        servers = Stack(directory)
        with _Display() as display:
            ran = servers.down(wipe=wipe, report=display.report)
    show(f"stopped {', '.join(ran)}" if ran else "nothing was running")
    if wipe:
        show("removed the data")
        if not any(directory.iterdir()):
            directory.rmdir()


@app.with_examples("readstate stack status", "readstate stack status --json")
def status(directory: Directory = DEFAULT, as_json: Json = False) -> None:
    """Show the servers; exit code 1 if one died or does not answer."""
    if read_state(directory) is None:
        raise ConfigurationError(
            f"there are no servers in {directory}: start some (readstate stack up), or name their directory (--dir)"
        )
    found = Stack(directory).status()
    rows = table("server", "state", "#port", "#pid", "version", "data")
    for one in found:
        state = Text(one.state, STYLES[one.state])
        port = str(one.ports[0]) if one.ports else "-"
        pid = str(one.pid) if one.pid is not None else "-"
        rows.add_row(one.name, state, port, pid, one.version or "-", one.data)
    died = any(one.state == "died" for one in found)
    present(found, as_json, rows, *(["readstate stack up restarts servers that died"] if died else []))
    if any(one.state in {"died", "not answering"} for one in found):
        raise typer.Exit(1)


def _split(names: str | None) -> list[str]:
    if names is None:
        return []
    split = list(dict.fromkeys(name for name in (part.strip() for part in names.split(",")) if name))
    if not split:
        raise ConfigurationError(f"--with names no server: there are {', '.join(VARIABLES)}")
    return split


def _note_waiting() -> None:
    note("another readstate stack command runs in this directory: waiting for it")


def _report_error(name: str, error: ReadstateError, was_named: bool) -> bool:
    """Print why a server does not run. Returns whether the command fails."""
    fatal = was_named or name not in OPTIONAL or not isinstance(error, SoftwareMissing)
    head = Text("error: ", "bold red") if fatal else Text("left out: ", "yellow")
    note(head + Text(f"{name}: {error.detail.removeprefix(f'{name}: ')} ({error.code})"))
    return fatal


def _write_env(path: Path, lines: list[str]) -> None:
    """Replace these lines in a file that only its owner can read: one has a password."""
    ours = tuple(f"{variable}=" for variable in (PROFILE, *VARIABLES.values()))
    path = path.resolve()
    old = path.read_text("utf-8").splitlines() if path.exists() else []
    kept = [f"{line}\n" for line in old if not line.startswith(ours)]
    replace_private_file(path, "".join(kept + lines).encode())
    note(f"wrote {path}")


class _Display(Progress):
    """One line per server on stderr: at a terminal its progress, in a pipe the result."""

    ENDS = frozenset({"running", "not started", "stopped", "removed"})

    def __init__(self) -> None:
        columns = (
            SpinnerColumn(finished_text=" "),
            TextColumn("{task.fields[server]}", markup=False),
            TextColumn("{task.description}", markup=False),
        )
        super().__init__(*columns, console=console(stderr=True))
        self._ids: dict[str, TaskID] = {}

    def report(self, server: str, what: str) -> None:
        """Called from several threads."""
        if server not in self._ids:
            self._ids[server] = self.add_task(what, total=1, server=server)
        self.update(self._ids[server], description=what, completed=int(what in self.ENDS))
