"""Commands that show what a person sees: the inbox, the badge, threads, and who has seen a message."""

from typing import Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text

from readstate import api

from .chat import Channel, Message, User, count, shown
from .help import examples
from .output import fields, moment, plain, show, show_json, table
from .place import Json, Place, at_a_place

app = typer.Typer()

Limit = Annotated[int, typer.Option(min=1, help="Most rows to list.")]
Cursor = Annotated[str | None, typer.Option(help="Go on from the cursor of the page before.")]


@app.command(
    rich_help_panel="Use it",
    epilog=examples(
        "readstate inbox bob",
        "readstate inbox bob --order unread_first --limit 5",
        "readstate inbox bob --filter archived",
    ),
)
@at_a_place
def inbox(
    user: User,
    order: Annotated[
        Literal["recent", "unread_first"], typer.Option(help="By latest activity, or unread ones first.")
    ] = "recent",
    only: Annotated[
        Literal["all", "unread", "archived"], typer.Option("--filter", help="Which conversations.")
    ] = "all",
    limit: Limit = 20,
    cursor: Cursor = None,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Show a user's conversations by latest activity, pinned ones first."""
    page = place.call(lambda client: client.inbox(user, order=order, filter=only, limit=limit, cursor=cursor))
    if as_json:
        show_json(page)
    elif not page.conversations:
        show(f"{plain(user)} has no {'' if only == 'all' else only + ' '}conversations{' left' if cursor else ''}")
    else:
        show(_conversations(page), *_more(page.cursor))


@app.command(rich_help_panel="Use it", epilog=examples("readstate badge bob", "readstate badge bob --tap"))
@at_a_place
def badge(
    user: User,
    tap: Annotated[
        bool, typer.Option("--tap", help="Show what they wrote and set the badge to 0; nothing is marked read.")
    ] = False,
    cursor: Annotated[
        str | None, typer.Option("--cursor", help="With --tap: more of what the tap of that answer showed.")
    ] = None,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Show how many different people wrote while a user was away."""
    if cursor is not None and not tap:
        raise typer.BadParameter("goes with --tap", param_hint="--cursor")
    if tap:
        tapped = place.call(lambda client: client.tap(user, cursor=cursor))
        show_json(tapped) if as_json else show(*_tapped(user, tapped), *_more(tapped.cursor))
        return
    answer = place.call(lambda client: client.badge(user))
    if as_json:
        show_json(answer)
        return
    since = "" if answer.since is None else f" since {moment(answer.since)}"
    show(f"{count(answer.senders, 'person', 'people')} wrote to {plain(user)} while away{since}")


@app.command(
    rich_help_panel="Use it",
    epilog=examples("readstate threads bob", "readstate threads bob --filter unread --channel general"),
)
@at_a_place
def threads(
    user: User,
    only: Annotated[Literal["all", "unread"], typer.Option("--filter", help="Which threads.")] = "all",
    channel: Annotated[str | None, typer.Option(help="Those of one channel only.")] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Show the threads that a user follows, by latest activity."""
    page = place.call(lambda client: client.threads(user, filter=only, channel=channel, limit=limit, cursor=cursor))
    if as_json:
        show_json(page)
        return
    sums = page.totals
    ending = f"{count(sums.unread, 'unread reply', 'unread replies')} in {count(sums.threads, 'thread')}"
    if not page.threads:
        which = "follows no threads" if only == "all" else "has no unread threads"
        show(f"{plain(user)} {which}{' here' if channel is not None else ''}")
    else:
        show(_threads(page), Text(ending, "bold"), *_more(page.cursor))


@app.command(rich_help_panel="Use it", epilog=examples("readstate seen general m42"))
@at_a_place
def seen(channel: Channel, message: Message, as_json: Json = False, *, place: Place) -> None:
    """Show who has seen a message, out of the members other than its sender."""
    answer = place.call(lambda client: client.seen(channel, message))
    if as_json:
        show_json(answer)
        return
    show(Text(f"seen by {answer.count} of {answer.of}", "bold"))
    if answer.users:
        show(fields({reader.user_id: moment(reader.read_at) for reader in answer.users}))


def _conversations(page: api.Inbox) -> Table:
    rows = table("channel", "name", "#unread", "#mentions", "last message", "at", "")
    for row in page.conversations:
        marks = [word for word, on in (("pinned", row.pinned), ("muted", row.muted)) if on]
        rows.add_row(
            plain(row.channel_id),
            plain(row.name or row.peer_id) or "-",
            row.label or ("•" if row.has_unread else "0"),
            str(row.mentions),
            shown(row.last_message),
            moment(row.last_message.at if row.last_message else None),
            ", ".join(marks),
        )
    return rows


def _threads(page: api.Threads) -> Table:
    rows = table("channel", "thread", "#unread", "latest reply", "at")
    for row in page.threads:
        rows.add_row(
            plain(row.channel_id),
            plain(row.thread_id),
            row.label or "0",
            shown(row.latest),
            moment(row.latest.at if row.latest else None),
        )
    return rows


def _tapped(user: str, tap: api.Tap) -> list[Table | Text | str]:
    if not tap.by_sender:
        return [f"nobody wrote to {plain(user)} while away"]
    rows = table("sender", "channel", "message", "at", "text")
    for one in tap.by_sender:
        for message in one.messages:
            text = "(deleted)" if message.deleted else plain(message.preview or message.text) or "-"
            rows.add_row(plain(one.sender_id), plain(message.channel_id), plain(message.id), moment(message.at), text)
    return [rows, Text(f"{count(tap.senders, 'person', 'people')}; the badge is 0 now", "bold")]


def _more(cursor: str | None) -> list[str]:
    return [f"there are more: --cursor {cursor}"] if cursor else []
