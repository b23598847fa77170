"""What differs between a process that has its stores to itself and one of many that share them.

Each method is one decision, named for its effect. Services call it and know no profile.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeVar

from readstate.batching import Batchers
from readstate.domain.events import AnyChannelEvent
from readstate.domain.model import ChangeNumber, Channel, DropNumber, Preferences

from . import Hot
from .channels import HotChannels
from .users import Count, CountQuery, HotUsers

E = TypeVar("E", bound=AnyChannelEvent)
C = TypeVar("C")


class Lookups(Protocol):
    """Looks up channels and counts, in the hot store or else in the durable one."""

    async def channel(self, id_: str) -> Channel:
        """Raises ChannelNotFound."""

    async def channels(self, ids: Sequence[str]) -> list[Channel | None]:
        """None for channels that do not exist."""

    async def counts(self, queries: Sequence[CountQuery]) -> Sequence[Count]:
        """Counts of timeline channels."""

    async def close(self) -> None:
        """Finish the lookups in flight."""


class Consistency(Protocol):
    """Chosen by the profile: see `profiles/consistency.py`."""

    def generation_to_move_in(self, generation: DropNumber) -> DropNumber | None:
        """The generation that users must be loaded in for their pointers to move; None: any."""

    async def take_back_reads(self, hot: HotUsers, users: Collection[str]) -> None:
        """The log has refused reads of these users that the hot state shows already."""

    async def before_append(self, event: E, prepare: Callable[[E], Awaitable[E]]) -> E:
        """Check and complete an event before it goes to the log. `prepare` raises, or returns what to append."""

    async def repair_preferences(
        self, hot: HotUsers, user: str, channel: str, preferences: Preferences, change: ChangeNumber
    ) -> None:
        """The preferences in the hot state may differ from these durable ones. Newer ones than `change` stay."""

    async def forget_to_recount(self, hot: HotUsers, user: str, channel: str) -> None:
        """Drop what a recount of a user room has to load again."""

    async def update_erased_rooms(self, hot: HotChannels, rooms: Collection[Channel]) -> None:
        """Rooms have changed without an event of the log: a member was erased."""

    async def pass_erased_rooms(self, pass_log: Callable[[], Awaitable[None]]) -> None:
        """Runs after the hot state has dropped an erased user. `pass_log` takes a position in the log."""

    async def drop_imported(
        self, hot: Hot, rooms: Mapping[str, int], users: Collection[str], pass_log: Callable[[], Awaitable[None]]
    ) -> None:
        """Drop hot state that an import has made stale. `rooms`: their change numbers after the import."""

    def lookups(self, direct: Lookups, batchers: Batchers) -> Lookups:
        """How requests that need one channel or one count look it up."""

    def live_cursor(self, reached: C, certain: C | None) -> C | None:
        """The cursor of a live event, for a device that resumes. Everything up to `reached` that is known was sent.

        `certain`: the newest cursor from before every announcement that may be in flight; None: there is none.
        """

    def note_rendered(self, rendered: dict[str, int], channel: str, seq: int) -> None:
        """Counts were sent that may include messages of a channel up to `seq`.

        What is noted in `rendered` is counted again when that message is announced.
        """

    def look_up_late_receipts(self, look_up: Callable[[], None]) -> None:
        """A device has caught up. `look_up` looks for more receipts some seconds later."""
