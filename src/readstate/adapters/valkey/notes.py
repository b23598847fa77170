"""Notes that processes share in the hot store: which generation is fresh, and how many reads wait in spools."""

from readstate.ports import Clock

from . import Call, Generation, Script, ValkeyClient, slot_of

SPOOL_MS = 10_000
"""How long a note about a spool counts; it is renewed about every second."""

NOTE_FRESH = Script(
    """-- KEYS[1]: the notes; ARGV: generation, the number of one that is fresh; a higher one stays.
local known = tonumber(redis.call('HGET', KEYS[1], 'fresh') or '0')
if tonumber(ARGV[2]) > known then redis.call('HSET', KEYS[1], 'fresh', ARGV[2]) end
return 0"""
)
FRESH = Script(
    """-- KEYS[1]: the notes. Returns the newest generation that is fresh.
return tonumber(redis.call('HGET', KEYS[1], 'fresh') or '0')"""
)
NOTE_SPOOL = Script(
    """-- KEYS[1]: the notes; ARGV: generation, instance, reads that wait there, until when this counts.
if tonumber(ARGV[3]) == 0 then
  return redis.call('HDEL', KEYS[1], 'spool:' .. ARGV[2])
end
redis.call('HSET', KEYS[1], 'spool:' .. ARGV[2], ARGV[3] .. ' ' .. ARGV[4])
return 0"""
)
SPOOLED = Script(
    """-- KEYS[1]: the notes; ARGV: generation, now. Returns how many reads wait in all spools.
local all, sum = redis.call('HGETALL', KEYS[1]), 0
for at = 1, #all, 2 do
  if string.sub(all[at], 1, 6) == 'spool:' then
    local depth, til = string.match(all[at + 1], '^(%d+) (%d+)$')
    if til and tonumber(til) > tonumber(ARGV[2]) then
      sum = sum + tonumber(depth)
    else
      redis.call('HDEL', KEYS[1], all[at])
    end
  end
end
return sum"""
)


class ValkeyNotes:
    """One small hash, lost with the rest of the hot store."""

    def __init__(self, client: ValkeyClient, generation: Generation, prefix: str, clock: Clock) -> None:
        self._client = client
        self._generation = generation
        self._key = f"{prefix}notes"
        self._clock = clock

    async def generation(self) -> int:
        """Looks at the markers first."""
        return await self._generation.check()

    def seen(self) -> int:
        """The generation as of the last look, without a call."""
        return self._generation.number

    async def fresh(self) -> int:
        """The newest generation that was found fresh."""
        return await self._run(FRESH)

    async def note_fresh(self, generation: int) -> None:
        await self._run(NOTE_FRESH, generation)

    async def spooled(self) -> int:
        return await self._run(SPOOLED, self._clock())

    async def note_spool(self, instance: str, depth: int) -> None:
        await self._run(NOTE_SPOOL, instance, depth, self._clock() + SPOOL_MS)

    async def _run(self, script: Script, *arguments: str | int) -> int:
        answer: int = (await self._client.run(script, [Call(slot_of(self._key), [self._key], arguments)])).values[0]
        return answer
