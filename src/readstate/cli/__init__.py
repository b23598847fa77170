"""The command line, one file per group of commands.

Modules of commands import what is slow to import inside functions, so that every command starts fast.
"""

import sqlite3
from typing import Annotated

import typer

from readstate.domain.errors import ReadstateError
from readstate.telemetry import setup_logging

from . import backup, bench, chat, dlt, doctor, inbox, inspect, move, operate, repair, serve, stack, watch, worker
from .commands import examples
from .output import fail
from .process import exit_code

app = typer.Typer(
    name="readstate",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog=examples(
        "readstate serve",
        "readstate channel general --type channel --member alice --member bob",
        "readstate send general alice 'hello'",
        "readstate unread bob",
    ),
)
for group in (serve, worker, operate, doctor, stack, chat, inbox, inspect, watch, repair, dlt, bench, move, backup):
    app.add_typer(group.app, rich_help_panel=group.app.panel)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"readstate {version('readstate')}")
        raise typer.Exit


HELP = (
    "Read state for chat: exact unread counts.\n\n"
    "Commands call the service at --url (READSTATE_URL), else the one that runs over the data directory, "
    "else they open the data directory themselves."
)


@app.callback(invoke_without_command=True, help=HELP)
def readstate(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Read state for chat: exact unread counts."""
    setup_logging("warning")
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run one command. An error is one line and exit code 1."""
    try:
        app(prog_name="readstate")
    except ReadstateError as error:
        fail(error.explained, error.code, exit_code(error))
    except sqlite3.Error as error:
        fail(f"the database cannot be used: {error}", "storage_unavailable")
    except OSError as error:
        fail(str(error), "os_error")
