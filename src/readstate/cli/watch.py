"""`readstate watch`: a user's events as they come."""

import asyncio
from contextlib import suppress
from typing import Annotated

import typer

from readstate.domain.rules import check_user_id

from .chat import User
from .commands import UNDERSTAND, Commands
from .target import Json, Target

app = Commands(UNDERSTAND)


@app.with_examples(
    "readstate watch bob",
    "readstate watch bob --only message.new --only badge.updated",
    "readstate watch bob --json --count 1",
    "readstate watch bob --since zzZUTpShc88AAAABAAAADAXPAAABoeH5F5w",
)
def watch(
    user: User,
    only: Annotated[
        list[str] | None, typer.Option(help="Only events of this type, such as message.new; may be repeated.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Begin with what happened since this cursor: a resume, or a sync.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="End after this many events.")] = None,
    device: Annotated[str, typer.Option(help="With a user's token: the id of this device.")] = "readstate watch",
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Print a user's events as they come, until Ctrl+C.

    With the service key it only observes: the user does not appear online. With a user's token it is one of the user's
    devices. It reconnects by itself and then prints what it missed. With --json each event is one line, as the service
    sent it.
    """
    from .watching import ME, STYLES, EventStream, print_events, say

    for name in only or ():
        if name not in STYLES:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(STYLES)}", param_hint="--only")
    stream = EventStream(target, user if user == ME else check_user_id(user), device, since)
    with suppress(KeyboardInterrupt):  # the usual end
        asyncio.run(print_events(stream, only, count, as_json=as_json))
    if not as_json and stream.resume:
        say(f"to continue from here: --since {stream.resume}")
