"""Commands that ask why a count is what it is, and repair it."""

import typer
from rich.table import Table
from rich.text import Text

from readstate import api

from .chat import Channel, User
from .help import examples
from .output import fields, plain, show, show_json
from .place import Json, Place, at_a_place

app = typer.Typer()


@app.command(
    rich_help_panel="Understand it",
    epilog=examples("readstate explain bob general", "readstate explain bob general --json"),
)
@at_a_place
def explain(user: User, channel: Channel, as_json: Json = False, *, place: Place) -> None:
    """Tell why an unread count is what it is."""
    answer = place.call(lambda client: client.explain(user, channel))
    if as_json:
        show_json(answer)
    else:
        show(_sum(answer), "", _circumstances(answer))


@app.command(rich_help_panel="Understand it", epilog=examples("readstate recount bob general"))
@at_a_place
def recount(user: User, channel: Channel, as_json: Json = False, *, place: Place) -> None:
    """Count again from the durable store, and repair what is shown."""
    answer = place.call(lambda client: client.recount(user, channel))
    if as_json:
        show_json(answer)
    elif answer.before == answer.after:
        show(f"{answer.after} unread, as before")
    else:
        show(f"{answer.after} unread; it was {answer.before}")


def _sum(answer: api.Explanation) -> Table:
    """The count as it would be done on paper."""
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
        rows.add_row(Text(f"- {number}", "dim" if number == 0 else ""), Text(reason, "dim" if number == 0 else ""))
    rows.add_row(Text(f"= {answer.unread}", "bold"), Text("unread" if answer.exact else "unread, not exact", "bold"))
    return rows


def _circumstances(answer: api.Explanation) -> Table:
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
