"""Positions of messages. A position never changes once it is assigned, so it can be cached."""

from collections.abc import Collection, Sequence
from typing import TypeVar

from readstate.domain.model import Message, Position
from readstate.ports import DurableQueries, Log

K = TypeVar("K")

MAX_REMEMBERED = 50_000
WITHOUT_SEQ = Position(-1, None, None)
"""The position of a message that has no seq in its channel."""


class Positions:
    """Finds positions by id or by seq, and caches the latest ones."""

    def __init__(self, durable: DurableQueries, log: Log) -> None:
        self._durable = durable
        self._log = log
        self._by_id: dict[tuple[str, str], Position] = {}
        self._by_seq: dict[tuple[str, int], Position] = {}

    async def by_id(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Position]:
        """Positions of existing messages, by (channel, id)."""
        found = {key: known for key in keys if (known := self._by_id.get(key)) is not None}
        missing = [key for key in keys if key not in found]
        if missing:
            for key, message in (await self.messages(missing)).items():
                found[key] = self.learn(message)
        return found

    async def messages(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Message]:
        """Existing messages, also deleted ones, by (channel, id). Waits for those that are still in the log."""
        found = await self._durable.by_id(keys)
        missing = [key for key in keys if key not in found]
        if missing and await self._log.settled({channel for channel, _ in missing}):
            found |= await self._durable.by_id(missing)
        return {key: message for key, message in found.items() if message.sender_id}

    async def by_seq(self, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Position]:
        """Positions by (channel, seq), for seqs that were assigned."""
        found = {key: known for key in keys if (known := self._by_seq.get(key)) is not None}
        missing = [key for key in keys if key not in found]
        if missing:
            stored = await self._durable.by_seq(missing)
            for key in missing:
                found[key] = self._by_seq[key] = stored.get(key) or Position(key[1], None, None)
            self._by_seq = _bounded(self._by_seq)
        return found

    def learn(self, message: Message) -> Position:
        self._by_id = _bounded(self._by_id)
        self._by_seq = _bounded(self._by_seq)
        position = WITHOUT_SEQ if message.seq is None else Position(message.seq, message.id, message.at)
        self._by_id[message.channel_id, message.id] = position
        if message.seq is not None:
            self._by_seq[message.channel_id, message.seq] = position
        return position

    def forget(self, channels: Collection[str]) -> None:
        """For deleted or replaced channels: their message ids may be reused."""
        self._by_id = {key: position for key, position in self._by_id.items() if key[0] not in channels}
        self._by_seq = {key: position for key, position in self._by_seq.items() if key[0] not in channels}


def _bounded(positions: dict[K, Position]) -> dict[K, Position]:
    """Evicts the older half of too many."""
    if len(positions) <= MAX_REMEMBERED:
        return positions
    return dict(list(positions.items())[len(positions) // 2 :])
