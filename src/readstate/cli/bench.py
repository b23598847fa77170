"""`readstate bench`: how fast a running service is, and whether it counts right, with a load made up for it."""

import asyncio
import math
import re
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn

from .bench_load import Interrupted, Report, Run, World
from .help import examples
from .output import console, show, show_json, table
from .place import Json, Place, at_a_place

app = typer.Typer()

MOST_SEATS = 1_000_000
INTERRUPTED = 130
PREFIX = re.compile(r"bench-[0-9a-f]{8}")

HELP = (
    "Measure a running service over HTTP, and check that it counts right.\n\n"
    "It makes channels and users of its own, sends messages, reads and syncs as fast as the service answers, compares "
    "the counts with what it knows, and takes everything away again. That is a load like any other: whoever uses the "
    "service meanwhile waits longer, so not for production at its busiest. Exit code 1 if a count is wrong.\n\n"
    "One process asks. Where its own CPU is near 100%, it is the limit and the service may be faster: run several at "
    "once, from other machines.\n\n"
    "Of a deleted channel the service keeps the id and the last seq for good: one small row for each channel of a run. "
    "In the cluster profile the users are not erased, since each one waits until the database has all reads; "
    "it says how to do it later (--remove)."
)


@app.command(
    rich_help_panel="Look after it",
    help=HELP,
    epilog=examples(
        "readstate bench",
        "readstate bench --users 1000 --channels 50 --members 200 --seconds 30",
        "readstate bench --url https://chat.example.com --connections 64 --json",
        "readstate bench --remove bench-0c1d2e3f --users 100 --channels 20",
    ),
)
@at_a_place
def bench(
    users: Annotated[int, typer.Option(min=2, max=100_000, help="Users who read.")] = 100,
    channels: Annotated[int, typer.Option(min=1, max=10_000, help="Channels.")] = 20,
    members: Annotated[
        int, typer.Option(min=3, max=100_000, help="Members of each channel: one writes, the others read.")
    ] = 20,
    seconds: Annotated[float, typer.Option(min=0.1, max=3_600, help="How long each of the four phases is.")] = 10.0,
    connections: Annotated[
        int, typer.Option(min=1, max=256, help="Requests under way at any time, each on its own connection.")
    ] = 16,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Messages or reads in a request with many.")] = 100,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave channels and users there, and tell their prefix.")
    ] = False,
    remove: Annotated[
        str | None,
        typer.Option(
            metavar="PREFIX",
            help="Measure nothing: take away what an earlier run has left, given its --users and --channels.",
        ),
    ] = None,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Measure a running service over HTTP, and check that it counts right."""
    if remove:
        members = 1  # who was where does not matter any more
    _check(users, channels, members, seconds, remove)
    world = World(remove or f"bench-{secrets.token_hex(4)}", users, channels, members)
    screen = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"))
    bar = Progress(*columns, console=screen, disable=as_json or not screen.is_terminal, transient=True)
    run = Run(place, world, seconds, connections, batch, bar)
    try:
        with bar, _on_signals(run.interrupt):
            if remove:
                asyncio.run(run.remove())
            else:
                _measure(run, keep)
        if as_json:
            show_json(world.left if remove else run.report)
        elif not remove:
            _show(run.report)
    except (KeyboardInterrupt, Interrupted):
        screen.print("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        if world.left.channels or world.left.users:
            screen.print(_what_is_left(run, world, kept=keep), soft_wrap=True)
    raise typer.Exit(1 if run.report.wrong or run.fault else 0)


def _measure(run: Run, keep: bool) -> None:
    """In two loops: whatever has ended the first one, the second one takes away what it made."""
    try:
        asyncio.run(run.measure())
    finally:
        if not keep:
            asyncio.run(run.take_away(erase=not run.shared))


@contextmanager
def _on_signals(handle: Callable[..., None]) -> Iterator[None]:
    before = {sign: signal.signal(sign, handle) for sign in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


def _check(users: int, channels: int, members: int, seconds: float, remove: str | None) -> None:
    if members > users + 1:
        raise typer.BadParameter(f"{members} members need {members - 1} users who read", param_hint="--members")
    if channels * members > MOST_SEATS:
        raise typer.BadParameter(f"more than {MOST_SEATS:,} members in all channels", param_hint="--members")
    if math.isnan(seconds):
        raise typer.BadParameter("not a number", param_hint="--seconds")
    if remove and not PREFIX.fullmatch(remove):
        raise typer.BadParameter(f"{remove!r} is not the prefix of a run", param_hint="--remove")


# ---------------------------------------------------------------- for people


def _show(report: Report) -> None:
    rows = table("what", "#done", "#per second", "#P50 ms", "#P95 ms", "#P99 ms", "#own CPU", "refused")
    for one in report.phases:
        refused = ", ".join(f"{number:,} {code}" for code, number in one.refused.items())
        times = [f"{ms:,.1f}" if ms is not None else "-" for ms in (one.p50_ms, one.p95_ms, one.p99_ms)]
        rows.add_row(one.name, f"{one.done:,}", f"{one.per_second:,.0f}", *times, f"{one.busy:.0%}", refused or "-")
    checked = f"checked {report.checked_counts:,} counts of {report.checked_users:,} users"
    show(rows, "", f"all messages had their place {report.counted_after:.1f} s after the last answer")
    if not report.wrong:
        show(f"{checked}: all are right")
        return
    wrong = table("user", "channel", "#must be", "#is", "")
    for bad in report.wrong:
        found = "-" if bad.unread is None else f"{bad.unread:,}"
        wrong.add_row(bad.user_id, bad.channel_id, f"{bad.expected:,}", found, bad.reason or "")
    show(f"{checked}: {len(report.wrong):,} are wrong", "", wrong)


def _what_is_left(run: Run, world: World, *, kept: bool) -> str:
    left = f"{world.left.channels:,} channels and {world.left.users:,} users under {world.prefix}"
    if run.fault:
        why = f"not all could be taken away ({run.fault.detail}): {left} are left. When that is mended:"
    elif kept:
        why = f"kept: {left}. To take them away:"
    elif run.shared and not world.left.channels:
        why = f"{left} are left: to erase users takes about a second for each. To do it:"
    else:
        why = f"{left} are left. To take them away:"
    again = f"readstate bench --remove {world.prefix} --users {len(world.readers)} --channels {len(world.channels)}"
    return f"{why}\n{again}"
