"""The log in SQL. Events of channels are applied in one transaction: new ones are folded, replays change nothing.

The transaction also stores, per partition, up to where the log is applied. An event below that offset is a replay. Its
effect is rebuilt from stored rows, because the first attempt may have failed after its commit.

A partition that has lost its tail uses its offsets again, for new events. Leader epochs show that; a new base then
keeps log positions growing.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import structlog
from msgspec.structs import replace

from readstate.domain.events import Delivery, EditEvent, MembersEvent, MessageEvent
from readstate.domain.facts import Effect, Facts, FactsNeeded, Key, audience, facts_needed, more_facts_needed, runs
from readstate.domain.folding.messages import fold
from readstate.domain.folding.replays import facts_needed_by_replays, is_delete, repeat
from readstate.domain.hot_updates import OwnRead
from readstate.domain.model import Away, LogPosition, Mode
from readstate.ports import NOTHING_COMPLETE, Online, Present

from . import rows
from .gathering import gather, store
from .session import Session, SqlTopic, as_json, ask
from .users import erased_at

log = structlog.get_logger()

Offset = tuple[int, int]
"""(partition, offset) of a log."""


class End(NamedTuple):
    """Up to where a partition of a log is applied."""

    base: int
    """Added to an offset to get a log position that no event of an earlier log has."""
    position: LogPosition
    epoch: int = -1
    """The leader epoch of the last event; -1: not known."""

    @property
    def offset(self) -> int:
        """The next offset."""
        return self.position - self.base

    def contradicts(self, delivery: Delivery) -> bool:
        """Whether an event shows that the log has lost its tail since.

        Leader epochs never fall within a partition. So an event at an applied offset has at most the epoch of the last
        event, and an event after the last one has at least that epoch.
        """
        if self.epoch < 0 or delivery.epoch < 0:
            return False
        return delivery.epoch > self.epoch if delivery.position < self.offset else delivery.epoch < self.epoch

    def cut(self, offset: int) -> "End":
        """The same log position with a new base: the event at this offset gets the next position."""
        return End(self.position - offset, self.position, self.epoch)

    def position_of(self, delivery: Delivery) -> LogPosition:
        """The log position of an event, which has its offset."""
        return LogPosition(self.base + delivery.position + 1)

    def moved(self, delivery: Delivery) -> "End":
        return End(self.base, self.position_of(delivery), delivery.epoch)


def ends_of(text: str) -> dict[int, End]:
    return {part: End(*end) for part, *end in rows.anything.decode(text)}


class SqlLog(SqlTopic):
    keeps_badge: bool
    """Whether the store decides and keeps who was away when a message came."""

    async def apply(
        self,
        deliveries: Sequence[Delivery],
        online: Online,
        source: str = "",
        complete: Mapping[int, LogPosition] = NOTHING_COMPLETE,
    ) -> list[Effect]:
        async def work(session: Session) -> list[Effect]:
            applying = _Applying(session, self._fanout_max_members, online, self.keeps_badge)
            return await (applying.apply_shared(deliveries, source, complete) if source else applying.apply(deliveries))

        return await self._database.write(work)

    async def positions(self, source: str) -> dict[int, tuple[LogPosition, int]]:
        ends = ends_of(await self._database.value("log_positions", source=source))
        return {part: (end.position, end.offset) for part, end in ends.items()}

    async def cut(self, source: str, part: int, end: int, known: tuple[LogPosition, int]) -> bool:
        position, offset = known
        return await self._run("cut_log_position", source=source, part=part, offset=end, base=position - offset) > 0

    async def last_position(self) -> LogPosition:
        return LogPosition(await self._number("last_position"))

    async def note_spool(self, name: str, until: int) -> None:
        await self._run("note_spool", spool=name, until=until)

    async def drop_spool(self, name: str) -> None:
        await self._run("drop_spool", spool=name)

    async def spools(self, now: int) -> int:
        return await self._number("spools", now=now)


class _Applying:
    def __init__(self, session: Session, limit: int, online: Online, keeps_badge: bool) -> None:
        self._session = session
        self._keeps_badge = keeps_badge
        self._limit = limit
        self._online = online
        self._connected: list[list[str]] = []
        """For each applied event of a shared log, the receivers with a connection."""

    async def apply(self, deliveries: Sequence[Delivery]) -> list[Effect]:
        """Apply new events, each with its log position."""
        effects: list[Effect] = []
        parts = [(run, facts_needed(run)) for run in runs(deliveries)]
        await self._lock(deliveries, [needed for _, needed in parts])
        for run, needed in parts:
            facts = await self._facts(run, needed)
            users = audience(run, facts)
            online = await self._online(users) if users else None
            changes, outcome = fold(run, facts, self._limit, () if online is None else online, self._keeps_badge)
            await store(self._session, changes)
            if run[0].part >= 0:
                self._connected += [_connected(effect, online) for effect in outcome]
            effects += outcome
        return effects

    async def apply_shared(
        self, deliveries: Sequence[Delivery], source: str, complete: Mapping[int, LogPosition]
    ) -> list[Effect]:
        """Apply events of a log that other processes read too: some may be replays."""
        before = await self._ends(source, {one.part for one in deliveries})
        ends, positions, is_new = _positioned(deliveries, before)
        again = [one for one, new in zip(deliveries, is_new, strict=True) if not new]
        new = [(one, position) for one, position, new in zip(deliveries, positions, is_new, strict=True) if new]
        reached = await self._reached(source, again)
        repeated = iter(await self._repeat(again, reached))
        applied = iter(await self._apply_living([replace(one, position=position) for one, position in new]))
        effects = [next(applied if new else repeated) for new in is_new]
        for effect, position in zip(effects, positions, strict=True):
            effect.position = position
        if moved := sorted({one.part for one, _ in new}):
            connected: dict[int, list[tuple[int, str]]] = defaultdict(list)
            for (part, offset), users in reached.items():
                if before[part].base != ends[part].base:
                    connected[part] += [(offset, user) for user in users]
            for (one, _), users in zip(new, self._connected, strict=True):
                connected[one.part] += [(one.position, user) for user in users]
            applied_to = [
                (part, *ends[part], connected[part], _kept_from(before[part], ends[part], complete.get(part)))
                for part in moved
            ]
            await self._session.run("move_log_positions", source=source, positions=as_json(applied_to))
        return effects

    async def _ends(self, source: str, parts: Collection[int]) -> dict[int, End]:
        """Where the log stands. Locks these partitions for other processes until the transaction ends."""
        wanted = {"source": source, "parts": as_json(sorted(parts))}
        ends = ends_of(await self._session.value("begin_log_positions", **wanted))
        if len(ends) < len(parts):
            await self._session.run("open_log_positions", **wanted)
            ends = ends_of(await self._session.value("begin_log_positions", **wanted))
        return ends

    async def _lock(self, deliveries: Sequence[Delivery], needed: Sequence[FactsNeeded]) -> None:
        user_rooms = {key for one in needed for key in one.members | one.pointers} if len(needed) > 1 else ()
        await self._session.lock({delivery.event.channel_id for delivery in deliveries}, user_rooms)

    async def _facts(self, run: Sequence[Delivery], needed: FactsNeeded) -> Facts:
        facts = Facts()
        await gather(self._session, needed, facts)
        await gather(self._session, more_facts_needed(run, facts), facts)
        return facts

    # ------------------------------------------------------------ replays

    async def _reached(self, source: str, deliveries: Sequence[Delivery]) -> defaultdict[Offset, list[str]]:
        """The users who had a connection when these replays were first stored: tracking of deliveries to them may be
        missing.

        They are kept until the message writer calls the batch complete (`complete` of `apply`), so of two batches at
        most: a writer stores a batch while the one before is incomplete, and no other.
        """
        reached: defaultdict[Offset, list[str]] = defaultdict(list)
        if not deliveries:
            return reached
        offsets = {(one.part, one.position) for one in deliveries}
        parts = as_json(sorted({part for part, _ in offsets}))
        for part, offset, user in rows.anything.decode(
            await self._session.value("reached_in", source=source, parts=parts)
        ):
            if (part, offset) in offsets:
                reached[part, offset].append(user)
        return reached

    async def _repeat(self, deliveries: Sequence[Delivery], reached: Mapping[Offset, Sequence[str]]) -> list[Effect]:
        if not deliveries:
            return []
        needed = facts_needed(deliveries)
        await self._session.lock({delivery.event.channel_id for delivery in deliveries})
        facts = await self._facts(deliveries, needed)
        facts.once_named = await self._once_named(deliveries)
        deleted = {one.event.channel_id for one in deliveries if is_delete(one.event)}
        facts.gone = dict(await ask(self._session, rows.anything, "gone", deleted))
        facts.audience |= await self._outgrown(deliveries, facts)
        await gather(self._session, facts_needed_by_replays(deliveries, facts), facts)
        return repeat(deliveries, facts, await self._away(deliveries, reached), reached)

    async def _once_named(self, deliveries: Sequence[Delivery]) -> dict[Key, set[str]]:
        keys = [(one.event.channel_id, one.event.id) for one in deliveries if isinstance(one.event, EditEvent)]
        named: dict[Key, set[str]] = {}
        for channel, message, user in await ask(self._session, rows.anything, "once_named", keys):
            named.setdefault((channel, message), set()).add(user)
        return named

    async def _away(self, deliveries: Sequence[Delivery], reached: Mapping[Offset, Sequence[str]]) -> dict[Key, Away]:
        """By message: the receivers who were away, and those of `reached` whom it did not reach after all."""
        keys, late = [], []
        for one in deliveries:
            if isinstance(event := one.event, MessageEvent):
                key = event.channel_id, event.id
                keys.append(key)
                users = reached.get((one.part, one.position), ())
                late += [(user, event.created_at, event.sender_id, *key) for user in users]
        away: dict[Key, Away] = {}
        for channel, message, sender, accepted_at, receivers in await ask(
            self._session, rows.anything, "away_of", keys
        ):
            away[channel, message] = Away(channel, message, sender, accepted_at, tuple(receivers))
        for user, accepted_at, sender, channel, message in await ask(
            self._session, rows.anything, "undelivered_of", late
        ):
            known = away.get((channel, message)) or Away(channel, message, sender, accepted_at, ())
            away[channel, message] = replace(known, receivers=(*known.receivers, user))
        return away

    async def _outgrown(self, deliveries: Sequence[Delivery], facts: Facts) -> dict[str, tuple[str, ...]]:
        """The members of channels that one of these joins may have taken over the fan-out limit.

        Such a channel had at most the limit plus the joiners then; a channel with more members outgrew the limit
        before.
        """
        found: dict[str, tuple[str, ...]] = {}
        for one in deliveries:
            event = one.event
            channel = facts.channels.get(event.channel_id)
            if channel is None or channel.mode is not Mode.TIMELINE:
                continue
            if isinstance(event, MembersEvent) and event.thread_id is None and event.add:
                most = self._limit + len(event.add)
                values = {"channel": event.channel_id, "at": event.created_at, "limit": most + 1}
                users = rows.anything.decode(await self._session.value("members_until", **values))
                if len(users) <= most:
                    found[event.channel_id] = tuple(users)
        return found

    # ------------------------------------------------------------ erased users

    async def _apply_living(self, deliveries: Sequence[Delivery]) -> list[Effect]:
        """Events that were in flight when a user was erased bring nothing of the user back."""
        times = await erased_at(self._session, _named(deliveries))
        if not times:
            return await self.apply(deliveries)
        effects = await self.apply([_without(one, times) for one in deliveries])
        gone = {
            (one.event.channel_id, one.event.sender_id)
            for one in deliveries
            if isinstance(one.event, MessageEvent) and one.event.created_at <= times.get(one.event.sender_id, -1)
        }
        for channel, user in sorted(gone):
            await self._session.run("drop_receipt", channel=channel, user=user)
        for effect in effects:
            effect.user_updates = [
                update
                for update in effect.user_updates
                if not (isinstance(update, OwnRead) and (update.channel_id, update.user_id) in gone)
            ]
        return effects


def _connected(effect: Effect, online: Present | None) -> list[str]:
    if online is None:
        return []
    return [one.receiver_id for one in effect.reached if online.is_connected(one.receiver_id)]


def _positioned(
    deliveries: Sequence[Delivery], ends: Mapping[int, End]
) -> tuple[dict[int, End], list[LogPosition], list[bool]]:
    """The end of each partition after these events, the log position of each event, and whether the event is new."""
    now, positions, is_new = dict(ends), [], []
    for one in deliveries:
        end = now[one.part]
        if end.contradicts(one):
            facts = {"part": one.part, "end": one.position, "applied": end.offset}
            log.warning("a partition has lost its tail; its offsets are reused", action="write", **facts)
            end = now[one.part] = end.cut(one.position)
        positions.append(end.position_of(one))
        is_new.append(one.position >= end.offset)
        if is_new[-1]:
            now[one.part] = end.moved(one)
    return now, positions, is_new


def _kept_from(before: End, after: End, complete: LogPosition | None) -> int:
    """The offset from which on the receivers of earlier batches are kept.

    What was noted under another base is dropped: its offsets are those of other events now.
    """
    if before.base != after.base:
        return after.offset
    return 0 if complete is None else max(0, complete - before.base)


def _named(deliveries: Sequence[Delivery]) -> set[str]:
    users: set[str] = set()
    for one in deliveries:
        if isinstance(one.event, MembersEvent):
            users.update(one.event.add)
        elif isinstance(one.event, MessageEvent):
            users.update({one.event.sender_id, *one.event.mentions})
    return users


def _without(delivery: Delivery, times: dict[str, int]) -> Delivery:
    event = delivery.event
    gone = {user for user, at in times.items() if event.created_at <= at}
    if isinstance(event, MembersEvent):
        event = replace(event, add=tuple(user for user in event.add if user not in gone))
    elif isinstance(event, MessageEvent):
        event = replace(event, mentions=tuple(user for user in event.mentions if user not in gone))
    return replace(delivery, event=event)
