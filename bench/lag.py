"""How long a read takes from its acknowledgement to PostgreSQL, watched from outside while others read too."""

import asyncio
import time
from collections.abc import Sequence

import asyncpg  # type: ignore[import-untyped]
import msgspec

from .load import HOST, PATIENCE, BenchmarkError, Reply, encode
from .servers import Server
from .world import channel_id, user_id

USER = 0xFFFF
"""Reads nothing but this."""
CHANNELS = range(50_000, 50_020)
"""Several: their events are in different partitions of the log."""
PAUSE_SECONDS = 0.05
LOOK_SECONDS = 0.05


class Probe:
    """A user who reads one message after another, and looks in the database for each.

    `query` gives (channel, seq) of a user's rows. After the last message in the channels nothing is measured any more.
    """

    def __init__(self, server: Server, database: str, query: str, messages: int) -> None:
        self._server = server
        self._database = database
        self._query = query
        self._places = iter([(channel, seq) for seq in range(1, messages + 1) for channel in CHANNELS])
        self._waiting: dict[tuple[str, int], float] = {}
        self._lags: list[float] = []

    async def during(self, load: "asyncio.Task[object]") -> Sequence[float]:
        """Read as long as the load is under way; the seconds that each read took, in ascending order."""
        reading = asyncio.create_task(self._read(load))
        self._lags = []
        connection = await asyncpg.connect(self._database)
        try:
            end = None
            while not reading.done() or self._waiting:
                end = end or (time.monotonic() + 10 * PATIENCE if reading.done() else None)
                if end and time.monotonic() > end:
                    raise BenchmarkError(f"{len(self._waiting)} acknowledged reads do not come to PostgreSQL")
                self._note(await connection.fetch(self._query, user_id(USER)), time.perf_counter())
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await connection.close()
        await reading
        return sorted(self._lags)

    def _note(self, rows: Sequence[tuple[str, int]], now: float) -> None:
        found = dict(rows)
        for channel, seq in list(self._waiting):
            if found.get(channel, 0) >= seq:
                self._lags.append(now - self._waiting.pop((channel, seq)))

    async def _read(self, load: "asyncio.Task[object]") -> None:
        reader, writer = await asyncio.open_connection(HOST, self._server.port)
        reply = Reply()
        while not load.done() and (place := next(self._places, None)) is not None:
            channel, seq = channel_id(place[0]), place[1]
            body = msgspec.json.encode({"up_to_seq": seq})
            path = f"/v1/users/{user_id(USER)}/channels/{channel}/read"
            writer.write(encode("POST", path, body, self._server.key))
            while (answer := reply.feed(await reader.read(1 << 16))) is None:
                pass
            if answer[0] >= 300:
                raise BenchmarkError(f"{answer[0]} {answer[1][:500]!r}")
            self._waiting[channel, seq] = time.perf_counter()
            await asyncio.sleep(PAUSE_SECONDS)
        writer.close()
