"""Commands that do what a chat backend does: channels, members, messages, reads and counts."""

from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import UNSET
from rich.table import Table
from rich.text import Text

from readstate.domain.model import ChannelType, History, Latest

from .commands import USE, Commands
from .output import fields, plain, present, table, utc
from .target import Json, Target

if TYPE_CHECKING:
    from readstate import api

app = Commands(USE)

User = Annotated[str, typer.Argument(help="A user's id.", show_default=False)]
Channel = Annotated[str, typer.Argument(help="A channel's id.", show_default=False)]
Message = Annotated[str, typer.Argument(help="A message's id.", show_default=False)]
Cursor = Annotated[str | None, typer.Option(help="The cursor of the previous page.")]


@app.with_examples(
    "readstate channel general --type channel --name General --member alice --member bob",
    "readstate channel general --name Everybody",
)
def channel(
    channel: Channel,
    kind: Annotated[
        ChannelType | None, typer.Option("--type", help="direct, group or channel; required for a new one.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name that people see.")] = None,
    member: Annotated[list[str] | None, typer.Option(help="A member to add; may be repeated.")] = None,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Create a channel, or change the given properties of one."""
    answer = target.call(
        lambda client: client.put_channel(
            channel, type=kind or UNSET, name=UNSET if name is None else name, members=member or ()
        ),
        creates=True,
    )
    rows: dict[str, object] = {
        "channel": answer.channel_id,
        "type": answer.type,
        "name": answer.name or "-",
        "members": answer.member_count,
        "latest": f"{answer.latest.id} (seq {answer.latest.seq})" if answer.latest else "no message yet",
    }
    present(answer, as_json, fields(rows))


@app.with_examples("readstate join general carol dave", "readstate join general erin --history unread")
def join(
    channel: Channel,
    users: Annotated[list[str], typer.Argument(help="Users to add.", show_default=False)],
    history: Annotated[
        str,
        typer.Option(help="Earlier messages: read (all are), unread (none is), or how many of the last stay unread."),
    ] = "read",
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Add members to a channel."""
    kept = _history(history)
    answer = target.call(lambda client: client.change_members(channel, add=users, history=kept))
    members = count(answer.member_count, "member")
    present(answer, as_json, f"added {answer.added}; {plain(channel)} has {members}")


@app.with_examples(
    "readstate send general alice 'hello all'",
    "readstate send general alice '@bob look' --mention bob --id m42",
    "readstate send general deploy-bot 'released' --outside --silent",
)
def send(
    channel: Channel,
    sender: Annotated[str, typer.Argument(help="The sender's id.", show_default=False)],
    text: Annotated[str, typer.Argument(help="The message's text.", show_default=False)],
    message_id: Annotated[
        str | None, typer.Option("--id", help="The message's id; a second message with it is a duplicate.")
    ] = None,
    mention: Annotated[list[str] | None, typer.Option(help="A mentioned user, or @channel; may be repeated.")] = None,
    silent: Annotated[bool, typer.Option("--silent", help="Count it as unread for nobody.")] = False,
    outside: Annotated[bool, typer.Option("--outside", help="Allow a sender who is not a member.")] = False,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Send a message."""
    answer = target.call(
        lambda client: client.send(
            channel, sender, id=message_id, text=text, mentions=mention or (), silent=silent, outside=outside
        )
    )
    seq = "-" if answer.seq is None else answer.seq
    present(answer, as_json, f"{answer.status}: {plain(answer.id)}, seq {seq}")


@app.with_examples(
    "readstate read bob general",
    "readstate read bob general --up-to m42",
    "readstate read bob general --up-to-time 2026-11-15T12:00:00Z",
    "readstate read bob general --message m40 --message m42",
)
def read(
    user: User,
    channel: Channel,
    up_to: Annotated[str | None, typer.Option(help="Up to this message's id.")] = None,
    up_to_seq: Annotated[int | None, typer.Option(min=0, help="Up to this seq.")] = None,
    up_to_time: Annotated[str | None, typer.Option(help="Up to this time: RFC 3339, or ms since 1970.")] = None,
    message: Annotated[list[str] | None, typer.Option(help="Only this message; may be repeated.")] = None,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Mark as read: everything, up to a message, a seq or a time, or single messages."""
    if sum(one is not None for one in (up_to, up_to_seq, up_to_time, message or None)) > 1:
        raise typer.BadParameter("give only one of --up-to, --up-to-seq, --up-to-time and --message")
    answer = target.call(
        lambda client: client.read(
            user, channel, up_to=up_to, up_to_seq=up_to_seq, up_to_time=_time(up_to_time), messages=message or None
        )
    )
    done = "read up to" if answer.changed else "nothing new; read up to"
    present(answer, as_json, f"{done} {_pointer(answer.last_read)}; {answer.unread} unread")


@app.with_examples("readstate mark-unread bob general m42", name="mark-unread")
def mark_unread(user: User, channel: Channel, message: Message, as_json: Json = False, *, target: Target) -> None:
    """Mark a message and all later ones by others as unread."""
    answer = target.call(lambda client: client.mark_unread(user, channel, message))
    present(answer, as_json, f"{answer.unread} unread; read up to {_pointer(answer.last_read)}")


@app.with_examples("readstate unread bob", "readstate unread bob general", "readstate unread bob --all --json")
def unread(
    user: User,
    channel: Annotated[str | None, typer.Argument(help="One channel only.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also channels without unread messages.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Most channels to list.")] = 100,
    cursor: Cursor = None,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Show unread counts, of all channels or of one."""
    if channel is not None:
        one = target.call(lambda client: client.unread(user, channel))
        present(one, as_json, _one_channel(one))
        return
    page = target.call(lambda client: client.sync(user, only_unread=not everything, limit=limit, cursor=cursor))
    present(page, as_json, *_all_channels(user, page))


def _one_channel(answer: "api.Unread") -> Table:
    first = answer.first_unread
    return fields(
        {
            "channel": answer.channel_id,
            "unread": Text(_exactly(answer), "bold"),
            "mentions": answer.mentions,
            "first unread": f"{first.id} (seq {first.seq}, {utc(first.at)})" if first else "-",
            "last read": _pointer(answer.last_read),
            "latest": shown(answer.latest),
            "muted": "yes" if answer.muted else "no",
        }
    )


def _all_channels(user: str, answer: "api.Sync") -> list[Table | Text | str]:
    if not answer.channels:
        return [f"{plain(user)} has nothing unread"]
    rows = table("channel", "#unread", "#mentions", "first unread", "latest", "muted")
    for one in answer.channels:
        rows.add_row(
            plain(one.channel_id),
            _exactly(one),
            str(one.mentions),
            plain(one.first_unread.id) if one.first_unread else "-",
            shown(one.latest),
            "muted" if one.muted else "",
        )
    sums = answer.totals
    ending = f"{sums.unread} unread and {count(sums.mentions, 'mention')} in {count(sums.channels, 'channel')}"
    return [rows, Text(ending, "bold"), *more(answer.cursor)]


def _exactly(answer: "api.Unread") -> str:
    return str(answer.unread) if answer.exact else f"{answer.unread} ({answer.reason})"


def shown(message: Latest | None) -> str:
    """A channel's latest message in a few words."""
    if message is None:
        return "-"
    text = f"{message.sender_id}: {message.preview}" if message.preview else f"{message.id} by {message.sender_id}"
    return plain(text)


def more(cursor: str | None) -> list[str]:
    return [f"there are more: --cursor {cursor}"] if cursor else []


def _pointer(last: "api.LastRead") -> str:
    return f"{plain(last.id)} (seq {last.seq})" if last.id else f"seq {last.seq}"


def count(number: int, what: str, many: str | None = None) -> str:
    return f"{number} {what if number == 1 else many or what + 's'}"


def _history(text: str) -> History:
    if text in {"read", "unread"}:
        return text  # type: ignore[return-value]
    if text.isascii() and text.isdigit() and len(text) <= 7:
        return int(text)
    raise typer.BadParameter("history is read, unread, or how many of the last messages stay unread")


def _time(text: str | None) -> "api.Time | None":
    return int(text) if text and text.isascii() and text.isdigit() else text
