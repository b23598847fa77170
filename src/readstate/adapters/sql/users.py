"""Users in SQL: activity, preferences, offline badges, and which users were erased."""

from collections.abc import Collection, Sequence
from hashlib import sha256
from math import inf
from time import monotonic

from msgspec import Struct
from msgspec.json import Decoder
from msgspec.structs import asdict

from readstate.domain.errors import StorageUnavailable
from readstate.domain.model import FOREVER, Message, Preferences, ReceiptsPreference, Undelivered
from readstate.domain.rules import MAX_AHEAD_MS
from readstate.ports import Activity, TapCursor, Tapped

from . import rows
from .away import DAY_MS
from .session import Session, SqlTopic, as_json, ask, write_rows


class _Accepted(Struct):
    accepted_at: int


_accepted = Decoder(list[_Accepted])
_NEWEST = TapCursor(FOREVER, 0, "", "")
"""A cursor before everything that a tap shows."""


class SqlUsers(SqlTopic):
    async def activity(self, user: str) -> Activity:
        row = await self._database.read(lambda session: session.row("activity", user=user))
        return Activity(*row) if row else Activity()

    async def save_seen(self, user: str, at: int) -> None:
        await self._run("save_seen", user=user, at=at)

    async def save_receipts(self, user: str, receipts: ReceiptsPreference, change: int) -> None:
        await self._run("save_receipts", user, user=user, receipts=receipts, change=change)

    async def save_preferences(self, user: str, channel: str, preferences: Preferences, change: int) -> None:
        values = asdict(preferences) | {"change": change}
        await self._run("put_preferences", user, user=user, channel=channel, **values)

    async def erased_until(self, user: str) -> int:
        return await self._number("erased_until", hash=hash_of(user))

    # ------------------------------------------------------------ badges

    async def badge_count(self, user: str) -> int:
        """One scan of a covering index."""
        return await self._number("badge_count", user=user)

    async def badge_senders(self, user: str) -> tuple[int, frozenset[str]]:
        async def work(session: Session) -> tuple[int, frozenset[str]]:
            row = await session.row("activity", user=user)
            senders = await session.value("badge_senders", user=user)
            return (row[0] if row else 0), frozenset(rows.names.decode(senders))

        return await self._database.read(work)

    async def save_undelivered(self, undelivered: Sequence[Undelivered]) -> list[Undelivered]:
        async def work(session: Session) -> list[Undelivered]:
            # Otherwise a delete or an erase between the check and the insert would miss the inserted row.
            await session.lock({one.channel_id for one in undelivered})
            living = await _living(session, undelivered)
            await write_rows(session, "put_undelivered", living)
            return living

        return await self._database.write(work)

    async def receivers_of_gone(self, undelivered: Sequence[Undelivered]) -> set[str]:
        keys = [(one.receiver_id, one.accepted_at, one.sender_id, one.channel_id) for one in undelivered]
        return set(await self._find(rows.names, "receivers_of_gone", keys=as_json(keys)))

    async def tap(self, user: str, at: int, limit: int, until: float = inf) -> Tapped:
        async def work(session: Session) -> Tapped:
            since = await session.value("begin_tap", user=user)
            if since > at + MAX_AHEAD_MS:
                await _bound_tap(session, user, at)
                since = at
            count = await session.value("tapped_count", user=user, since=since, until=at)
            messages = await _tapped(session, user, since, at, _NEWEST, limit)
            ended = {"user": user, "since": since, "at": at}
            seen, later = rows.anything.decode(await session.value("later_than_tap", **ended))
            await session.lock_taps(user)  # after everything that may take long: writers of messages wait
            await session.run("renew_undelivered", **ended, seen=as_json(seen), later=as_json(later))
            await session.run("save_tap", user=user, at=at)
            if monotonic() > until:
                raise StorageUnavailable("the tap took too long; nothing was changed")
            return Tapped(since, max(since, at), count, messages)

        return await self._database.write(work, user)

    async def bound_tap(self, user: str, now: int) -> None:
        await self._database.write(lambda session: _bound_tap(session, user, now), user)

    async def tapped(
        self, user: str, since: int, until: int, before: TapCursor, limit: int
    ) -> list[tuple[int, Message]]:
        return await self._database.read(lambda session: _tapped(session, user, since, until, before, limit))

    async def expire_undelivered(self, after: str, before: int, tapped: int, limit: int) -> tuple[str | None, int]:
        receivers = await self._find(rows.names, "receivers_after", after=after, limit=limit)
        if not receivers:
            return None, 0
        keys = as_json(receivers)
        removed = await self._run("expire_undelivered", keys=keys, before=before, tapped=tapped, limit=limit)
        return (after if removed == limit else receivers[-1]), removed

    async def expire_untapped(self, after: str, before: int, limit: int) -> tuple[str | None, int, list[str]]:
        receivers = await self._find(rows.names, "receivers_after", after=after, limit=limit)
        if not receivers:  # a set is used up to a day after the last time that is noted for it
            await self._run("expire_away_sets", before=before - 2 * DAY_MS)
            return None, 0, []
        old = await self._find(rows.names, "receivers_before", keys=as_json(receivers), before=before)
        removed = await self._run("expire_untapped", keys=as_json(old), before=before) if old else 0
        return receivers[-1], removed, old


async def _living(session: Session, undelivered: Sequence[Undelivered]) -> list[Undelivered]:
    """Those whose message still exists, and whose sender and receiver have not been erased since."""
    keys = {(one.channel_id, one.message_id) for one in undelivered}
    there = {tuple(found) for found in await ask(session, rows.anything, "living_messages", sorted(keys))}
    gone = await erased_at(session, {user for one in undelivered for user in (one.sender_id, one.receiver_id)})
    return [
        one
        for one in undelivered
        if (one.channel_id, one.message_id, one.sender_id) in there
        and one.accepted_at > max(gone.get(one.sender_id, -1), gone.get(one.receiver_id, -1))
    ]


async def _bound_tap(session: Session, user: str, now: int) -> None:
    """Bring back a tap that a fast clock put in the future.

    The tap has shown what that clock accepted, also in the future: those rows are dropped, so that they don't count
    again.
    """
    latest = now + MAX_AHEAD_MS
    await session.run("drop_tapped_ahead", user=user, latest=latest)
    await session.run("bound_tap", user=user, now=now, latest=latest)


async def _tapped(
    session: Session, user: str, since: int, until: int, before: TapCursor, limit: int
) -> list[tuple[int, Message]]:
    """What was accepted between two taps, newest first, from `before` on."""
    between = {"since": since, "until": min(until, before.accepted_at)}
    text = await session.value("tapped_messages", user=user, **between, **asdict(before), limit=limit)
    accepted = [one.accepted_at for one in _accepted.decode(text)]
    return list(zip(accepted, rows.messages.decode(text), strict=True))


def hash_of(user: str) -> str:
    """All that remains of an erased user's id."""
    return sha256(user.encode()).hexdigest()


async def erased_at(session: Session, users: Collection[str]) -> dict[str, int]:
    """When each of these users was erased; others are left out."""
    hashes = {hash_of(user): user for user in users}
    return {hashes[hashed]: at for hashed, at in await ask(session, rows.anything, "erased", hashes)}
