"""`readstate reconcile`, `rebuild` and `audit`: hot store and database side by side."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated, TypeVar

import typer
from msgspec import Struct
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from readstate.profiles.service import Readstate, require_cluster
from readstate.services.audit import Audited
from readstate.services.audit import Progress as Tell
from readstate.services.repair import Rebuilt, Reconciled
from readstate.settings import Settings

from .help import examples
from .output import console, fields, plain, show, show_json, table
from .place import Config, DataDir, Json, Place, require_store

app = typer.Typer()

PANEL = "Look after it"
PATIENCE = 10.0
"""Seconds that a difference must stand to count as drift."""
Report = TypeVar("Report", bound=Struct)
RECONCILE = (
    "Compare the read states of hot store and database, and merge what differs, both ways (cluster profile). Badges "
    "that differ are loaded again from the database.\n\n"
    "Safe at any time. The worker's role reconciler does the same in the background."
)
REBUILD = (
    "Load every user and channel from the database into the hot store (cluster profile).\n\n"
    "Nothing depends on it, since what is missing is loaded at its first use; it spares those who come first the wait."
)


@app.command(
    rich_help_panel=PANEL, help=RECONCILE, epilog=examples("readstate reconcile", "readstate reconcile --json")
)
def reconcile(as_json: Json = False, data_dir: DataDir = None, config: Config = None) -> None:
    """Compare the read states of hot store and database, and merge what differs."""
    settings = _of_cluster(data_dir, config)
    with _bar("reconciling") as tell:
        found: Reconciled = _ask(settings, lambda rs: rs.repair.reconcile(tell))
    if as_json:
        show_json(found)
        return
    rows: dict[str, object] = {
        "users": f"{found.users:,}, of whom {found.hot_users:,} are in the hot store",
        "read states compared": f"{found.states:,}",
        "database was behind": f"{found.database_behind:,}",
        "hot store was behind": f"{found.hot_store_behind:,}",
        "badges that differed": f"{found.badges:,}",
    }
    if found.undecided:
        rows["still in the log"] = f"{found.undecided:,}; is a read-receipt-persister running?"
    show(fields(rows))


@app.command(rich_help_panel=PANEL, help=REBUILD, epilog=examples("readstate rebuild", "readstate rebuild --clear"))
def rebuild(
    clear: Annotated[
        bool, typer.Option("--clear", help="Give up first what is hot: all of it is loaded anew, also for others.")
    ] = False,
    as_json: Json = False,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Load every user and channel from the database into the hot store."""
    settings = _of_cluster(data_dir, config)
    with _bar("loading") as tell:
        built: Rebuilt = _ask(settings, lambda rs: rs.repair.rebuild(tell, clear=clear))
    if as_json:
        show_json(built)
    else:
        show(f"loaded {built.users:,} users and {built.channels:,} channels")


@app.command(
    rich_help_panel=PANEL, epilog=examples("readstate audit", "readstate audit --sample 1000 --patience 60 --json")
)
def audit(
    sample: Annotated[int, typer.Option(min=1, max=1_000_000, help="Users and channels to recount.")] = 100,
    patience: Annotated[
        float, typer.Option(min=0, max=3_600, help="Seconds that a difference must stand to be reported.")
    ] = PATIENCE,
    as_json: Json = False,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Recount some users and channels, taken at random, and their badges, from the database; exit code 1 on drift."""
    settings = Place(data_dir=data_dir, config=config).settings()
    with _bar("counting") as tell:
        found: Audited = _ask(settings, lambda rs: rs.audit.run(sample, patience, tell))
    if as_json:
        show_json(found)
    else:
        _show_audit(found)
    raise typer.Exit(1 if found.drift else 0)


def _show_audit(found: Audited) -> None:
    if not found.drift:
        show(f"{_recounted(found)}: all agree")
        return
    rows = table("user", "channel", "what differs", "#hot store", "#database")
    for one in found.drift:
        rows.add_row(plain(one.user_id), plain(one.channel_id or ""), one.what, str(one.hot), str(one.durable))
    show(
        rows,
        "",
        f"{_recounted(found)}: {len(found.drift):,} differ. readstate recount USER CHANNEL repairs a "
        "count, readstate reconcile all pointers and badges",
    )


def _recounted(found: Audited) -> str:
    return f"recounted {found.counted:,}" + (f" and {found.badges:,} badges" if found.badges else "")


# ---------------------------------------------------------------- where


def _of_cluster(data_dir: DataDir, config: Config) -> Settings:
    settings = Place(data_dir=data_dir, config=config).settings()
    require_cluster(settings)
    return settings


def _ask(settings: Settings, work: Callable[[Readstate], Awaitable[Report]]) -> Report:
    async def run() -> Report:
        await require_store(settings)
        async with Readstate.open(settings=settings) as service:
            return await work(service)

    return asyncio.run(run())


@contextlib.contextmanager
def _bar(what: str) -> Iterator[Tell]:
    """A bar on a terminal; nothing in a pipe."""
    screen = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
