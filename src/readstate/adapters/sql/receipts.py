"""Who has read what, in SQL."""

from collections.abc import Sequence

from msgspec.json import Decoder

from readstate.domain.facts import Key
from readstate.domain.model import Position, Reading, SeenPosition
from readstate.domain.rules import receipt_seq, seen_position

from . import rows
from .session import SqlTopic, as_json

_readings = Decoder(list[Reading])


class SqlReceipts(SqlTopic):
    async def readers(self, channel: str) -> list[Reading]:
        return await self._find(_readings, "readers", channel=channel)

    async def seen_count(self, channel: str, sender: str, seq: int) -> int:
        return await self._number("seen_count", channel=channel, sender=sender, seq=seq)

    async def public_readers(self, keys: Sequence[Key]) -> dict[Key, tuple[tuple[int, int], ...]]:
        found = await self._find(rows.anything, "public_readers", keys=as_json(keys))
        return {(user, channel): tuple((a, b) for a, b in skipped) for user, channel, skipped in found}

    async def receipts_since(self, user: str, since: int, most_members: int, limit: int) -> list[SeenPosition] | None:
        values = {"user": user, "since": since, "most": most_members, "limit": limit + 1}
        found = await self._find(rows.anything, "receipts_since", **values)
        if len(found) > limit:
            return None
        return [
            seen_position(reader, channel, Position(seq, id_, None), read_at, skipped)
            for channel, reader, seq, id_, read_at, skipped in found
            if receipt_seq(seq, skipped) or not seq  # who only joined has read nothing
        ]

    async def cut_skipped(self, user: str, channel: str, seq: int) -> None:
        await self._run("cut_skipped", user, user=user, channel=channel, seq=seq)
