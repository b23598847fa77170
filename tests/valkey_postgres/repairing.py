"""A chat whose hot store and durable store a test can set apart from each other, over both kinds of stores."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from readstate import Readstate
from readstate.domain.events import ReadEvent
from readstate.domain.model import NO_CHANGE, Pointer, Position, ReadState
from readstate.ports import Read
from tests.contract import valkey

from .on_servers import BIG, FANOUT, SMALL, message, on_servers, two_channels

KINDS = ("memory and SQLite", "Valkey and PostgreSQL")


@asynccontextmanager
async def chat(kind: str, directory: Path) -> AsyncIterator[Readstate]:
    """Two channels, and five messages in each that bob has not read."""
    if kind == KINDS[0]:
        async with Readstate.open(data_dir=str(directory), fanout_max_members=FANOUT) as rs:
            await _five_in_each(rs)
            yield rs
    else:
        async with on_servers(directory, valkey.single().url) as rs:
            await _five_in_each(rs)
            yield rs


async def _five_in_each(rs: Readstate) -> None:
    await two_channels(rs)
    for room in (SMALL, BIG):
        await rs.messages.send([message("alice", f"m{n}", room) for n in range(1, 6)])
        assert (await rs.unread.of_channel("bob", room)).unread == 5


async def place(rs: Readstate, room: str, seq: int) -> Position:
    return (await rs.durable.by_seq([(room, seq)]))[room, seq]


async def read_hot_only(rs: Readstate, room: str, seq: int, apart: tuple[int, ...] = ()) -> None:
    """A read that the hot store took, and that never came to the durable store."""
    to = await place(rs, room, seq) if seq else Position(0, None, None)
    await rs.hot.users.move([Read("bob", room, to, apart)])


async def state_event(rs: Readstate, room: str, seq: int, apart: tuple[int, ...] = (), epoch: int = 0) -> ReadEvent:
    now = rs.clock()
    to = await place(rs, room, seq) if seq else Position(0, None, None)
    return ReadEvent("bob", room, epoch, seq, apart, to.id, to.at, now, NO_CHANGE, now)


async def read_durable_only(rs: Readstate, room: str, seq: int, apart: tuple[int, ...] = ()) -> None:
    """A read that the durable store has, and that the hot store was never told of."""
    await rs.durable.merge([await state_event(rs, room, seq, apart)])


async def durable_state(rs: Readstate, room: str, user: str = "bob") -> ReadState:
    return (await rs.durable.read_states([(user, room)])).get((user, room), Pointer()).state


async def hot_state(rs: Readstate, room: str, user: str = "bob") -> ReadState:
    pointers = await rs.hot.users.pointers(user)
    assert pointers is not None
    return pointers[room].state
