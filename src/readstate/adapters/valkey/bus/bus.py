"""The bus of the cluster profile: Valkey's publish and subscribe, sharded where the server is a Cluster.

There are two channels, `read-pointer:changes` for reads, and one for everything else; what one instance says on
both stays in its order, so in a Cluster both have the same slot. For now every instance hears everything.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import NamedTuple

from redis.crc import key_slot

from readstate.domain.announcements import Announcement, OnAnnouncements, OnGap
from readstate.domain.errors import ConfigurationError
from readstate.tasks import cancel

from .connections import Lines
from .listener import Listener
from .sender import Sender

READS = "read-pointer:changes"
CLOSE_SECONDS = 2.0


class Channels(NamedTuple):
    """The names of the channels."""

    reads: str
    others: str

    @classmethod
    def named(cls, prefix: str, database: int = 0) -> "Channels":
        """Databases of one server share its channels, so the name says which one, unless it is the first."""
        reads = f"{prefix}{READS}" + (f"@{database}" if database else "")
        others = f"{prefix}announcements:{{{reads}}}"
        if key_slot(reads.encode()) != key_slot(others.encode()):
            raise ConfigurationError(
                f"KEY_PREFIX {prefix!r} has braces that are no hash tag: leave them out, or close them around something"
            )
        return cls(reads, others)


class ValkeyBus:
    """Tells the other instances, and hears them.

    Own announcements are handed on at once and don't wait for the server. Nothing fails and nothing blocks when the
    server is gone: what the others miss by that, and what this instance misses, is noticed, and `missed` is called.
    """

    def __init__(self, lines: Lines, channels: Channels, instance_id: str) -> None:
        self._lines = lines
        self.channels = channels
        self._publisher = f"{instance_id}:{secrets.token_hex(4)}"
        self._sender = Sender(lines, self._publisher, *channels)
        self._sending = asyncio.create_task(self._sender.run())
        self._listener: Listener | None = None
        self._listening: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, url: str, *, prefix: str = "", instance_id: str) -> "ValkeyBus":
        """A bus on the server or Cluster of the hot store. It need not be there yet."""
        lines = Lines(url)
        return cls(lines, Channels.named(prefix, lines.database), instance_id)

    def subscribe(self, on_announcements: OnAnnouncements, missed: OnGap, is_idle: Callable[[], bool]) -> None:
        """Who hears from now on what is announced, and is told when something may have been missed.

        `missed` is called at the start too: something may have happened while the connection was made. While it has
        nobody to tell (`is_idle`), as in a worker, the reads of others are not taken apart.
        """
        self._listener = Listener(
            self._lines,
            self.channels,
            self._publisher,
            lambda: self._sender.answered_at,
            on_announcements,
            missed,
            is_idle,
        )
        self._listening = asyncio.create_task(self._listener.run())

    @property
    def idle(self) -> bool:
        """Never: others may have somebody connected, and outside subscribers listen."""
        return False

    @property
    def connected(self) -> bool:
        """Whether this instance reaches the others, and hears them if it wants to."""
        return self._sender.connected and (self._listener is None or self._listener.connected)

    async def publish(self, announcements: Sequence[Announcement]) -> None:
        """Tell what is durable. Never fails, and waits for no server."""
        if not announcements:
            return
        self._sender.put(announcements)
        if self._listener is not None:
            await self._listener.hand_on(announcements)

    async def close(self) -> None:
        """Tell what is still to be told, if that can be done soon, and say farewell."""
        if self._listening is not None:
            await cancel(self._listening)
        self._sender.finish()
        await asyncio.wait([self._sending], timeout=CLOSE_SECONDS)
        await cancel(self._sending)
        await self._lines.close()
