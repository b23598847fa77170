"""Commands that copy the whole embedded store, and put it back."""

from pathlib import Path
from typing import Annotated

import typer

from readstate.domain.errors import ConfigurationError
from readstate.findings import MIB
from readstate.profiles.lock import LOCK_FILE, store_held
from readstate.settings import Settings

from .commands import MOVE, Commands
from .output import note, progress, show
from .running import SERVICE_FILE
from .target import no_store

app = Commands(MOVE)


@app.with_examples(
    "readstate backup /backups/chat.db", "readstate backup chat.db --force --data-dir /var/lib/readstate"
)
def backup(
    file: Annotated[Path, typer.Argument(help="File to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    *,
    settings: Settings,
) -> None:
    """Copy the whole embedded store into one file, even while the service runs."""
    from readstate.profiles.embedded import back_up_store

    _require_sqlite(settings)
    if not settings.database_path.exists():
        raise no_store(settings)
    if file.exists() and not force:
        raise ConfigurationError(f"{file} exists already: choose another name, or give --force")
    if file.exists() and file.samefile(settings.database_path):
        raise ConfigurationError(f"{file} is the store itself")
    with progress("backing up") as report:
        size = back_up_store(settings, file, report)
    show(f"wrote {size / MIB:,.1f} MiB to {file}")
    note(_about_secrets())


@app.with_examples("readstate restore /backups/chat.db", "readstate restore chat.db --data-dir /var/lib/readstate")
def restore(
    file: Annotated[Path, typer.Argument(help="A file that readstate backup wrote.")], *, settings: Settings
) -> None:
    """Put a backup of the embedded store into an empty data directory."""
    from readstate.profiles.embedded import restore_store

    _require_sqlite(settings)
    with store_held(settings):
        _require_empty(settings)
        with progress("restoring") as report:
            size = restore_store(settings, file, report)
    show(f"restored {size / MIB:,.1f} MiB to {settings.database_path}")
    note(f"{_about_secrets()} Every device syncs once.")


def _require_sqlite(settings: Settings) -> None:
    if not settings.in_sqlite:
        raise ConfigurationError(
            "this store is in PostgreSQL: back it up and restore it with pg_dump and pg_restore, or with your "
            "provider's tools. This command is for the file of the embedded profile"
        )


def _require_empty(settings: Settings) -> None:
    kept = {LOCK_FILE, SERVICE_FILE, *_secret_files()}
    others = sorted(one.name for one in settings.store_directory.iterdir() if one.name not in kept)
    if others:
        raise ConfigurationError(
            f"{settings.store_directory} is not empty ({others[0]}): move its content away first; secrets may stay"
        )


def _secret_files() -> tuple[str, str]:
    from readstate.gateway.auth.authenticator import JWT_SECRET_FILE, SERVICE_KEY_FILE

    return SERVICE_KEY_FILE, JWT_SECRET_FILE


def _about_secrets() -> str:
    key, secret = _secret_files()
    return f"The file holds no secrets: keep {key} and {secret} of the data directory, or the settings that hold them."
