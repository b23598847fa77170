"""`readstate reconcile`, `rebuild` and `audit`: compare hot store and database, and repair."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from readstate.settings import Settings

from .commands import LOOK_AFTER, Commands
from .output import fields, plain, present, progress, table
from .target import Json, open_store, within

if TYPE_CHECKING:
    from readstate.services.audit import Audited

app = Commands(LOOK_AFTER)


@app.with_examples("readstate reconcile", "readstate reconcile --json")
def reconcile(as_json: Json = False, *, settings: Settings) -> None:
    """Compare the read states of hot store and database, and merge differences in both directions (cluster profile).
    Badges that differ are reloaded from the database.

    Safe at any time. The worker role reconciler does the same in the background.
    """
    settings.require_cluster()
    with progress("reconciling") as report:
        found = within(open_store(settings), lambda rs: rs.repair.reconcile(report))
    rows: dict[str, object] = {
        "users": f"{found.users:,}, of whom {found.hot_users:,} are in the hot store",
        "read states compared": f"{found.states:,}",
        "database was behind": f"{found.database_behind:,}",
        "hot store was behind": f"{found.hot_store_behind:,}",
        "badges that differed": f"{found.badges:,}",
    }
    if found.undecided:
        rows["still in the log"] = f"{found.undecided:,}; is a read-receipt-persister running?"
    present(found, as_json, fields(rows))


@app.with_examples("readstate rebuild", "readstate rebuild --clear")
def rebuild(
    clear: Annotated[
        bool, typer.Option("--clear", help="Drop all hot state first; running processes reload it too.")
    ] = False,
    as_json: Json = False,
    *,
    settings: Settings,
) -> None:
    """Load every user and channel from the database into the hot store (cluster profile).

    Not needed for right answers: missing state is loaded at its first use. It saves the first requests the wait.
    """
    settings.require_cluster()
    with progress("loading") as report:
        built = within(open_store(settings), lambda rs: rs.repair.rebuild(report, clear=clear))
    present(built, as_json, f"loaded {built.users:,} users and {built.channels:,} channels")


@app.with_examples("readstate audit", "readstate audit --sample 1000 --patience 60 --json")
def audit(
    sample: Annotated[int, typer.Option(min=1, max=1_000_000, help="Users and channels to recount.")] = 100,
    patience: Annotated[
        float, typer.Option(min=0, max=3_600, help="Seconds that a difference must last to be reported.")
    ] = 10.0,
    as_json: Json = False,
    *,
    settings: Settings,
) -> None:
    """Recount a random sample of users and channels, and their badges, from the database; exit code 1 on drift."""
    with progress("counting") as report:
        found = within(open_store(settings), lambda rs: rs.audit.run(sample, patience, report))
    present(found, as_json, *_audit(found))
    raise typer.Exit(1 if found.drift else 0)


def _audit(found: "Audited") -> list[Table | str]:
    recounted = f"recounted {found.counted:,}" + (f" and {found.badges:,} badges" if found.badges else "")
    if not found.drift:
        return [f"{recounted}: all agree"]
    rows = table("user", "channel", "what differs", "#hot store", "#database")
    for one in found.drift:
        rows.add_row(plain(one.user_id), plain(one.channel_id or ""), one.what, str(one.hot), str(one.durable))
    repairs = "readstate recount USER CHANNEL repairs a count, readstate reconcile all pointers and badges"
    return [rows, "", f"{recounted}: {len(found.drift):,} differ. {repairs}"]
