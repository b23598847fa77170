"""Positions of messages. A position never changes once it is assigned, so it can be cached."""

from collections.abc import Collection, Sequence

from readstate.domain.announcements import Announcement, MessageCame
from readstate.domain.model import Message, Position
from readstate.ports import DurableQueries, Log

MAX_REMEMBERED = 100_000
WITHOUT_SEQ = Position(-1, None, None)
"""The position of a message that has no seq in its channel."""


class Positions:
    """Finds positions by id or by seq, and caches the latest ones."""

    def __init__(self, durable: DurableQueries, log: Log) -> None:
        self._durable = durable
        self._log = log
        self._known: dict[tuple[str, str | int], Position] = {}
        """By (channel, id) and by (channel, seq)."""

    def known(self, channel: str, name: str | int) -> Position | None:
        """The position of a message by its id or seq, if it is cached and has a seq."""
        found = self._known.get((channel, name))
        return None if found is WITHOUT_SEQ else found

    async def by_id(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Position]:
        """Positions of existing messages, by (channel, id)."""
        found = {key: known for key in keys if (known := self._known.get(key)) is not None}
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
        found = {key: known for key in keys if (known := self._known.get(key)) is not None}
        if len(found) < len(keys) and (missing := [key for key in keys if key not in found]):
            stored = await self._durable.by_seq(missing)
            for key in missing:
                found[key] = self._remember(key, stored.get(key) or Position(key[1], None, None))
        return found

    def learn(self, message: Message) -> Position:
        position = WITHOUT_SEQ if message.seq is None else Position(message.seq, message.id, message.at)
        if message.seq is not None:
            self._remember((message.channel_id, message.seq), position)
        return self._remember((message.channel_id, message.id), position)

    def on_announcements(self, announcements: Sequence[Announcement]) -> None:
        """Learn the positions of new messages: devices are about to read up to them."""
        for one in announcements:
            if isinstance(one, MessageCame):
                self.learn(one.message)

    def _remember(self, key: tuple[str, str | int], position: Position) -> Position:
        if len(self._known) >= MAX_REMEMBERED:  # evict the older half
            self._known = dict(list(self._known.items())[len(self._known) // 2 :])
        self._known[key] = position
        return position

    def forget(self, channels: Collection[str]) -> None:
        """For deleted or replaced channels: their message ids may be reused."""
        self._known = {key: position for key, position in self._known.items() if key[0] not in channels}
