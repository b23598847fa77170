"""Names of keys: what must be together has the same hash tag, whatever the id in it looks like."""

from functools import cache

from redis.crc import key_slot

SLOTS = 16_384

_ENCODED = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D", ":": "%3A"})


def tag_of(id_: str) -> str:
    """An id as a hash tag: without what would end the tag or could be taken for another part of the key."""
    return "{" + id_.translate(_ENCODED) + "}"


def slot_of(key: str | bytes) -> int:
    """The slot of a Cluster that a key lies in."""
    return int(key_slot(key.encode() if isinstance(key, str) else key))


@cache
def tag_in(slot: int) -> str:
    """A hash tag that lies in a slot: for what every server must hold."""
    number = 0
    while slot_of(str(number)) != slot:
        number += 1
    return f"{{{number}}}"
