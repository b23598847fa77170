"""What every part of the hot state works with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from readstate.ports import Clock
from readstate.timings import ValkeyTimings

from .client import Call, ValkeyClient
from .commands import Word
from .functions import COMMAND, Function
from .generation import Generation
from .keys import slot_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    client: ValkeyClient
    generation: Generation
    clock: Clock
    timings: ValkeyTimings
    prefix: str
    unread_cap: int
    ttl_ms: int
    """After this time without use, keys expire."""

    def time(self) -> tuple[int, int]:
        """Now and the expiry (both in ms), as functions receive them."""
        return self.clock(), self.ttl_ms

    async def one(self, function: Function, keys: Sequence[str | bytes], *arguments: Word) -> Any:
        """Run a function once. All keys must be in one slot."""
        return (await self.client.run(function, [Call(slot_of(keys[0]), keys, arguments)])).values[0]

    async def command(self, key: str, *command: Word) -> Any:
        return await self.one(COMMAND, [key], *command)
