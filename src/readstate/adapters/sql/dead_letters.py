"""Dead letters in SQL: events that could not be repaired, until an operator retries or drops them."""

from collections.abc import Collection, Sequence
from zlib import crc32

from msgspec.json import Decoder

from readstate.domain.events import DeadLetter
from readstate.ports.upkeep import ListedDeadLetter

from .session import Session, SqlTopic, as_json

_listed = Decoder(list[ListedDeadLetter])


class SqlDeadLetters(SqlTopic):
    async def put_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        rows = [
            (one.topic, _storable(one.event), _storable(one.error), one.tries, _place(one), one.created_at)
            for one in letters
        ]
        if rows:
            await self._run("put_dead_letters", rows=as_json(rows))

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
    """Partition, offset and a checksum: a topic that was recreated has other events at the same offsets."""
    return f"{letter.partition}/{letter.offset}/{crc32(letter.event.encode()):08x}"


def _storable(text: str) -> str:
    """Replace NUL, which no valid event has and PostgreSQL refuses: such a text cannot be retried anyway."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")
