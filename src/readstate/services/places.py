"""Where messages stand. A place never changes once it is given, so it may be remembered."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from ..model import Message, Position
from ..ports import DurableQueries

K = TypeVar("K")

MAX_REMEMBERED = 50_000
WITHOUT_SEQ = Position(-1, None, None)
"""The place of a message that has none in its channel."""


class Places:
    """Finds places by id or by seq; remembers the last ones that were asked for or given."""

    def __init__(self, durable: DurableQueries) -> None:
        self._durable = durable
        self._by_id: dict[tuple[str, str], Position] = {}
        self._by_seq: dict[tuple[str, int], Position] = {}

    async def by_id(self, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Position]:
        """Places of the messages that exist, by (channel, id)."""
        known = self._by_id
        missing = [key for key in keys if key not in known]
        if missing:
            for message in (await self._durable.by_id(missing)).values():
                if message.sender_id:
                    self.learn(message)
        return known

    async def by_seq(self, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Position]:
        """Places by (channel, seq), for seqs that were given."""
        known = self._by_seq
        missing = [key for key in keys if key not in known]
        if missing:
            found = await self._durable.by_seq(missing)
            for key in missing:
                known[key] = found.get(key) or Position(key[1], None, None)
        return known

    def learn(self, message: Message) -> None:
        """Remember where a message stands."""
        if len(self._by_id) > MAX_REMEMBERED:
            self._by_id = _newer_half(self._by_id)
        if len(self._by_seq) > MAX_REMEMBERED:
            self._by_seq = _newer_half(self._by_seq)
        if message.seq is None:
            self._by_id[message.channel_id, message.id] = WITHOUT_SEQ
            return
        place = Position(message.seq, message.id, message.at)
        self._by_id[message.channel_id, message.id] = place
        self._by_seq[message.channel_id, message.seq] = place

    def forget(self, channel: str) -> None:
        """The channel is deleted: its ids may be given again."""
        self._by_id = {key: place for key, place in self._by_id.items() if key[0] != channel}
        self._by_seq = {key: place for key, place in self._by_seq.items() if key[0] != channel}


def _newer_half(places: dict[K, Position]) -> dict[K, Position]:
    return dict(list(places.items())[len(places) // 2 :])
