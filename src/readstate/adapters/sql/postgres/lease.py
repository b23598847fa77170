"""The right of one process to write to a database, for the embedded profile.

There, log and hot state belong to one process: two processes would assign the same log positions twice.

A file lock ends with its process. A server's locks end with a session, and behind a pooler no session belongs to one
process. So the lease is a row with a token and an expiry, which the holder renews. A process that finds it expired
takes it by raising the token.

A holder may be paused for longer than that, or cut off, and come back without knowing it. So the expiry protects
nothing; the token does. Every write first checks the token in its own transaction (`require_lease`), and an older token
is fenced. A process that takes over first waits for writes that passed the check before. So of two processes that both
believe they hold the lease, only one can commit.
"""

import asyncio
import contextlib
import os
import socket
import time
from typing import Any, NamedTuple

import structlog

from readstate.adapters.sql.session import Session
from readstate.domain.errors import ConfigurationError, ReadstateError, StorageUnavailable
from readstate.tasks import cancel
from readstate.timings import SqlTimings

from .engine import PostgresEngine
from .store import PostgresStore

RENEWALS = 3
"""Attempts to renew the lease before it expires."""

log = structlog.get_logger()


class Holder(NamedTuple):
    owner: str
    token: int
    expires_at: int
    left_ms: int


async def open_leased(
    url: str,
    fanout_max_members: int,
    timings: SqlTimings,
    max_connections: int,
    instance_id: str,
    *,
    keeps_badge: bool = True,
) -> "tuple[PostgresStore, Lease]":
    """A store that only this process writes to, for as long as it holds the lease."""
    engine = await PostgresEngine.open(url, max_connections, timings)
    owner = f"process {os.getpid()} on {socket.gethostname()} (instance {instance_id})"
    try:
        lease = await Lease.take(engine, owner, timings)
    except BaseException:
        await engine.close()
        raise
    return PostgresStore(engine, fanout_max_members, timings, keeps_badge=keeps_badge), lease


class Lease:
    """Renewed in the background until it is released or lost."""

    def __init__(self, engine: PostgresEngine, owner: str, timings: SqlTimings) -> None:
        self.lost = asyncio.Event()
        """Another process has the lease: all further writes fail."""
        self._engine = engine
        self._owner = owner
        self._seconds = timings.lease
        self._ms = round(timings.lease * 1000)
        self._poll_seconds = timings.lease_poll
        self._token = 0
        self._renewing: asyncio.Task[None] | None = None

    @classmethod
    async def take(cls, engine: PostgresEngine, owner: str, timings: SqlTimings) -> "Lease":
        """Wait until the lease of a dead holder expires. Raises ConfigurationError if the holder is alive."""
        lease = cls(engine, owner, timings)
        await lease._take()
        engine.fence(lease._token)
        lease._renewing = asyncio.create_task(lease._keep_renewing())
        return lease

    async def release(self) -> None:
        """Give up the lease, so that the next process can start at once."""
        if self._renewing is None:
            return
        await cancel(self._renewing)
        await self._engine.settle()
        with contextlib.suppress(ReadstateError):  # otherwise it expires
            await self._engine.write_aside(lambda session: session.run("lease_release", token=self._token))

    # ------------------------------------------------------------ taking it

    async def _take(self) -> None:
        seen = await self._read_holder()
        end = time.monotonic() + min(seen.left_ms / 1000, self._seconds)
        if seen.left_ms > 0:
            log.warning(
                "another process holds the lease of the database; waiting until it expires",
                action="lease",
                owner=seen.owner,
                seconds=round(end - time.monotonic(), 1),
            )
        while not await self._take_from(seen, expired=time.monotonic() >= end):
            now = await self._read_holder()
            if (now.token, now.expires_at) != (seen.token, seen.expires_at) and now.left_ms > 0:
                raise ConfigurationError(
                    f"another process has the database: {now.owner}. In the embedded profile it belongs to one "
                    "process: talk to that one over HTTP (--url), or stop it first"
                )
            if now.left_ms <= 0:
                seen, end = now, 0.0  # released meanwhile
            else:
                await asyncio.sleep(min(self._poll_seconds, max(0.0, end - time.monotonic())))

    async def _take_from(self, seen: Holder, *, expired: bool) -> bool:
        """Take the lease only after it expires, by the database's clock or, should that be set back, by our own."""
        if seen.left_ms > 0 and not expired:
            return False

        async def work(session: Session) -> Any:
            await session.value("lease_lock")
            known = {"token": seen.token, "expires_at": seen.expires_at}
            return await session.value("lease_take", owner=self._owner, ms=self._ms, **known)

        token = await self._engine.write_aside(work)
        self._token = token or 0
        return token is not None

    async def _read_holder(self) -> Holder:
        row = await self._engine.write_aside(lambda session: session.row("lease_holder"))
        if row is None:
            raise ConfigurationError("the table lease of the database is empty: restore its row from a backup")
        return Holder(*row)

    # ------------------------------------------------------------ keeping it

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(self._seconds / RENEWALS)
            try:
                if not await self._engine.write_aside(self._renew):
                    break
            except StorageUnavailable:
                pass  # logged already; the next attempt follows
            except Exception:
                log.exception("the lease could not be renewed", action="lease", owner=self._owner)
        self.lost.set()
        log.error(
            "another process has taken the database over: this one writes no more",
            action="lease",
            owner=self._owner,
        )

    async def _renew(self, session: Session) -> int:
        return await session.run("lease_renew", token=self._token, ms=self._ms)
