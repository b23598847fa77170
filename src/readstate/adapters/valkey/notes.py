"""Notes that processes share in the hot store: how many reads wait in spools."""

from collections.abc import Collection

from readstate.domain.model import Generation

from . import Backend, Function, slot_of, tag_of

SPOOLED, NOTE_SPOOL = Function("notes_spooled"), Function("notes_note_spool")


class ValkeyNotes:
    """One small hash, lost with its slot; and the generations of users."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._key = f"{backend.prefix}notes"

    async def generation(self, users: Collection[str] | None = None) -> Generation:
        """The highest of all slots. Reads the markers of these users' slots first; None: of all slots."""
        slots = None if users is None else {_slot_of_user(user) for user in users}
        return await self._backend.generation.check(slots)

    def seen(self) -> Generation:
        """The highest generation as of the last check, without a call."""
        return self._backend.generation.number

    def of_user(self, user: str) -> Generation:
        """The generation of the user's slot as of the last check, without a call."""
        return self._backend.generation.of(_slot_of_user(user))

    async def spooled(self) -> int:
        return await self._run(SPOOLED, self._backend.clock())

    async def note_spool(self, instance: str, depth: int) -> None:
        await self._run(NOTE_SPOOL, instance, depth, self._backend.clock() + self._backend.timings.spool_note_ms)

    async def _run(self, function: Function, *arguments: str | int) -> int:
        return int(await self._backend.one(function, [self._key], *arguments))


def _slot_of_user(user: str) -> int:
    return slot_of(tag_of(user))
