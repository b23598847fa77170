"""Channels in Valkey: the state of all channels in 1,024 hashes (shards), and a timeline for each large channel.

A loaded channel is installed only if its shard was not emptied since the load was validated: the shard's witness must
be the same. A loaded timeline is installed only if its channel is there and is not newer. So a server that is emptied
at any time, without notice, loses state but never receives older state.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from struct import Struct as Packing
from typing import Any, Final, NamedTuple, get_args
from zlib import crc32

import msgspec
from msgspec import Struct

from readstate.domain.hot_updates import ChannelHotUpdate
from readstate.domain.model import Channel, Entry, Latest, Mode, Position, RoomType
from readstate.ports import Clock, Count, CountQuery, TimelineLoad

from . import Call, Generation, Script, ValkeyClient, slot_of
from .groups import all_or_reload, groups, once_or_reload, script

SHARDS: Final = 1024
MAX_READ = 5_000
"""Channels that one call reads: a few ms of server time."""
MAX_STEPS = 500
MAX_INSTALLED = 2_000
MAX_QUERIES = 500
"""Queries in one call. A run of messages read apart and a mention each count as one more."""
MAX_STAGED = 5_000
STAGED_MS = 60_000
"""A staged timeline that is not installed expires after this time."""
DROPS_PER_GENERATION: Final = 2**32

_SHARD = ("channel_shard",)
_TIMELINE = ("timeline_state",)


READ = script("channel_read")
ANNOUNCE = script(*_SHARD, "channel_announce")
INSTALL = script(*_SHARD, "channel_install")
APPLY = script(*_SHARD, *_TIMELINE, "channel_apply")
FORGET = script("channel_forget")
DROP = script("channel_drop")
PASS, PLACES = script("places_pass"), script("places_read")
COUNT = script(*_TIMELINE, "timeline_count")
STAGE = script(*_TIMELINE, "timeline_stage")
INSTALL_TIMELINE = script(*_TIMELINE, "timeline_install")


# ---------------------------------------------------------------- a channel as a value

_HEAD = Packing(">QB")
"""Change number, flags. Scripts read both."""
TIMELINE, ARCHIVED, DELETED = 1, 2, 4
_TYPES: tuple[RoomType, ...] = get_args(RoomType)
_TYPE_NUMBERS = {name: number for number, name in enumerate(_TYPES)}


class _Latest(Struct, frozen=True, gc=False, array_like=True):
    """Without id, seq and time if it is the last message of the channel, as it nearly always is."""

    sender_id: str
    preview: str | None
    id: str | None = None
    seq: int = 0
    at: int = 0


class _Rest(Struct, frozen=True, gc=False, array_like=True):
    """The value after the head. New fields go to the end: an older version ignores them."""

    type: int
    name: str | None
    avatar: str | None
    member_count: int
    last_seq: int
    last_id: str | None
    last_at: int
    position: int
    latest: _Latest | None
    peers: tuple[str, ...]


_encode = msgspec.msgpack.Encoder().encode
_decode_rest = msgspec.msgpack.Decoder(_Rest).decode


def encode_channel(channel: Channel) -> bytes:
    latest, place = None, channel.latest
    if place is not None:
        at_the_end = (place.seq, place.id, place.at) == (channel.last_seq, channel.last_id, channel.last_at)
        latest = _Latest(place.sender_id, place.preview, *(() if at_the_end else (place.id, place.seq, place.at)))
    rest = _Rest(
        _TYPE_NUMBERS[channel.type],
        channel.name,
        channel.avatar,
        channel.member_count,
        channel.last_seq,
        channel.last_id,
        channel.last_at,
        channel.position,
        latest,
        channel.peers,
    )
    flags = TIMELINE * (channel.mode is Mode.TIMELINE) + ARCHIVED * channel.archived + DELETED * channel.deleted
    return _HEAD.pack(channel.change, flags) + _encode(rest)


def decode_channel(channel_id: str, value: bytes) -> Channel:
    change, flags = _HEAD.unpack_from(value)
    rest = _decode_rest(value[_HEAD.size :])
    latest, known = None, rest.latest
    if known is not None and known.id is not None:
        latest = Latest(known.id, known.seq, known.at, known.sender_id, known.preview)
    elif known is not None and rest.last_id is not None:
        latest = Latest(rest.last_id, rest.last_seq, rest.last_at, known.sender_id, known.preview)
    return Channel(
        channel_id,
        _TYPES[rest.type],
        rest.name,
        rest.avatar,
        bool(flags & ARCHIVED),
        bool(flags & DELETED),
        Mode.TIMELINE if flags & TIMELINE else Mode.LEDGER,
        rest.member_count,
        rest.last_seq,
        rest.last_id,
        rest.last_at,
        change,
        rest.position,
        latest,
        rest.peers,
    )


# ---------------------------------------------------------------- keys


def shard_of(channel: str) -> int:
    """Must be the same in every process and every version."""
    return crc32(channel.encode()) % SHARDS


class _Keys:
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.places, self.drops = f"{prefix}places", f"{prefix}channel-drops"
        self._latest = [f"{prefix}channel-latest:{{{shard}}}" for shard in range(SHARDS)]
        self._slots = list(map(slot_of, self._latest))

    def latest(self, shard: int) -> tuple[int, str]:
        """The slot and the key of a shard."""
        return self._slots[shard], self._latest[shard]

    def timeline(self, channel: str) -> list[str]:
        """The keys of the messages, of those that mention everyone, and of the timeline's state."""
        tag = f"{{{shard_of(channel)}}}:{channel}"
        return [f"{self._prefix}{family}:{tag}" for family in ("timeline", "everyone", "timeline-state")]

    def staged(self, channel: str, load: str) -> list[str]:
        """The keys in which a load assembles a timeline."""
        tag = f"{{{shard_of(channel)}}}:{load}"
        return [f"{self._prefix}{family}:{tag}" for family in ("timeline-staged", "everyone-staged")]


# ---------------------------------------------------------------- hot updates and counts as arguments

_Step = tuple[int, int, int, str, int, int]


class _News(NamedTuple):
    """One channel's newest state, and the hot updates of its timeline."""

    channel: Channel
    updates: list[_Step]


def _member(entry: Entry) -> str:
    """A message in a timeline. It contains the time, so that a position needs no lookup."""
    return f"{entry.at}:{entry.id}"


def _fold(updates: Sequence[ChannelHotUpdate]) -> list[_News]:
    """Per channel, the newest state and the hot updates of the timeline, in order.

    A channel that is counted by ledgers has no timeline and never had one.
    """
    news: dict[str, _News] = {}
    for update in updates:
        channel = update.channel
        known = news.get(channel.channel_id) or _News(channel, [])
        newest = channel if channel.change >= known.channel.change else known.channel
        news[channel.channel_id] = _News(newest, known.updates)
        if channel.mode is Mode.TIMELINE or channel.deleted:
            put = update.put
            placed = (0, "", 0) if put is None else (put.seq, _member(put), int(put.mention))
            known.updates.append((update.change, int(channel.deleted or update.reload), *placed, update.remove))
    return list(news.values())


class _Answer(Struct, frozen=True, gc=False, array_like=True):
    count: int
    mentions: int
    floor: int
    first_seq: int
    first_member: str


_decode_answers = msgspec.msgpack.Decoder(list[list[_Answer] | bool]).decode
_Query = tuple[int, list[int], list[int]]


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


# ---------------------------------------------------------------- the adapter


class ValkeyChannels:
    """Implements `HotChannels` and `AppliedOffsets`."""

    def __init__(
        self,
        client: ValkeyClient,
        generation: Generation,
        *,
        prefix: str,
        unread_cap: int,
        clock: Clock,
        ttl: int,
        position: int = 0,
        partitions: int = 1,
    ) -> None:
        self._client = client
        self._generation = generation
        self._keys = _Keys(prefix)
        self._cap = unread_cap
        self._clock = clock
        self._ttl = ttl * 1000
        self._position = position
        """Up to where the log is applied, if this process alone applies it."""
        self._partitions = partitions
        self._shared = generation.shared or partitions > 1
        self._drops = 0

    async def channels(self, ids: Sequence[str]) -> list[Channel | None]:
        found: list[Channel | None] = [None] * len(ids)
        reading = list(groups(self._client, self._shards(ids), MAX_READ))
        calls = [
            Call(slot, [key for key, _ in parts], [_encode([ids[index] for index in part]) for _, part in parts])
            for slot, parts in reading
        ]
        answers = (await self._client.run(READ, calls)).values
        for (_, parts), shards in zip(reading, answers, strict=True):
            for (_, part), values in zip(parts, shards, strict=True):
                for index, value in zip(part, values or (), strict=bool(values)):
                    if value is not None:
                        found[index] = decode_channel(ids[index], value)
        return found

    def _shards(self, ids: Sequence[str]) -> Iterable[tuple[int, int, tuple[str, list[int]]]]:
        """(slot, number of channels, (key, indexes of the channels in the list)) of each shard."""
        shards: dict[int, list[int]] = {}
        for index, id_ in enumerate(ids):
            shards.setdefault(shard_of(id_), []).append(index)
        for shard, indexes in shards.items():
            slot, key = self._keys.latest(shard)
            for start in range(0, len(indexes), MAX_READ):
                part = indexes[start : start + MAX_READ]
                yield slot, len(part), (key, part)

    async def apply(self, updates: Sequence[ChannelHotUpdate]) -> None:
        with all_or_reload(self._generation):
            for start in range(0, len(updates), MAX_STEPS):  # sequential: a channel's updates keep their order
                await self._apply(_fold(updates[start : start + MAX_STEPS]))
        if not self._shared:
            self._position = max([self._position, *(update.channel.position for update in updates)])

    async def _apply(self, news: Sequence[_News]) -> None:
        placed = ((*self._keys.latest(shard_of(one.channel.channel_id)), one) for one in news)
        things = ((slot, 1, (key, one)) for slot, key, one in placed)
        calls = []
        for slot, parts in groups(self._client, things, MAX_STEPS):
            keys = [key for key, _ in parts]
            for _, (channel, updates) in parts:
                keys += self._keys.timeline(channel.channel_id) if updates else ()
            packed = _encode([(channel.channel_id, channel.change, updates) for _, (channel, updates) in parts])
            values = [encode_channel(channel) for _, (channel, _) in parts]
            known = (self._clock(), self._ttl, self._cap, secrets.token_hex(8), packed)
            calls.append(Call(slot, keys, [*known, *values]))
        await self._client.run(APPLY, calls)

    async def count(self, queries: Sequence[CountQuery]) -> list[Count | None]:
        counts: list[Count | None] = [None] * len(queries)
        asked = list(groups(self._client, self._questions(queries), MAX_QUERIES))
        calls = []
        for slot, parts in asked:
            keys = [key for channel, _, _ in parts for key in self._keys.timeline(channel)]
            packed = _encode([questions for _, _, questions in parts])
            calls.append(Call(slot, keys, [self._clock(), self._ttl, packed]))
        for (_, parts), packed in zip(asked, (await self._client.run(COUNT, calls)).values, strict=True):
            for (_, indexes, _), answers in zip(parts, _decode_answers(packed), strict=True):
                if not isinstance(answers, bool):
                    for index, answer in zip(indexes, answers, strict=True):
                        counts[index] = _count(queries[index], answer)
        return counts

    def _questions(
        self, queries: Sequence[CountQuery]
    ) -> Iterable[tuple[int, int, tuple[str, list[int], list[_Query]]]]:
        """(slot, weight, (channel, indexes of its queries in the list, the queries)) of each channel."""
        asked: dict[str, list[int]] = {}
        for index, query in enumerate(queries):
            asked.setdefault(query.channel_id, []).append(index)
        for channel, indexes in asked.items():
            slot, _ = self._keys.latest(shard_of(channel))
            for start in range(0, len(indexes), MAX_QUERIES):
                part = indexes[start : start + MAX_QUERIES]
                questions = [_query(queries[index]) for index in part]
                weight = sum(1 + len(runs) // 2 + len(named) for _, runs, named in questions)
                yield slot, weight, (channel, part, questions)

    # ------------------------------------------------------------ loading

    async def generation(self) -> int:
        number = await self._generation.check()
        drops = await self._run(DROP, slot_of(self._keys.drops), [self._keys.drops], 0) if self._shared else self._drops
        return number * DROPS_PER_GENERATION + int(drops)

    async def install(self, channels: Sequence[Channel], generation: int | None = None) -> bool:
        """Reads the witnesses of the shards first, then the generation: a shard that is emptied later is noticed."""
        shards: dict[int, list[Channel]] = {}
        for channel in channels:
            shards.setdefault(shard_of(channel.channel_id), []).append(channel)
        while True:
            witnesses = await self._announce(list(shards))
            number = await self.generation()
            if generation not in {None, number}:
                return False
            if all(int(witness.split()[0]) >= number // DROPS_PER_GENERATION for witness in witnesses):
                break
        things = []
        for witness, (shard, loaded) in zip(witnesses, shards.items(), strict=True):
            slot, key = self._keys.latest(shard)
            for start in range(0, len(loaded), MAX_INSTALLED):
                part = loaded[start : start + MAX_INSTALLED]
                things.append((slot, len(part), (key, witness, part)))
        calls = []
        for slot, parts in groups(self._client, things, MAX_INSTALLED):
            loads = [[witness, *(x for c in part for x in (c.channel_id, c.change))] for _, witness, part in parts]
            values = [encode_channel(channel) for _, _, part in parts for channel in part]
            calls.append(Call(slot, [key for key, _, _ in parts], [_encode(loads), *values]))
        taken: int = sum((await self._client.run(INSTALL, calls)).values)
        return taken == len(things)

    async def _announce(self, shards: Sequence[int]) -> list[str]:
        """Open the shards in this generation and return their witnesses."""
        things = ((self._keys.latest(shard)[0], 1, index) for index, shard in enumerate(shards))
        announced = list(groups(self._client, things, MAX_INSTALLED))
        calls = [
            Call(slot, [self._keys.latest(shards[index])[1] for index in indexes], [secrets.token_hex(8)])
            for slot, indexes in announced
        ]
        witnesses = [""] * len(shards)
        for (_, indexes), values in zip(announced, (await self._client.run(ANNOUNCE, calls)).values, strict=True):
            for index, value in zip(indexes, values, strict=True):
                witnesses[index] = value.decode()
        return witnesses

    async def install_timeline(self, load: TimelineLoad) -> bool:
        channel, name = load.channel_id, secrets.token_hex(8)
        left_out, entries = load.entries[: -self._cap], load.entries[-self._cap :]
        floor = left_out[-1].seq if left_out else load.floor
        slot, latest = self._keys.latest(shard_of(channel))
        staged = self._keys.staged(channel, name)
        for start in range(0, len(entries), MAX_STAGED):
            part = [(entry.seq, _member(entry), int(entry.mention)) for entry in entries[start : start + MAX_STAGED]]
            await self._run(STAGE, slot, staged, STAGED_MS, _encode(part))
        everyone = sum(entry.mention for entry in entries)
        keys = [latest, *self._keys.timeline(channel), *staged]
        sizes = (len(entries), everyone)
        taken = await self._run(
            INSTALL_TIMELINE, slot, keys, self._clock(), self._ttl, channel, load.change, floor, *sizes, name
        )
        return bool(taken)

    async def forget(self, channel: str) -> None:
        token = ""
        if self._shared:  # first the drop number, then a new witness: this order catches every load in flight
            await self._run(DROP, slot_of(self._keys.drops), [self._keys.drops], 1)
            token = secrets.token_hex(8)
        self._drops += 1
        slot, latest = self._keys.latest(shard_of(channel))
        call = Call(slot, [latest, *self._keys.timeline(channel)], [channel, token])
        await once_or_reload(self._generation, self._client.run(FORGET, [call]))

    # ------------------------------------------------------------ how far the log is applied

    async def positions(self) -> tuple[int, ...]:
        """0 for a partition whose position is not known."""
        if not self._shared:
            return (self._position,)
        places = await self._places()
        return tuple(places.get(part, (0, 0))[0] for part in range(self._partitions))

    async def passed(self, places: Mapping[int, tuple[int, int]]) -> None:
        if places:
            arguments = [number for part, place in places.items() for number in (part, *place)]
            await self._run(PASS, slot_of(self._keys.places), [self._keys.places], *arguments)

    async def offsets(self) -> Mapping[int, int]:
        return {part: offset for part, (_, offset) in (await self._places()).items()}

    async def _places(self) -> dict[int, tuple[int, int]]:
        flat = iter(await self._run(PLACES, slot_of(self._keys.places), [self._keys.places]))
        found = {}
        for part, place in zip(flat, flat, strict=True):
            position, offset = map(int, place.split())
            found[int(part)] = position, offset
        return found

    async def _run(self, script: Script, slot: int, keys: list[str], *arguments: str | bytes | int) -> Any:
        return (await self._client.run(script, [Call(slot, keys, arguments)])).values[0]
