"""Key names. Keys that must share a slot have the same hash tag, whatever characters an id contains."""

from functools import cache

from redis.crc import key_slot

SLOTS = 16_384

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
