"""Commands that do what a chat backend does: channels, members, messages, reads and counts."""

from typing import Annotated

import typer
from msgspec import UNSET
from rich.table import Table
from rich.text import Text

from readstate import api
from readstate.domain.model import ChannelType, History, Latest

from .help import examples
from .output import fields, moment, plain, show, show_json, table
from .place import Json, Place, at_a_place

app = typer.Typer()

User = Annotated[str, typer.Argument(help="A user's id.", show_default=False)]
Channel = Annotated[str, typer.Argument(help="A channel's id.", show_default=False)]
Message = Annotated[str, typer.Argument(help="A message's id.", show_default=False)]


@app.command(
    rich_help_panel="Use it",
    epilog=examples(
        "readstate channel general --type channel --name General --member alice --member bob",
        "readstate channel general --name Everybody",
    ),
)
@at_a_place
def channel(
    channel: Channel,
    kind: Annotated[
        ChannelType | None, typer.Option("--type", help="direct, group or channel; a new one needs it.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name that people see.")] = None,
    member: Annotated[list[str] | None, typer.Option(help="A member to add; may be repeated.")] = None,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Create a channel, or change one: what is not given stays."""
    answer = place.call(
        lambda client: client.put_channel(
            channel, type=kind or UNSET, name=UNSET if name is None else name, members=member or ()
        ),
        creates=True,
    )
    if as_json:
        show_json(answer)
        return
    latest = f"{answer.latest.id} (seq {answer.latest.seq})" if answer.latest else "no message yet"
    show(
        fields(
            {
                "channel": answer.channel_id,
                "type": answer.type,
                "name": answer.name or "-",
                "members": answer.member_count,
                "latest": latest,
            }
        )
    )


@app.command(
    rich_help_panel="Use it",
    epilog=examples("readstate join general carol dave", "readstate join general erin --history unread"),
)
@at_a_place
def join(
    channel: Channel,
    users: Annotated[list[str], typer.Argument(help="Users to add.", show_default=False)],
    history: Annotated[
        str,
        typer.Option(help="What of the past is read: read (all), unread (nothing), or a number left unread."),
    ] = "read",
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Add members to a channel."""
    kept = _history(history)
    answer = place.call(lambda client: client.change_members(channel, add=users, history=kept))
    if as_json:
        show_json(answer)
    else:
        show(f"added {answer.added}; {plain(channel)} has {count(answer.member_count, 'member')}")


@app.command(
    rich_help_panel="Use it",
    epilog=examples(
        "readstate send general alice 'hello all'",
        "readstate send general alice '@bob look' --mention bob --id m42",
        "readstate send general deploy-bot 'released' --outside --silent",
    ),
)
@at_a_place
def send(
    channel: Channel,
    sender: Annotated[str, typer.Argument(help="The sender's id.", show_default=False)],
    text: Annotated[str, typer.Argument(help="What it says.", show_default=False)],
    message_id: Annotated[
        str | None, typer.Option("--id", help="The message's id; the same one again is a duplicate.")
    ] = None,
    mention: Annotated[
        list[str] | None, typer.Option(help="A user that it mentions, or @channel; may be repeated.")
    ] = None,
    silent: Annotated[bool, typer.Option("--silent", help="Count it for nobody.")] = False,
    outside: Annotated[bool, typer.Option("--outside", help="The sender need not be a member.")] = False,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Send a message."""
    answer = place.call(
        lambda client: client.send(
            channel, sender, id=message_id, text=text, mentions=mention or (), silent=silent, outside=outside
        )
    )
    if as_json:
        show_json(answer)
    else:
        show(f"{answer.status}: {plain(answer.id)}, seq {'-' if answer.seq is None else answer.seq}")


@app.command(
    rich_help_panel="Use it",
    epilog=examples(
        "readstate read bob general",
        "readstate read bob general --up-to m42",
        "readstate read bob general --up-to-time 2026-11-15T12:00:00Z",
        "readstate read bob general --message m40 --message m42",
    ),
)
@at_a_place
def read(
    user: User,
    channel: Channel,
    up_to: Annotated[str | None, typer.Option(help="Up to this message's id.")] = None,
    up_to_seq: Annotated[int | None, typer.Option(min=0, help="Up to this place in the channel.")] = None,
    up_to_time: Annotated[str | None, typer.Option(help="Up to this time: RFC 3339, or ms since 1970.")] = None,
    message: Annotated[list[str] | None, typer.Option(help="Just this message; may be repeated.")] = None,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Mark as read: everything, up to a message, a place or a time, or single messages."""
    if sum(target is not None for target in (up_to, up_to_seq, up_to_time, message or None)) > 1:
        raise typer.BadParameter("give only one of --up-to, --up-to-seq, --up-to-time and --message")
    answer = place.call(
        lambda client: client.read(
            user, channel, up_to=up_to, up_to_seq=up_to_seq, up_to_time=_time(up_to_time), messages=message or None
        )
    )
    if as_json:
        show_json(answer)
        return
    done = "read up to" if answer.changed else "nothing new; stands at"
    show(f"{done} {_pointer(answer.last_read)}; {answer.unread} unread")


@app.command(
    "mark-unread",
    rich_help_panel="Use it",
    epilog=examples("readstate mark-unread bob general m42"),
)
@at_a_place
def mark_unread(
    user: User,
    channel: Channel,
    message: Message,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Mark a message and every later one by somebody else as unread."""
    answer = place.call(lambda client: client.mark_unread(user, channel, message))
    if as_json:
        show_json(answer)
    else:
        show(f"{answer.unread} unread; stands at {_pointer(answer.last_read)}")


@app.command(
    rich_help_panel="Use it",
    epilog=examples("readstate unread bob", "readstate unread bob general", "readstate unread bob --all --json"),
)
@at_a_place
def unread(
    user: User,
    channel: Annotated[str | None, typer.Argument(help="One channel only.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also the channels without anything unread.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Most channels to list.")] = 100,
    cursor: Annotated[str | None, typer.Option(help="Go on from the cursor of the page before.")] = None,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Show what is unread, in all channels or in one."""
    if channel is not None:
        one = place.call(lambda client: client.unread(user, channel))
        show_json(one) if as_json else show(_one_channel(one))
        return
    page = place.call(lambda client: client.sync(user, only_unread=not everything, limit=limit, cursor=cursor))
    show_json(page) if as_json else show(*_all_channels(user, page))


def _one_channel(answer: api.Unread) -> Table:
    first = answer.first_unread
    return fields(
        {
            "channel": answer.channel_id,
            "unread": Text(_exactly(answer), "bold"),
            "mentions": answer.mentions,
            "first unread": f"{first.id} (seq {first.seq}, {moment(first.at)})" if first else "-",
            "last read": _pointer(answer.last_read),
            "latest": shown(answer.latest),
            "muted": "yes" if answer.muted else "no",
        }
    )


def _all_channels(user: str, answer: api.Sync) -> list[Table | Text | str]:
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
    more = [f"there are more: --cursor {answer.cursor}"] if answer.cursor else []
    return [rows, Text(ending, "bold"), *more]


def _exactly(answer: api.Unread) -> str:
    return str(answer.unread) if answer.exact else f"{answer.unread} ({answer.reason})"


def shown(message: Latest | None) -> str:
    """A channel's latest message in a few words."""
    if message is None:
        return "-"
    what = f"{message.sender_id}: {message.preview}" if message.preview else f"{message.id} by {message.sender_id}"
    return plain(what)


def _pointer(last: api.LastRead) -> str:
    return f"{plain(last.id)} (seq {last.seq})" if last.id else f"seq {last.seq}"


def count(number: int, what: str, many: str | None = None) -> str:
    """A number of things."""
    return f"{number} {what if number == 1 else many or what + 's'}"


def _history(text: str) -> History:
    if text in {"read", "unread"}:
        return text  # type: ignore[return-value]
    if text.isascii() and text.isdigit() and len(text) <= 7:
        return int(text)
    raise typer.BadParameter("history is read, unread, or how many of the last messages are left unread")


def _time(text: str | None) -> api.Time | None:
    return int(text) if text and text.isascii() and text.isdigit() else text
