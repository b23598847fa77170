"""Which users were erased. Only a hash of the id remains."""

from collections.abc import Collection
from hashlib import sha256

from . import rows
from .session import Session, ask


def hash_of(user: str) -> str:
    return sha256(user.encode()).hexdigest()


async def erased_at(session: Session, users: Collection[str]) -> dict[str, int]:
    """When each of these users was erased; others are left out."""
    hashes = {hash_of(user): user for user in users}
    return {hashes[hashed]: at for hashed, at in await ask(session, rows.anything, "erased", hashes)}
