"""What the server holds of a user and of a channel, key by key, in words: rows and markers are packed."""

from collections.abc import Callable, Mapping
from typing import Any

from readstate.adapters.words import (
    channel_facts,
    numbers,
    pointer_facts,
    preferences_facts,
    time_of,
    yes_or_no,
)
from readstate.ports import StoredKey

from .backend import Backend
from .channel_values import decode_channel
from .keys import ChannelKeys, shard_of
from .user_rooms import (
    COUNT,
    FAMILIES,
    MOVED,
    NAMED,
    USER,
    USER_ROOM,
    Flag,
    UserKeys,
    pairs,
    pointer_of,
    preferences_of,
    seqs_of,
)

Facts = dict[str, str]


class StoredKeys:
    """Reads one key after another, so the keys may be of slightly different moments."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def of_user(self, keys: UserKeys, user: str, room: str) -> list[StoredKey]:
        names = dict(zip(FAMILIES, keys.of(user)[1], strict=True))
        names["unread"] = keys.ledger(user, room)
        generation = await self._generation(keys.of(user)[0])
        facts: Mapping[str, Callable[[bytes], Any]] = {
            "read-pointer": lambda key: self._pointer(key, room, generation),
            "read-apart": lambda key: self._field(key, room, lambda raw: {"read one by one": numbers(seqs_of(raw))}),
            "unread-counts": lambda key: self._field(key, room, _count),
            "unread": self._ledger,
            "preferences": lambda key: self._field(key, room, lambda raw: preferences_facts(preferences_of(raw))),
            "inbox": lambda key: self._inbox(key, room),
            "timelines": lambda key: self._timelines(key, room),
            "loading": self._loading,
            "read-at": lambda key: self._field(key, room, _moved),
        }
        return [stored for family, tell in facts.items() if (stored := await self._key(names[family], tell))]

    async def of_channel(self, keys: ChannelKeys, channel: str) -> list[StoredKey]:
        slot, latest = keys.latest(shard_of(channel))
        generation = await self._generation(slot)
        timeline, everyone, state = keys.timeline(channel)
        facts: Mapping[str, Callable[[bytes], Any]] = {
            latest: lambda key: self._channel(key, channel, generation),
            state: lambda key: self._timeline(key, generation),
            timeline: lambda key: self._sorted_set(key, "messages"),
            everyone: lambda key: self._sorted_set(key, "messages that mention everyone"),
        }
        return [stored for name, tell in facts.items() if (stored := await self._key(name.encode(), tell))]

    async def _generation(self, slot: int) -> int:
        await self._backend.generation.check([slot])
        return self._backend.generation.of(slot)

    # ------------------------------------------------------------ commands

    async def _ask(self, key: bytes, *command: str | int) -> Any:
        return await self._backend.command(key.decode(), *command)

    async def _key(self, key: bytes, tell: Callable[[bytes], Any]) -> StoredKey | None:
        expires = int(await self._ask(key, "PTTL"))
        if expires == -2:  # there is no such key
            return None
        return StoredKey(key.decode(), None if expires < 0 else expires, await tell(key))

    async def _field(self, key: bytes, room: str, tell: Callable[[bytes], Facts]) -> Facts:
        raw = await self._ask(key, "HGET", room)
        return tell(raw) if raw else {"of this channel": "nothing"}

    async def _sorted_set(self, key: bytes, what: str) -> Facts:
        ends = [await self._ask(key, "ZRANGE", place, place) for place in (0, -1)]
        first, last = (found[0].decode() if found else "none" for found in ends)
        return {what: str(await self._ask(key, "ZCARD")), "first": first, "last": last}

    # ------------------------------------------------------------ of users

    async def _pointer(self, key: bytes, room: str, generation: int) -> Facts:
        marker = await self._ask(key, "HGET", "")
        facts = _marker(marker, generation) if marker else {"generation": "no marker: the user counts as not loaded"}
        return facts | await self._field(key, room, _user_room)

    async def _ledger(self, key: bytes) -> Facts:
        facts = await self._sorted_set(key, "unread messages")
        for end, place in (("first", 0), ("last", -1)):
            if found := await self._ask(key, "ZRANGE", place, place, "WITHSCORES"):
                facts[end] = f"{found[0].decode()}, sent {time_of(int(float(found[1])))}"
        return facts

    async def _inbox(self, key: bytes, room: str) -> Facts:
        latest = await self._ask(key, "ZSCORE", room)
        facts = {"channels counted by ledger": str(await self._ask(key, "ZCARD"))}
        return facts | {"latest message of this channel": time_of(int(float(latest))) if latest else "not in it"}

    async def _timelines(self, key: bytes, room: str) -> Facts:
        size, inside = await self._ask(key, "SCARD"), await self._ask(key, "SISMEMBER", room)
        return {"channels counted by timeline": str(size), "this channel among them": yes_or_no(bool(inside))}

    async def _loading(self, key: bytes) -> Facts:
        length = int(await self._ask(key, "LLEN"))
        return {"a load is under way": f"{max(0, length - 2)} messages arrived meanwhile"}

    # ------------------------------------------------------------ of channels

    async def _channel(self, key: bytes, channel: str, generation: int) -> Facts:
        witness = await self._ask(key, "HGET", "")
        known = int(witness.split()[0]) if witness else 0
        facts = {"generation": _generation(known, generation)}
        return facts | await self._field(key, channel, lambda raw: channel_facts(decode_channel(channel, raw)))

    async def _timeline(self, key: bytes, generation: int) -> Facts:
        state = pairs(await self._ask(key, "HGETALL"))
        return {
            "generation": _generation(int(state.get("generation", 0)), generation),
            "messages": state.get("size", b"not known").decode(),
            "that mention everyone": state.get("everyone", b"not known").decode(),
            "dropped up to": _floor(int(state.get("floor", 0)), 0),
            "change of the channel": state.get("change", b"not known").decode(),
            "last used": time_of(int(float(state.get("used", 0)))),
        }


def _generation(known: int, current: int) -> str:
    return f"{known}, current" if known == current else f"{known}, not current ({current}): counts as not loaded"


def _marker(raw: bytes, generation: int) -> Facts:
    known, number, since, missing, used = USER.unpack(raw)
    return {
        "generation": _generation(known, generation),
        "user's change number": f"{number}, complete since {since}",
        "ledgers to be loaded": str(missing),
        "last used": time_of(used * 1000),
    }


def _user_room(raw: bytes) -> Facts:
    flags, _, _, _, change, _ = USER_ROOM.unpack_from(raw)
    return {
        "member": yes_or_no(bool(flags & Flag.MEMBER)),
        "counted by": "timeline" if flags & Flag.TIMELINE else "ledger",
        **pointer_facts(pointer_of(raw, b"")),
        "has messages read one by one": yes_or_no(bool(flags & Flag.APART)),
        "has a count": yes_or_no(bool(flags & Flag.COUNTED)),
        "change of the channel": str(change),
    }


def _count(raw: bytes) -> Facts:
    flags, count, touched, filled, floor, floor_at, _, first_seq, first_at, length = COUNT.unpack_from(raw)
    if flags & Flag.MISSING:
        return {"unread": "the ledger must be loaded"}
    first = raw[COUNT.size : COUNT.size + length].decode()
    mentions = [seq for seq, _ in NAMED.iter_unpack(raw[COUNT.size + length :])]
    facts = {"unread": str(count)}
    if flags & Flag.TIMELINE:
        facts = {"unread": "counted in the timeline"}
    elif first:
        seq = f"seq {first_seq}" if first_seq else "its seq is not known"
        facts["first unread"] = f"{first} ({seq}, sent {time_of(first_at)})"
    return facts | {
        "dropped up to": _floor(floor, floor_at),
        "mentions, by seq": numbers(mentions),
        "change of the channel in the ledger": str(filled),
        "last used": time_of(touched * 1000),
    }


def _floor(seq: int, at: int) -> str:
    if not seq and not at:
        return "nothing was dropped"
    return f"seq {seq}" if seq else f"what was sent by {time_of(at)}"


def _moved(raw: bytes) -> Facts:
    epoch, seq, at = MOVED.unpack(raw)
    return {"the pointer moved": f"to seq {seq} in epoch {epoch}, {time_of(at)}"}
