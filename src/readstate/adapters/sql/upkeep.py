"""Queries for the reconciler and the auditor: pages of everything, samples, and turns."""

from collections.abc import Sequence

import msgspec

from readstate.domain.facts import Key
from readstate.domain.model import Pointer

from .session import Database, as_json

_names = msgspec.json.Decoder(list[str])
_pairs = msgspec.json.Decoder(list[tuple[str, str]])
_pointers = msgspec.json.Decoder(list[tuple[str, str, Pointer]])


class SqlUpkeep:
    _database: Database

    async def users_after(self, user: str, limit: int) -> list[str]:
        return _names.decode(await self._database.value("users_after", after=user, limit=limit))

    async def count_users(self) -> int:
        count: int = await self._database.value("count_users")
        return count

    async def channels_after(self, channel: str, limit: int) -> list[str]:
        return _names.decode(await self._database.value("channels_after", after=channel, limit=limit))

    async def count_channels(self) -> int:
        count: int = await self._database.value("count_channels")
        return count

    async def read_states(self, keys: Sequence[Key]) -> dict[Key, Pointer]:
        wanted = [(channel, user) for user, channel in keys]
        rows = _pointers.decode(await self._database.value("read_states", keys=as_json(wanted)))
        return {(user, channel): pointer for channel, user, pointer in rows}

    async def some_user_rooms(self, limit: int) -> list[Key]:
        return _pairs.decode(await self._database.value("some_seats", limit=limit))

    async def claim_turn(self, name: str, now: int, every: int) -> bool:
        """A turn taken in the future, by a clock that is wrong, blocks no other process."""
        values = {"turn": f"turn:{name}", "now": now, "over": now - every}
        return await self._database.write(lambda session: session.value("claim_turn", **values)) is not None
