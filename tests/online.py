"""Who is online, as a durable store asks for it."""

from collections.abc import Collection

from readstate.ports import Online, Present


def only(*people: str) -> Online:
    """These, whoever is asked about."""

    async def online(_: Collection[str]) -> Present:
        return _These(people)

    return online


class _These(frozenset[str]):
    """Everybody by a connection."""

    def is_connected(self, user: str) -> bool:
        return user in self


nobody = only()
