"""Notes that processes share in the hot store: which generation is fresh, and how many reads wait in spools."""

from readstate.domain.model import Generation

from . import Backend, Function

FRESH, NOTE_FRESH = Function("notes_fresh"), Function("notes_note_fresh")
SPOOLED, NOTE_SPOOL = Function("notes_spooled"), Function("notes_note_spool")


class ValkeyNotes:
    """One small hash, lost with the rest of the hot store."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._key = f"{backend.prefix}notes"

    async def generation(self) -> Generation:
        """Reads the markers first."""
        return await self._backend.generation.check()

    def seen(self) -> Generation:
        """The generation as of the last check, without a call."""
        return self._backend.generation.number

    async def fresh(self) -> int:
        """The newest generation that was found fresh."""
        return await self._run(FRESH)

    async def note_fresh(self, generation: Generation) -> None:
        await self._run(NOTE_FRESH, generation)

    async def spooled(self) -> int:
        return await self._run(SPOOLED, self._backend.clock())

    async def note_spool(self, instance: str, depth: int) -> None:
        await self._run(NOTE_SPOOL, instance, depth, self._backend.clock() + self._backend.timings.spool_note_ms)

    async def _run(self, function: Function, *arguments: str | int) -> int:
        return int(await self._backend.one(function, [self._key], *arguments))
