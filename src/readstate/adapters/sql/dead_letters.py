"""Dead letters in SQL: events that could not be repaired, until somebody has dealt with them."""

from collections.abc import Collection, Sequence
from zlib import crc32

import msgspec

from readstate.domain.events import DeadLetter
from readstate.ports.upkeep import ListedDeadLetter

from .session import Database, Session, as_json

_listed = msgspec.json.Decoder(list[ListedDeadLetter])


class SqlDeadLetters:
    """The list of dead letters."""

    _database: Database

    async def put_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """List events; one that is listed already stays as it is."""
        rows = [
            (one.topic, _storable(one.event), _storable(one.error), one.tries, _place(one), one.created_at)
            for one in letters
        ]
        if rows:
            await self._database.write(lambda session: session.run("put_dead_letters", rows=as_json(rows)))

    async def list_dead_letters(self, after: int, limit: int) -> list[ListedDeadLetter]:
        """A page of them, in the order in which they were listed."""
        return _listed.decode(await self._database.value("dead_letters_after", after=after, limit=limit))

    async def find_dead_letters(self, ids: Collection[int]) -> list[ListedDeadLetter]:
        """Those of these that are there, in the same order."""
        return _listed.decode(await self._database.value("dead_letters", keys=as_json(list(ids))))

    async def drop_dead_letters(self, ids: Collection[int]) -> int:
        """They are dealt with; how many there were."""
        return await self._database.write(lambda session: session.run("drop_dead_letters", keys=as_json(list(ids))))


async def erase_dead_letters(session: Session, user: str) -> None:
    """Remove what is listed of a user's reads and badge: played again later, it would bring back what was erased."""
    reads, badge = as_json({"user_id": user})[1:-1], as_json({"receiver_id": user})[1:-1]
    await session.run("erase_dead_letters", reads=reads, badge=badge)


def _place(letter: DeadLetter) -> str:
    """Where it stood. With a sum of the event: a topic that was made anew has the same places for other events."""
    return f"{letter.partition}/{letter.offset}/{crc32(letter.event.encode()):08x}"


def _storable(text: str) -> str:
    """No event has a NUL, and PostgreSQL takes none: whatever this was, it can't be played again anyway."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")
