"""Channels in Valkey: the state of all channels in 1,024 hashes (shards), and a timeline for each large channel.

A loaded channel is installed only if its shard was not emptied since the load was validated: the shard's witness must
be the same. A loaded timeline is installed only if its channel is there and is not newer. So a server that is emptied
at any time, without notice, loses state but never receives older state.
"""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from readstate.domain.hot_updates import ChannelHotUpdate
from readstate.domain.model import NO_POSITION, Channel, DropNumber, Entry, LogPosition, Mode, Position
from readstate.ports import Count, CountQuery, StoredKey, TimelineLoad

from . import Backend, Call, slot_of
from .channel_values import decode_channel, encode_channel
from .commands import encode
from .functions import Function
from .groups import Packed, all_or_reload, chunks, once_or_reload, run_for_each, run_grouped
from .keys import ChannelKeys, shard_of
from .stored import StoredKeys

MAX_READ = 5_000
"""Channels that one call reads: a few ms of server time."""
MAX_UPDATES = 500
MAX_INSTALLED = 2_000
MAX_QUERIES = 500
"""Queries in one call. A run of messages read apart and a mention each count as one more."""
MAX_STAGED = 5_000
DROPS_PER_GENERATION: Final = 2**32

READ, FORGET, DROP = Function("channel_read"), Function("channel_forget"), Function("channel_drop")
ANNOUNCE, INSTALL = Function("channel_announce"), Function("channel_install")
APPLY = Function("channel_apply")
COUNT, STAGE = Function("timeline_count"), Function("timeline_stage")
INSTALL_TIMELINE = Function("timeline_install")
PASS, READ_POSITIONS = Function("positions_pass"), Function("positions_read")


# ---------------------------------------------------------------- hot updates and counts as arguments

_TimelineUpdate = tuple[int, int, int, str, int, int]


class _Changed(NamedTuple):
    """One channel's newest state, and the hot updates of its timeline."""

    channel: Channel
    updates: list[_TimelineUpdate]


def _member(entry: Entry) -> str:
    """A message in a timeline. It contains the time, so that a position needs no lookup."""
    return f"{entry.at}:{entry.id}"


def _fold(updates: Sequence[ChannelHotUpdate]) -> list[_Changed]:
    """Per channel, the newest state and the hot updates of the timeline, in order.

    A channel that is counted by ledgers has no timeline and never had one.
    """
    changed: dict[str, _Changed] = {}
    for update in updates:
        channel = update.channel
        known = changed.get(channel.channel_id) or _Changed(channel, [])
        newest = channel if channel.change >= known.channel.change else known.channel
        changed[channel.channel_id] = _Changed(newest, known.updates)
        if channel.mode is Mode.TIMELINE or channel.deleted:
            put = update.put
            placed = (0, "", 0) if put is None else (put.seq, _member(put), int(put.mention))
            known.updates.append((update.change, int(channel.deleted or update.reload), *placed, update.remove))
    return list(changed.values())


class _Answer(Struct, frozen=True, gc=False, array_like=True):
    count: int
    mentions: int
    floor: int
    first_seq: int
    first_member: str


_decode_answers = msgspec.msgpack.Decoder(list[list[_Answer] | bool]).decode
_Query = tuple[int, list[int], list[int]]
"""The seq of the pointer, runs of seqs read apart, and seqs that mention the user."""


class _Asked(NamedTuple):
    """Queries about one channel."""

    channel: str
    indexes: Sequence[int]
    """Of the queries, in the caller's list."""
    queries: list[_Query]


def _query(query: CountQuery) -> _Query:
    state = query.state
    named = list({seq for seq in query.named if seq not in state.apart})
    return state.seq, _runs(seq for seq in state.apart if seq > state.seq), named


def _runs(seqs: Iterable[int]) -> list[int]:
    """Seqs as runs: low, high, low, high and so on. Messages read one by one are mostly adjacent."""
    runs: list[int] = []
    for seq in sorted(seqs):
        if runs and runs[-1] == seq - 1:
            runs[-1] = seq
        else:
            runs += (seq, seq)
    return runs


def _count(query: CountQuery, answer: _Answer) -> Count:
    first = None
    if answer.first_seq:
        at, _, id_ = answer.first_member.partition(":")
        first = Position(answer.first_seq, id_, int(at))
    capped = query.state.seq < answer.floor
    return Count(answer.count, answer.mentions, first, capped, answer.floor not in query.state.apart)


# ---------------------------------------------------------------- the adapters


class ValkeyChannels(ABC):
    """Implements `HotChannels`, except for what depends on whether other processes use the hot store too."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._client = backend.client
        self._generation = backend.generation
        self._keys = ChannelKeys(backend.prefix)

    @abstractmethod
    async def positions(self) -> tuple[LogPosition, ...]:
        """As in `HotChannels`."""

    @abstractmethod
    async def _drops(self) -> int:
        """How many channels were dropped in this generation."""

    @abstractmethod
    async def _count_drop(self) -> str:
        """Count a drop. Returns a token for a new witness of the channel's shard; empty: keep the witness."""

    async def channels(self, ids: Sequence[str]) -> list[Channel | None]:
        found: list[Channel | None] = [None] * len(ids)

        def pack(shards: Sequence[tuple[str, Sequence[int]]]) -> Packed:
            return [key for key, _ in shards], [encode([ids[index] for index in part]) for _, part in shards]

        for (_, part), values in await run_for_each(self._client, READ, self._shards(ids), MAX_READ, pack):
            for index, value in zip(part, values or (), strict=bool(values)):
                if value is not None:
                    found[index] = decode_channel(ids[index], value)
        return found

    async def stored(self, channel: str) -> list[StoredKey]:
        return await StoredKeys(self._backend).of_channel(self._keys, channel)

    def _shards(self, ids: Sequence[str]) -> Iterator[tuple[int, int, tuple[str, Sequence[int]]]]:
        """(slot, number of channels, (key, indexes of the channels in the list)) of each shard."""
        shards: dict[int, list[int]] = {}
        for index, id_ in enumerate(ids):
            shards.setdefault(shard_of(id_), []).append(index)
        for shard, indexes in shards.items():
            slot, key = self._keys.latest(shard)
            for part in chunks(indexes, MAX_READ):
                yield slot, len(part), (key, part)

    async def apply(self, updates: Sequence[ChannelHotUpdate]) -> None:
        with all_or_reload(self._generation):
            for some in chunks(updates, MAX_UPDATES):  # sequential: a channel's updates keep their order
                await self._apply(_fold(some))

    async def _apply(self, changed: Sequence[_Changed]) -> None:
        placed = ((*self._keys.latest(shard_of(one.channel.channel_id)), one) for one in changed)

        def pack(parts: Sequence[tuple[str, _Changed]]) -> Packed:
            keys = [key for key, _ in parts]
            for _, (channel, updates) in parts:
                keys += self._keys.timeline(channel.channel_id) if updates else ()
            packed = encode([(channel.channel_id, channel.change, updates) for _, (channel, updates) in parts])
            values = [encode_channel(channel) for _, (channel, _) in parts]
            return keys, [*self._backend.time(), self._backend.unread_cap, secrets.token_hex(8), packed, *values]

        await run_grouped(self._client, APPLY, ((slot, 1, (key, one)) for slot, key, one in placed), MAX_UPDATES, pack)

    async def count(self, queries: Sequence[CountQuery]) -> list[Count | None]:
        counts: list[Count | None] = [None] * len(queries)

        def pack(asked: Sequence[_Asked]) -> Packed:
            keys = [key for one in asked for key in self._keys.timeline(one.channel)]
            return keys, [*self._backend.time(), encode([one.queries for one in asked])]

        for asked, packed in await run_grouped(self._client, COUNT, self._asked(queries), MAX_QUERIES, pack):
            for one, answers in zip(asked, _decode_answers(packed), strict=True):
                if not isinstance(answers, bool):
                    for index, answer in zip(one.indexes, answers, strict=True):
                        counts[index] = _count(queries[index], answer)
        return counts

    def _asked(self, queries: Sequence[CountQuery]) -> Iterator[tuple[int, int, _Asked]]:
        """(slot, weight, queries) of each channel."""
        channels: dict[str, list[int]] = {}
        for index, query in enumerate(queries):
            channels.setdefault(query.channel_id, []).append(index)
        for channel, indexes in channels.items():
            slot, _ = self._keys.latest(shard_of(channel))
            for part in chunks(indexes, MAX_QUERIES):
                asked = _Asked(channel, part, [_query(queries[index]) for index in part])
                yield slot, sum(1 + len(runs) // 2 + len(named) for _, runs, named in asked.queries), asked

    # ------------------------------------------------------------ loading

    async def generation(self) -> DropNumber:
        """A loss of channels that is not known yet raises the number no later than in `install`, which looks for it."""
        return await self._number(())

    async def _number(self, slots: Collection[int]) -> DropNumber:
        """The drop number, after a look at the masters of these slots. Others may be down."""
        number = await self._generation.check({*slots, slot_of(self._keys.drops)})
        return DropNumber(number * DROPS_PER_GENERATION + await self._drops())

    async def install(self, channels: Sequence[Channel], generation: DropNumber | None = None) -> bool:
        """Reads the witnesses of the shards first, then the generation: a shard that is emptied later is noticed."""
        shards: dict[int, list[Channel]] = {}
        for channel in channels:
            shards.setdefault(shard_of(channel.channel_id), []).append(channel)
        while True:
            witnesses = await self._announce(shards)
            number = await self._number({self._keys.latest(shard)[0] for shard in shards})
            if generation not in {None, number}:
                return False
            known = {shard: self._generation.of(self._keys.latest(shard)[0]) for shard in shards}
            if all(int(witness.split()[0]) >= known[shard] for shard, witness in witnesses.items()):
                break
        things = []
        for shard, loaded in shards.items():
            slot, key = self._keys.latest(shard)
            things += [(slot, len(part), (key, witnesses[shard], part)) for part in chunks(loaded, MAX_INSTALLED)]

        def pack(parts: Sequence[tuple[str, str, Sequence[Channel]]]) -> Packed:
            loads = [[witness, *(x for c in part for x in (c.channel_id, c.change))] for _, witness, part in parts]
            values = [encode_channel(channel) for _, _, part in parts for channel in part]
            return [key for key, _, _ in parts], [encode(loads), *values]

        taken = await run_grouped(self._client, INSTALL, things, MAX_INSTALLED, pack)
        return sum(int(count) for _, count in taken) == len(things)

    async def _announce(self, shards: Iterable[int]) -> dict[int, str]:
        """Open the shards in this generation and return their witnesses."""

        def pack(some: Sequence[int]) -> Packed:
            return [self._keys.latest(shard)[1] for shard in some], [secrets.token_hex(8)]

        things = ((self._keys.latest(shard)[0], 1, shard) for shard in shards)
        found = await run_for_each(self._client, ANNOUNCE, things, MAX_INSTALLED, pack)
        return {shard: witness.decode() for shard, witness in found}

    async def install_timeline(self, load: TimelineLoad) -> bool:
        channel, name, cap = load.channel_id, secrets.token_hex(8), self._backend.unread_cap
        left_out, entries = load.entries[:-cap], load.entries[-cap:]
        floor = left_out[-1].seq if left_out else load.floor
        staged = self._keys.staged(channel, name)
        for some in chunks(entries, MAX_STAGED):
            part = [(entry.seq, _member(entry), int(entry.mention)) for entry in some]
            await self._backend.one(STAGE, staged, self._backend.timings.load_ms, encode(part))
        keys = [self._keys.latest(shard_of(channel))[1], *self._keys.timeline(channel), *staged]
        sizes = (len(entries), sum(entry.mention for entry in entries))
        arguments = (*self._backend.time(), channel, load.change, floor, *sizes, name)
        return bool(await self._backend.one(INSTALL_TIMELINE, keys, *arguments))

    async def forget(self, channel: str) -> None:
        token = await self._count_drop()
        slot, latest = self._keys.latest(shard_of(channel))
        call = Call(slot, [latest, *self._keys.timeline(channel)], [channel, token])
        await once_or_reload(self._generation, self._client.run(FORGET, [call]))


class ExclusiveChannels(ValkeyChannels):
    """For a process that has the hot store to itself: it applies the log, and no other process drops channels."""

    def __init__(self, backend: Backend, position: LogPosition) -> None:
        super().__init__(backend)
        self._position = position
        self._drop_count = 0

    async def apply(self, updates: Sequence[ChannelHotUpdate]) -> None:
        await super().apply(updates)
        self._position = max([self._position, *(update.channel.position for update in updates)])

    async def positions(self) -> tuple[LogPosition, ...]:
        return (self._position,)

    async def _drops(self) -> int:
        return self._drop_count

    async def _count_drop(self) -> str:
        self._drop_count += 1
        return ""


class SharedChannels(ValkeyChannels):
    """For processes that share a hot store. Implements `AppliedOffsets` too."""

    def __init__(self, backend: Backend, partitions: int) -> None:
        super().__init__(backend)
        self._partitions = partitions

    async def positions(self) -> tuple[LogPosition, ...]:
        """0 for a partition whose position is not known."""
        known = await self._applied()
        return tuple(known.get(part, (NO_POSITION, 0))[0] for part in range(self._partitions))

    async def passed(self, applied: Mapping[int, tuple[LogPosition, int]]) -> None:
        if applied:
            arguments = [number for part, ends in applied.items() for number in (part, *ends)]
            await self._backend.one(PASS, [self._keys.positions], *arguments)

    async def offsets(self) -> Mapping[int, int]:
        return {part: offset for part, (_, offset) in (await self._applied()).items()}

    async def _applied(self) -> dict[int, tuple[LogPosition, int]]:
        """By partition (log position, next offset)."""
        flat = iter(await self._backend.one(READ_POSITIONS, [self._keys.positions]))
        found = {}
        for part, applied in zip(flat, flat, strict=True):
            position, offset = map(int, applied.split())
            found[int(part)] = LogPosition(position), offset
        return found

    async def _drops(self) -> int:
        return int(await self._backend.one(DROP, [self._keys.drops], 0))

    async def _count_drop(self) -> str:
        """First the drop number, then a new witness: this order catches every load in flight."""
        await self._backend.one(DROP, [self._keys.drops], 1)
        return secrets.token_hex(8)
