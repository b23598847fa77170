"""The two answers to who else writes to the stores.

`Exclusive`: only this process. Its hot state can be dropped and reloaded at any time, because the log is applied before
a call returns. `Shared`: other processes write too. The hot store may have reads that only the log has so far, so a
reload of one user could lose them for a while.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping

from readstate.batching import Batchers
from readstate.domain.hot_updates import ChannelHotUpdate
from readstate.domain.model import ChangeNumber, Channel, DropNumber, Preferences
from readstate.ports import Hot, HotChannels, HotUsers
from readstate.ports.consistency import C, E, Lookups
from readstate.services.coalesced import CoalescedLookups


class Exclusive:
    """This process has the stores to itself."""

    def generation_to_move_in(self, generation: DropNumber) -> DropNumber | None:
        """Any: a reload finds every acknowledged read."""
        return None

    async def take_back_reads(self, hot: HotUsers, users: Collection[str]) -> None:
        """Drop the users: a reload takes back what was refused, and nothing else."""
        for user in users:
            await hot.forget(user)

    async def before_append(self, event: E, prepare: Callable[[E], Awaitable[E]]) -> E:
        """Append it as it is: the log applies it at once, to the current state, and refuses it with the answer."""
        return event

    async def repair_preferences(
        self, hot: HotUsers, user: str, channel: str, preferences: Preferences, change: ChangeNumber
    ) -> None:
        await hot.forget(user)

    async def forget_to_recount(self, hot: HotUsers, user: str, channel: str) -> None:
        """The whole user, with the pointer."""
        await hot.forget(user)

    async def update_erased_rooms(self, hot: HotChannels, rooms: Collection[Channel]) -> None:
        """Drop them. One log position serves all changes: a hot update would take that of the next event."""
        for room in rooms:
            await hot.forget(room.channel_id)

    async def pass_erased_rooms(self, pass_log: Callable[[], Awaitable[None]]) -> None:
        """Pass the position that the rooms have noted, so that their next change gets a later one."""
        await pass_log()

    async def drop_imported(
        self, hot: Hot, rooms: Mapping[str, int], users: Collection[str], pass_log: Callable[[], Awaitable[None]]
    ) -> None:
        """Drop these rooms and users, and pass the position that the rooms have noted.

        A room that was loaded meanwhile from before the import is dropped once more.
        """
        for name, known in zip(rooms, await hot.channels.channels(list(rooms)), strict=True):
            if known is not None:
                await hot.channels.forget(name)
        for user in users:
            await hot.users.forget(user)
            await hot.badges.forget(user)
        if rooms:
            await pass_log()
        for (name, change), known in zip(rooms.items(), await hot.channels.channels(list(rooms)), strict=True):
            if known is not None and known.change < change:
                await hot.channels.forget(name)

    def lookups(self, direct: Lookups, batchers: Batchers) -> Lookups:
        """One by one: in the memory of this process a call costs next to nothing."""
        return direct

    def live_cursor(self, reached: C, certain: C | None) -> C | None:
        """The newest: announcements take no time."""
        return reached

    def note_rendered(self, rendered: dict[str, int], channel: str, seq: int) -> None:
        """Nothing: a message is announced before anybody can count it."""

    def look_up_late_receipts(self, look_up: Callable[[], None]) -> None:
        """Not needed: reads are stored when they are acknowledged."""


class Shared:
    """Other processes use the same stores."""

    def generation_to_move_in(self, generation: DropNumber) -> DropNumber | None:
        """This one: users loaded in a later generation may lack epochs that only the log has."""
        return generation

    async def take_back_reads(self, hot: HotUsers, users: Collection[str]) -> None:
        """Keep the users: a reload could lack other reads that only the log has, and the next read logs this state."""

    async def before_append(self, event: E, prepare: Callable[[E], Awaitable[E]]) -> E:
        """Prepare it: a caller is answered before it is applied, and the writer may lack what only the log has."""
        return await prepare(event)

    async def repair_preferences(
        self, hot: HotUsers, user: str, channel: str, preferences: Preferences, change: ChangeNumber
    ) -> None:
        """Set them, and keep the user, who may have reads that only the log has."""
        await hot.prefer(user, channel, preferences, change)

    async def forget_to_recount(self, hot: HotUsers, user: str, channel: str) -> None:
        """The ledger, not the pointer: the durable one may lack reads that only the log has."""
        await hot.forget(user, channel)

    async def update_erased_rooms(self, hot: HotChannels, rooms: Collection[Channel]) -> None:
        await hot.apply([ChannelHotUpdate(room, room.change) for room in rooms])

    async def pass_erased_rooms(self, pass_log: Callable[[], Awaitable[None]]) -> None:
        """Nothing: the rooms' change numbers are their own."""

    async def drop_imported(
        self, hot: Hot, rooms: Mapping[str, int], users: Collection[str], pass_log: Callable[[], Awaitable[None]]
    ) -> None:
        """Drop everything: what is loaded instead may lack reads that only the log has.

        Only a new generation is known to be behind.
        """
        if rooms or users:
            await hot.clear()

    def lookups(self, direct: Lookups, batchers: Batchers) -> Lookups:
        """Together: every lookup is a call to a server."""
        return CoalescedLookups(direct, batchers)

    def live_cursor(self, reached: C, certain: C | None) -> C | None:
        """The certain one: a later one would hide what announcements of other processes that are in flight tell."""
        return certain

    def note_rendered(self, rendered: dict[str, int], channel: str, seq: int) -> None:
        """The hot store shows messages of other processes before their announcements arrive.

        A device would count them twice.
        """
        rendered[channel] = max(seq, rendered.get(channel, 0))

    def look_up_late_receipts(self, look_up: Callable[[], None]) -> None:
        """A persister stores reads after they are acknowledged, so the first lookup may not have found all of them."""
        look_up()
