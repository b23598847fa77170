"""Commands that copy the embedded store whole, and put it back."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from readstate.domain.errors import ConfigurationError
from readstate.findings import MIB
from readstate.gateway.auth.authenticator import JWT_SECRET_FILE, SERVICE_KEY_FILE
from readstate.profiles.embedded import LOCK_FILE, back_up_store, restore_store, store_held
from readstate.settings import Settings

from .help import examples
from .output import console, show
from .place import Config, DataDir, Place, no_store
from .running import SERVICE_FILE

app = typer.Typer()

KEPT = frozenset({LOCK_FILE, SERVICE_FILE, SERVICE_KEY_FILE, JWT_SECRET_FILE})
"""What a data directory may hold that a store is restored into."""
SECRETS = (
    f"Secrets are not in it: keep {SERVICE_KEY_FILE} and {JWT_SECRET_FILE} of the data directory, or the settings that "
    "hold them, apart"
)


@app.command(
    rich_help_panel="Move",
    epilog=examples(
        "readstate backup /backups/chat.db", "readstate backup chat.db --force --data-dir /var/lib/readstate"
    ),
)
def backup(
    file: Annotated[Path, typer.Argument(help="File to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Copy the embedded store whole into one file, also while the service runs."""
    settings = _embedded(Place(data_dir=data_dir, config=config).settings())
    if not settings.database_path.exists():
        raise no_store(settings)
    if file.exists() and not force:
        raise ConfigurationError(f"{file} is there already: choose another name, or say --force")
    if file.exists() and file.samefile(settings.database_path):
        raise ConfigurationError(f"{file} is the store itself")
    with _progress("backing up") as progress:
        size = back_up_store(settings, file, progress)
    show(f"wrote {size / MIB:,.1f} MiB to {file}")
    console(stderr=True).print(f"{SECRETS}.")


@app.command(
    rich_help_panel="Move",
    epilog=examples("readstate restore /backups/chat.db", "readstate restore chat.db --data-dir /var/lib/readstate"),
)
def restore(
    file: Annotated[Path, typer.Argument(help="A file that readstate backup wrote.")],
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Put a backup of the embedded store into an empty data directory."""
    settings = _embedded(Place(data_dir=data_dir, config=config).settings())
    with store_held(settings):
        _require_empty(settings)
        with _progress("restoring") as progress:
            size = restore_store(settings, file, progress)
    show(f"restored {size / MIB:,.1f} MiB to {settings.database_path}")
    console(stderr=True).print(f"{SECRETS}. Devices sync anew once.")


def _embedded(settings: Settings) -> Settings:
    if not settings.in_sqlite:
        raise ConfigurationError(
            "this store is in PostgreSQL: back it up and restore it with pg_dump and pg_restore, or with the means of "
            "whoever runs it. This command is for the file of the embedded profile"
        )
    return settings


def _require_empty(settings: Settings) -> None:
    there = sorted(one.name for one in settings.store_directory.iterdir() if one.name not in KEPT)
    if there:
        raise ConfigurationError(
            f"{settings.store_directory} is not empty ({there[0]}): move away what is there first; secrets may stay"
        )


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    screen = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Bar(*columns, console=screen, disable=not screen.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
