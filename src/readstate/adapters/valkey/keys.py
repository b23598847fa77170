"""Key names. Keys that must share a slot have the same hash tag, whatever characters an id contains."""

from functools import cache
from typing import Final
from zlib import crc32

from redis.crc import key_slot

SHARDS: Final = 1024
"""Hashes that hold the state of all channels."""

_ENCODED = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D", ":": "%3A"})


def tag_of(id_: str) -> str:
    """An id as a hash tag, without characters that would end the tag or look like another part of the key."""
    return "{" + id_.translate(_ENCODED) + "}"


def slot_of(key: str | bytes) -> int:
    return int(key_slot(key.encode() if isinstance(key, str) else key))


@cache
def tag_in(slot: int) -> str:
    """A hash tag in the given slot, for keys that every server must hold."""
    number = 0
    while slot_of(str(number)) != slot:
        number += 1
    return f"{{{number}}}"


def shard_of(channel: str) -> int:
    """Must be the same in every process and every version."""
    return crc32(channel.encode()) % SHARDS


class ChannelKeys:
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.positions, self.drops = f"{prefix}places", f"{prefix}channel-drops"
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
