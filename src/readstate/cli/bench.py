"""`readstate bench`: measures a running service, and checks its counts, with channels and users of its own."""

import asyncio
import math
import re
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import TextColumn

from .commands import LOOK_AFTER, Commands
from .output import INTERRUPTED, note, progress_bar, show, show_json, table
from .target import Json, Target

if TYPE_CHECKING:
    from .bench_data import Report
    from .bench_load import Run

app = Commands(LOOK_AFTER)

MAX_MEMBERS = 1_000_000
PREFIX = re.compile(r"bench-[0-9a-f]{8}")


@app.with_examples(
    "readstate bench",
    "readstate bench --users 1000 --channels 50 --members 200 --seconds 30",
    "readstate bench --url https://chat.example.com --connections 64 --json",
    "readstate bench --remove bench-0c1d2e3f --users 100 --channels 20",
)
def bench(
    users: Annotated[int, typer.Option(min=2, max=100_000, help="Users who read.")] = 100,
    channels: Annotated[int, typer.Option(min=1, max=10_000, help="Channels.")] = 20,
    members: Annotated[
        int, typer.Option(min=3, max=100_000, help="Members of each channel: one writes, the others read.")
    ] = 20,
    seconds: Annotated[float, typer.Option(min=0.1, max=3_600, help="Duration of each of the four phases.")] = 10.0,
    connections: Annotated[
        int, typer.Option(min=1, max=256, help="Concurrent requests, each on its own connection.")
    ] = 16,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Messages or reads in a batch request.")] = 100,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the channels and users, and print their prefix.")] = False,
    remove: Annotated[
        str | None,
        typer.Option(
            metavar="PREFIX",
            help="Measure nothing: remove what an earlier run has left, given its --users and --channels.",
        ),
    ] = None,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Measure a running service over HTTP, and check its counts.

    It creates channels and users of its own, sends messages, reads and syncs as fast as the service answers, compares
    the counts with the expected ones, and removes everything again. This is real load: other requests wait longer, so
    don't run it in production at peak times. Exit code 1 if a count is wrong.

    It runs in one process. If its own CPU is near 100%, it is the limit and the service may be faster: run several at
    once, from other machines.

    The service keeps one small row for each deleted channel: its id and last seq. In the cluster profile users are not
    erased, since each erase waits until the database has all reads; the command says how to do it later (--remove).
    """
    from .bench_data import Dataset
    from .bench_load import Interrupted, Run

    if remove:
        members = 1  # memberships do not matter any more
    _check(users, channels, members, seconds, remove)
    data = Dataset(remove or f"bench-{secrets.token_hex(4)}", users, channels, members)
    bar = progress_bar(TextColumn("{task.fields[said]}"), hidden=as_json)
    run = Run(target, data, seconds, connections, batch, bar)
    try:
        with bar, _on_signals(run.interrupt):
            if remove:
                asyncio.run(run.remove())
            else:
                _measure(run, keep)
        if as_json:
            show_json(data.remaining if remove else run.report)
        elif not remove:
            _show(run.report)
    except (KeyboardInterrupt, Interrupted):
        note("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        if data.remaining.channels or data.remaining.users:
            note(_remaining(run, kept=keep))
    raise typer.Exit(1 if run.report.wrong or run.fault else 0)


def _measure(run: "Run", keep: bool) -> None:
    """In two event loops: whatever ended the first one, the second one cleans up."""
    try:
        asyncio.run(run.measure())
    finally:
        if not keep:
            asyncio.run(run.clean_up(erase=not run.shared))


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
    if channels * members > MAX_MEMBERS:
        raise typer.BadParameter(f"more than {MAX_MEMBERS:,} members in all channels", param_hint="--members")
    if math.isnan(seconds):
        raise typer.BadParameter("not a number", param_hint="--seconds")
    if remove and not PREFIX.fullmatch(remove):
        raise typer.BadParameter(f"{remove!r} is not the prefix of a run", param_hint="--remove")


# ---------------------------------------------------------------- output


def _show(report: "Report") -> None:
    rows = table("what", "#done", "#per second", "#P50 ms", "#P95 ms", "#P99 ms", "#own CPU", "refused")
    for one in report.phases:
        refused = ", ".join(f"{number:,} {code}" for code, number in one.refused.items())
        times = [f"{ms:,.1f}" if ms is not None else "-" for ms in (one.p50_ms, one.p95_ms, one.p99_ms)]
        rows.add_row(one.name, f"{one.done:,}", f"{one.per_second:,.0f}", *times, f"{one.busy:.0%}", refused or "-")
    checked = f"checked {report.checked_counts:,} counts of {report.checked_users:,} users"
    show(rows, "", f"all messages had their seqs {report.counted_after:.1f} s after the last answer")
    if not report.wrong:
        show(f"{checked}: all are right")
        return
    wrong = table("user", "channel", "#must be", "#is", "")
    for bad in report.wrong:
        found = "-" if bad.unread is None else f"{bad.unread:,}"
        wrong.add_row(bad.user_id, bad.channel_id, f"{bad.expected:,}", found, bad.reason or "")
    show(f"{checked}: {len(report.wrong):,} are wrong", "", wrong)


def _remaining(run: "Run", *, kept: bool) -> str:
    data = run.data
    left = f"{data.remaining.channels:,} channels and {data.remaining.users:,} users under {data.prefix}"
    if run.fault:
        text = f"not everything could be removed ({run.fault.detail}): {left} are left. When that is fixed:"
    elif kept:
        text = f"kept: {left}. To remove them:"
    elif run.shared and not data.remaining.channels:
        text = f"{left} are left: erasing takes about a second for each user. To do it:"
    else:
        text = f"{left} are left. To remove them:"
    again = f"readstate bench --remove {data.prefix} --users {len(data.readers)} --channels {len(data.channels)}"
    return f"{text}\n{again}"
