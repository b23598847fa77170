"""Commands that explain a count and repair it."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from .chat import Channel, User
from .commands import UNDERSTAND, Commands
from .output import fields, plain, present
from .target import Json, Target

if TYPE_CHECKING:
    from readstate import api

app = Commands(UNDERSTAND)


Keys = Annotated[bool, typer.Option("--keys", help="Also show what the hot store has of them, key by key.")]


@app.with_examples(
    "readstate explain bob general",
    "readstate explain bob general --keys",
    "readstate explain bob general --json",
)
def explain(user: User, channel: Channel, keys: Keys = False, as_json: Json = False, *, target: Target) -> None:
    """Show how an unread count is made up."""
    answer = target.call(lambda client: client.explain(user, channel, keys=keys or None))
    stored = [part for key in answer.keys or () for part in ("", *_key(key))]
    if keys and not stored:
        stored = ["", "the hot store had nothing of them"]
    present(answer, as_json, _sum(answer), "", _circumstances(answer), *stored)


@app.with_examples("readstate recount bob general")
def recount(user: User, channel: Channel, as_json: Json = False, *, target: Target) -> None:
    """Count again from the durable store, and correct the shown count."""
    answer = target.call(lambda client: client.recount(user, channel))
    changed = "as before" if answer.before == answer.after else f"was {answer.before}"
    present(answer, as_json, f"{answer.after} unread, {changed}")


def _sum(answer: "api.Explanation") -> Table:
    """The count as a sum on paper."""
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_column(justify="right")
    rows.add_column()
    rows.add_row(str(answer.after_pointer), f"messages after seq {answer.pointer.seq}")
    reasons = {
        "by the user": answer.minus.own,
        "deleted": answer.minus.deleted,
        "silent": answer.minus.silent,
        "read one by one": answer.minus.read_apart,
    }
    for reason, number in reasons.items():
        style = "" if number else "dim"
        rows.add_row(Text(f"- {number}", style), Text(reason, style))
    rows.add_row(Text(f"= {answer.unread}", "bold"), Text("unread" if answer.exact else "unread, not exact", "bold"))
    return rows


def _key(key: "api.HotKey") -> tuple[Text, Table]:
    expires = "does not expire" if key.expires_in is None else f"expires in {key.expires_in:,.0f} s"
    return Text(f"{plain(key.key)} ({expires})", "bold"), fields(dict(key.facts))


def _circumstances(answer: "api.Explanation") -> Table:
    pointer = answer.pointer
    agrees = Text("yes", "green") if answer.agrees else Text("no: readstate recount repairs it", "bold red")
    return fields(
        {
            "pointer": f"{plain(pointer.id) or '-'} (seq {pointer.seq}, epoch {pointer.epoch})",
            "joined after seq": answer.joined_seq,
            "latest seq": answer.latest_seq,
            "counted by": answer.mode,
            "answered by": answer.answered_by,
            "hot store": answer.hot,
            "durable store": answer.durable,
            "both agree": agrees,
        }
    )
