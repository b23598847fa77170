"""The port for the hot state of channels."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from readstate.domain.hot_updates import ChannelHotUpdate
from readstate.domain.model import Channel, DropNumber, Entry, LogPosition

from .users import Count, CountQuery, StoredKey


class TimelineLoad(Struct, frozen=True, gc=False):
    """The newest countable messages of a channel, oldest first."""

    channel_id: str
    change: int
    entries: list[Entry]
    floor: int
    """The newest countable seq that was left out; 0: none was."""


class HotChannels(Protocol):
    """Latest messages and timelines of channels. Atomic per channel. May be lost, and is then reloaded."""

    async def channels(self, ids: Sequence[str]) -> list[Channel | None]:
        """The channels as they are now; None: not loaded."""

    async def apply(self, updates: Sequence[ChannelHotUpdate]) -> None:
        """Apply hot updates in order. Replays change nothing."""

    async def stored(self, channel: str) -> list[StoredKey]:
        """What is kept of the channel, as it is: nothing is loaded, and it may be out of date."""

    async def count(self, queries: Sequence[CountQuery]) -> list[Count | None]:
        """Count unread messages in timelines; None: not loaded."""

    async def generation(self) -> DropNumber:
        """The drop number: it rises with every drop. A load that began before a drop may be stale."""

    async def install(self, channels: Sequence[Channel], generation: DropNumber | None = None) -> bool:
        """Install loaded channels. A channel whose change number is older than the known one is ignored.

        `generation`: the drop number from before the load. False: there was a drop since, so load again.
        """

    async def install_timeline(self, load: TimelineLoad) -> bool:
        """Install a loaded timeline. False: a newer change has been applied since, so load again."""

    async def positions(self) -> tuple[LogPosition, ...]:
        """For each partition of the log, the log position up to which everything is applied."""

    async def forget(self, channel: str) -> None:
        """Drop a channel. It is reloaded on use."""


class AppliedOffsets(Protocol):
    """How far each partition of the log is applied, shared by all processes of a hot store, and lost with it.

    A log position counts events; an offset is Kafka's own number. Both only grow while the hot state lives.
    """

    async def passed(self, applied: Mapping[int, tuple[LogPosition, int]]) -> None:
        """For each partition (log position, next offset): everything before them is applied. Idempotent."""

    async def offsets(self) -> Mapping[int, int]:
        """The next offset of each partition. A partition without an entry is unknown."""
