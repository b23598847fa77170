"""Queries for the reconciler and the auditor, and dead letters.

Dead letters are events that could not be repaired, until an operator retries or drops them.
"""

from collections.abc import Collection, Sequence
from zlib import crc32

from msgspec.json import Decoder

from readstate.domain.events import DeadLetter
from readstate.domain.facts import Key
from readstate.domain.model import Pointer
from readstate.ports import ListedDeadLetter

from . import rows
from .session import Session, SqlTopic, as_json

_listed = Decoder(list[ListedDeadLetter])
_pairs = Decoder(list[tuple[str, str]])


class SqlUpkeep(SqlTopic):
    async def users_after(self, user: str, limit: int) -> list[str]:
        return await self._find(rows.names, "users_after", after=user, limit=limit)

    async def count_users(self) -> int:
        return await self._number("count_users")

    async def channels_after(self, channel: str, limit: int) -> list[str]:
        return await self._find(rows.names, "channels_after", after=channel, limit=limit)

    async def count_channels(self) -> int:
        return await self._number("count_channels")

    async def read_states(self, keys: Sequence[Key]) -> dict[Key, Pointer]:
        wanted = [(channel, user) for user, channel in keys]
        found = await self._find(rows.pointers, "read_states", keys=as_json(wanted))
        return {(user, channel): pointer for channel, user, pointer in found}

    async def some_user_rooms(self, limit: int) -> list[Key]:
        return await self._find(_pairs, "some_user_rooms", limit=limit)

    async def claim_turn(self, name: str, now: int, every: int) -> bool:
        """A turn taken in the future, by a clock that is wrong, blocks no other process."""
        values = {"turn": f"turn:{name}", "now": now, "over": now - every}
        return await self._database.write(lambda session: session.value("claim_turn", **values)) is not None


class SqlDeadLetters(SqlTopic):
    async def put_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        listed = [
            (one.topic, _storable(one.event), _storable(one.error), one.tries, _place(one), one.created_at)
            for one in letters
        ]
        if listed:
            await self._run("put_dead_letters", rows=as_json(listed))

    async def list_dead_letters(self, after: int, limit: int) -> list[ListedDeadLetter]:
        return await self._find(_listed, "dead_letters_after", after=after, limit=limit)

    async def find_dead_letters(self, ids: Collection[int]) -> list[ListedDeadLetter]:
        return await self._find(_listed, "dead_letters", keys=as_json(list(ids)))

    async def drop_dead_letters(self, ids: Collection[int]) -> int:
        return await self._run("drop_dead_letters", keys=as_json(list(ids)))


async def erase_dead_letters(session: Session, user: str) -> None:
    """Remove listed reads and badge events of a user: a later retry would bring back what was erased."""
    reads, badge = as_json({"user_id": user})[1:-1], as_json({"receiver_id": user})[1:-1]
    await session.run("erase_dead_letters", reads=reads, badge=badge)


def _place(letter: DeadLetter) -> str:
    """Partition, offset, perhaps the index in a packed record, and a checksum.

    A topic that was recreated has other events at the same offsets.
    """
    index = f"/{letter.index}" if letter.index >= 0 else ""
    return f"{letter.partition}/{letter.offset}{index}/{crc32(letter.event.encode()):08x}"


def _storable(text: str) -> str:
    """Replace NUL, which no valid event has and PostgreSQL refuses: such a text cannot be retried anyway."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")
