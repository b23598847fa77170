"""Positions in a room by time."""

from readstate.domain.model import Position
from readstate.domain.rooms import channel_and_thread

from .session import Session


async def position_at(session: Session, room: str, time: int) -> Position | None:
    """The newest position at or before a time, by binary search: times follow seqs. None: the room has no messages.

    Messages missing at the start of the room count as older: without one that is old enough, the position before the
    first message, which has no id.
    """
    channel, thread = channel_and_thread(room)
    values: dict[str, object] = {"channel": channel, "thread": thread}
    prefix = "reply_" if thread else ""
    low, high = await session.row(f"{prefix}ends", **values) or (None, None)
    if low is None:
        return None

    async def newest(seq: int) -> Position:
        row = await session.row(f"{prefix}at_or_before", **values, seq=seq)
        assert row is not None
        return Position(*row)

    if ((await newest(low)).at or 0) > time:
        return Position(low - 1, None, None)
    while low < high:
        middle = (low + high + 1) // 2
        found = await newest(middle)
        if (found.at or 0) <= time:
            low = middle
        else:
            high = found.seq - 1
    return await newest(low)
