"""New ids."""

import secrets

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def ulid(now: int) -> str:
    """48 bits of time and 80 random bits. Ids sort by time."""
    number = (now << 80) | secrets.randbits(80)
    return "".join(_CROCKFORD[(number >> shift) & 31] for shift in range(125, -1, -5))
