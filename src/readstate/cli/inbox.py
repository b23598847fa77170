"""Commands that show what a person sees: the inbox, the badge, threads, and who has seen a message."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text

from .chat import Channel, Cursor, Message, User, count, more, shown
from .commands import USE, Commands
from .output import fields, plain, present, table, utc
from .target import Json, Target

if TYPE_CHECKING:
    from readstate import api

app = Commands(USE)

Limit = Annotated[int, typer.Option(min=1, help="Most rows to list.")]


@app.with_examples(
    "readstate inbox bob",
    "readstate inbox bob --order unread_first --limit 5",
    "readstate inbox bob --filter archived",
)
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
    target: Target,
) -> None:
    """Show a user's conversations by latest activity, pinned ones first."""
    page = target.call(lambda client: client.inbox(user, order=order, filter=only, limit=limit, cursor=cursor))
    which = "" if only == "all" else f"{only} "
    empty = f"{plain(user)} has no {'more ' if cursor else ''}{which}conversations"
    present(page, as_json, *([_conversations(page), *more(page.cursor)] if page.conversations else [empty]))


@app.with_examples("readstate badge bob", "readstate badge bob --tap")
def badge(
    user: User,
    tap: Annotated[
        bool, typer.Option("--tap", help="Show what they wrote and set the badge to 0; nothing is marked read.")
    ] = False,
    cursor: Annotated[
        str | None, typer.Option("--cursor", help="With --tap: the cursor of that tap's previous page.")
    ] = None,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Show how many different people wrote while a user was away."""
    if cursor is not None and not tap:
        raise typer.BadParameter("goes with --tap", param_hint="--cursor")
    if tap:
        tapped = target.call(lambda client: client.tap(user, cursor=cursor))
        present(tapped, as_json, *_tapped(user, tapped), *more(tapped.cursor))
        return
    answer = target.call(lambda client: client.badge(user))
    since = "" if answer.since is None else f" since {utc(answer.since)}"
    people = count(answer.senders, "person", "people")
    present(answer, as_json, f"{people} wrote to {plain(user)} while away{since}")


@app.with_examples("readstate threads bob", "readstate threads bob --filter unread --channel general")
def threads(
    user: User,
    only: Annotated[Literal["all", "unread"], typer.Option("--filter", help="Which threads.")] = "all",
    channel: Annotated[str | None, typer.Option(help="Those of one channel only.")] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Show the threads that a user follows, by latest activity."""
    page = target.call(lambda client: client.threads(user, filter=only, channel=channel, limit=limit, cursor=cursor))
    if not page.threads:
        which = "follows no threads" if only == "all" else "has no unread threads"
        present(page, as_json, f"{plain(user)} {which}{' here' if channel is not None else ''}")
        return
    sums = page.totals
    ending = f"{count(sums.unread, 'unread reply', 'unread replies')} in {count(sums.threads, 'thread')}"
    present(page, as_json, _threads(page), Text(ending, "bold"), *more(page.cursor))


@app.with_examples("readstate seen general m42")
def seen(channel: Channel, message: Message, as_json: Json = False, *, target: Target) -> None:
    """Show which members other than its sender have seen a message."""
    answer = target.call(lambda client: client.seen(channel, message))
    readers = [fields({reader.user_id: utc(reader.read_at) for reader in answer.users})] if answer.users else []
    present(answer, as_json, Text(f"seen by {answer.count} of {answer.of}", "bold"), *readers)


def _conversations(page: "api.Inbox") -> Table:
    rows = table("channel", "name", "#unread", "#mentions", "last message", "at", "")
    for row in page.conversations:
        marks = [word for word, on in (("pinned", row.pinned), ("muted", row.muted)) if on]
        rows.add_row(
            plain(row.channel_id),
            plain(row.name or row.peer_id) or "-",
            row.label or ("•" if row.has_unread else "0"),
            str(row.mentions),
            shown(row.last_message),
            utc(row.last_message.at if row.last_message else None),
            ", ".join(marks),
        )
    return rows


def _threads(page: "api.Threads") -> Table:
    rows = table("channel", "thread", "#unread", "latest reply", "at")
    for row in page.threads:
        rows.add_row(
            plain(row.channel_id),
            plain(row.thread_id),
            row.label or "0",
            shown(row.latest),
            utc(row.latest.at if row.latest else None),
        )
    return rows


def _tapped(user: str, tap: "api.Tap") -> list[Table | Text | str]:
    if not tap.by_sender:
        return [f"nobody wrote to {plain(user)} while away"]
    rows = table("sender", "channel", "message", "at", "text")
    for one in tap.by_sender:
        for message in one.messages:
            text = "(deleted)" if message.deleted else plain(message.preview or message.text) or "-"
            rows.add_row(plain(one.sender_id), plain(message.channel_id), plain(message.id), utc(message.at), text)
    return [rows, Text(f"{count(tap.senders, 'person', 'people')}; the badge is 0 now", "bold")]
