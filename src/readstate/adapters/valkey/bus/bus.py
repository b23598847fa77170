"""The bus of the cluster profile: Valkey's publish and subscribe, sharded where the server is a Cluster.

Reads go to the channel `read-pointer:changes`, everything else to a second channel. Batches of one publisher keep their
order across both, so in a Cluster both channels have the same slot. For now, every instance receives every batch.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import NamedTuple

from redis.crc import key_slot

from readstate.domain.announcements import Announcement, OnAnnouncements, OnGap, PointerMoved
from readstate.domain.errors import ConfigurationError
from readstate.tasks import cancel
from readstate.timings import ValkeyTimings

from .connections import BusServers
from .listener import Listener
from .sender import Sender

READS = "read-pointer:changes"


class Channels(NamedTuple):
    """The names of the two pub/sub channels."""

    reads: str
    others: str

    @classmethod
    def named(cls, prefix: str, database: int = 0) -> "Channels":
        """Databases of one server share its pub/sub channels, so names contain the database, except for the first."""
        reads = f"{prefix}{READS}" + (f"@{database}" if database else "")
        others = f"{prefix}announcements:{{{reads}}}"
        if key_slot(reads.encode()) != key_slot(others.encode()):
            raise ConfigurationError(
                f"KEY_PREFIX {prefix!r} contains braces that do not form a hash tag; remove them or write {{tag}}"
            )
        return cls(reads, others)


class ValkeyBus:
    """Publishes to the other instances and receives what they publish.

    An instance handles its own announcements at once, without a round trip to the server. Nothing fails or blocks while
    the server is down: each subscriber notices what it missed, and calls `missed`.
    """

    def __init__(self, url: str, timings: ValkeyTimings, *, prefix: str = "", instance_id: str) -> None:
        """Use the server or Cluster of the hot store, which may still be down."""
        self._servers = BusServers(url, timings)
        self.channels = Channels.named(prefix, self._servers.database)
        self._sender = Sender(self._servers, f"{instance_id}:{secrets.token_hex(4)}", *self.channels)
        self._sending = asyncio.create_task(self._sender.run())
        self._listener: Listener | None = None
        self._listening: asyncio.Task[None] | None = None

    def subscribe(self, on_announcements: OnAnnouncements, missed: OnGap, is_idle: Callable[[], bool]) -> None:
        """Deliver announcements from now on, and call `missed` when some may have been lost.

        `missed` is also called at the start, because something may have happened while the connection was made. While
        this process holds no devices (`is_idle`), as in a worker, it does not listen to the reads of others.
        """
        self._listener = Listener(self._servers, self.channels, self._sender, on_announcements, missed, is_idle)
        self._listening = asyncio.create_task(self._listener.run())

    async def attend(self) -> None:
        if self._listener is not None:
            await self._listener.attend()

    @property
    def connected(self) -> bool:
        """Whether this instance can publish and, if it has subscribed, receives batches."""
        return self._sender.connected and (self._listener is None or self._listener.connected)

    async def publish(self, announcements: Sequence[Announcement]) -> None:
        if not announcements:
            return
        self._sender.put(announcements)
        if self._listener is not None:
            await self._listener.deliver(announcements)

    async def publish_reads(self, count: int, reads: Callable[[], Sequence[PointerMoved]]) -> None:
        """Other instances may hold devices, and outside subscribers listen: the sender asks for both."""
        if self._listener is not None and not self._listener.is_idle():
            await self.publish(reads())
        else:
            self._sender.put_reads(count, reads)

    async def close(self) -> None:
        """Publish what is queued and a closing batch, within `bus_close`."""
        if self._listening is not None:
            await cancel(self._listening)
        self._sender.finish()
        await asyncio.wait([self._sending], timeout=self._servers.timings.bus_close)
        await cancel(self._sending)
        await self._servers.close()
