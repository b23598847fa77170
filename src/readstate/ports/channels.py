"""The hot state of channels."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from readstate.domain.hot_updates import ChannelHotUpdate
from readstate.domain.model import Channel, Entry, Position, ReadState


class Count(Struct, frozen=True, gc=False):
    """What is unread in a timeline channel for a user."""

    count: int
    mentions: int
    first: Position | None
    capped: bool
    sure: bool = True
    """False: the newest message that was let go is one that the user has read, so perhaps all of them are."""


class CountQuery(Struct, frozen=True, gc=False):
    """A user's state, as counting needs it."""

    user_id: str
    channel_id: str
    state: ReadState
    named: tuple[int, ...] = ()
    """Unread messages that name the user."""


class TimelineLoad(Struct, frozen=True, gc=False):
    """The last countable messages of a channel, oldest first."""

    channel_id: str
    change: int
    entries: list[Entry]
    floor: int
    """The newest countable seq that is not among them; 0: none was left out."""


class HotChannels(Protocol):
    """Latest messages and timelines of channels. Atomic per channel; loaded again when lost."""

    async def channels(self, ids: Sequence[str]) -> list[Channel | None]:
        """Channels as they stand; None: not loaded."""

    async def apply(self, updates: Sequence[ChannelHotUpdate]) -> None:
        """Take what happened in channels, in order. A repeat does nothing."""

    async def count(self, queries: Sequence[CountQuery]) -> list[Count | None]:
        """Count timelines; None: not loaded."""

    async def generation(self) -> int:
        """Changes whenever something was dropped: a load that began before it may be too old."""

    async def install(self, channels: Sequence[Channel], generation: int | None = None) -> bool:
        """Take loaded channels; an older change number than the one known is ignored.

        False if the generation, as it was before they were loaded, has passed: load again.
        """

    async def install_timeline(self, load: TimelineLoad) -> bool:
        """Take a loaded timeline; False if a newer change has passed: load again."""

    async def positions(self) -> tuple[int, ...]:
        """Where in each part of the log everything is applied up to."""

    async def forget(self, channel: str) -> None:
        """Drop a channel; loaded again on use."""


class AppliedOffsets(Protocol):
    """Up to where a log with several parts is applied, for processes that share the hot state. Lost with the rest.

    A position counts events, an offset is the log's own number. Both only grow while the hot state lives.
    """

    async def passed(self, places: Mapping[int, tuple[int, int]]) -> None:
        """For each part of the log: (position, next offset). Everything before them is applied. Safe to repeat."""

    async def offsets(self) -> Mapping[int, int]:
        """The next offset in each part; a part that is not in it is not known."""
