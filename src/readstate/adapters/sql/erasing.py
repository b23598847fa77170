"""Erasure of a user in SQL: everything but the messages."""

from msgspec.json import Decoder
from msgspec.structs import replace

from readstate.api import Erased
from readstate.domain.model import LogPosition
from readstate.domain.rooms import channel_and_thread, is_thread
from readstate.transfer.records import ErasedRows

from . import rows
from .import_facts import known_rooms
from .importing import put_rooms, with_peers
from .session import Session, SqlTopic
from .upkeep import erase_dead_letters
from .users import hash_of

ON_THE_WAY_MS = 4 * 24 * 3600 * 1000
"""No event is in flight for this long: the log keeps events for two days."""

_flags = Decoder(list[tuple[str, int]])


class SqlErase(SqlTopic):
    async def erase(self, user: str, on_the_way: int | None = None) -> ErasedRows:
        async def work(session: Session) -> ErasedRows:
            if on_the_way is not None:
                await session.run("erase_reached", user=user)  # first: `apply_shared` locks these rows first too
                await session.run("round_erased", before=on_the_way - ON_THE_WAY_MS)
                await session.run("expire_erased", before=on_the_way - ON_THE_WAY_MS)
                await session.run("note_erased", hash=hash_of(user), at=on_the_way)
            return await _erase(session, user)

        return await self._database.write(work)


async def _erase(session: Session, user: str) -> ErasedRows:
    user_rooms = _flags.decode(await session.value("rooms_of", user=user))
    channels = {channel_and_thread(room)[0] for room, _ in user_rooms}
    await session.lock(channels, [(room, user) for room, _ in user_rooms])
    user_rooms = _flags.decode(await session.value("rooms_of", user=user))
    receivers = rows.names.decode(await session.value("badges_with", user=user))
    position: LogPosition = await session.value("next_position")
    await session.run("erase_activity", user=user)  # first: a tap locks it before `lock_taps` too
    await session.lock_taps()
    counts = {
        part: await session.run(f"erase_{part}", user=user)
        for part in ("away_sets", "members", "receipts", "undo", "undelivered", "once_named")
    }
    await erase_dead_letters(session, user)
    names = {room for room, active in user_rooms if active}
    rooms = await known_rooms(session, names)
    for name in names:
        room = rooms[name]
        rooms[name] = await with_peers(session, replace(room, member_count=max(room.member_count - 1, 0)))
    await put_rooms(session, names, rooms, position)
    threads = sum(is_thread(room) for room, _ in user_rooms)
    erased = Erased(len(user_rooms) - threads, threads, counts["receipts"], counts["undelivered"])
    return ErasedRows(erased, {name: rooms[name] for name in sorted(names)}, receivers)
