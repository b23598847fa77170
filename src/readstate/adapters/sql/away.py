"""Who was away when a message came, in SQL: the durable form of the offline badge.

A message names the set of its receivers who were away. A channel keeps each set once, so a message to a quiet group
costs no row for each member. `undelivered` has the first message of each (receiver, sender, channel) since the
receiver's last tap, and the badge counts its rows. What a tap shows is found from these rows: the sender's messages in
the channel, from the first one on, in whose set the receiver is.

The invariant: if a message came while its receiver was away, and was accepted after the receiver's last tap, then
`undelivered` has a row of its receiver, sender and channel that is later than the tap and not later than the message.
It is the row of the message itself or of one that was stored before. "Later" compares times of acceptance; messages
need not be stored in that order.

A tap ends rows, so it could end one just as another transaction relies on it. Hence `Session.lock_taps`. If the tap
is first, the other transaction sees it. If the other transaction is first, the tap sees the message, and writes the
row that the message now needs (`renew_undelivered`). It looks for such messages before it locks, and then only for
those that came meanwhile, so that writers do not wait for a tap after a long absence. Decisions about one channel are
serialized by its lock. What removes rows with their channel, sender or receiver takes the same lock, so that no tap
writes such a row afterwards.

Messages that did not reach a receiver who was online always have rows of their own.
"""

from collections.abc import Collection, Iterable
from hashlib import blake2b
from typing import NamedTuple

from readstate.domain.facts import Key
from readstate.domain.model import Away

from . import rows
from .session import Session, as_json, ask, write_rows

DAY_MS = 24 * 3600 * 1000


class Decided(NamedTuple):
    away: Away
    set_id: int


async def put_sets(session: Session, decisions: Iterable[Away]) -> dict[Key, Decided]:
    """Store the sets that are new to their channels, and give each message the id of its set."""
    keys: dict[tuple[str, tuple[str, ...]], str] = {}
    for one in decisions:
        if (one.channel_id, one.receivers) not in keys:
            keys[one.channel_id, one.receivers] = _key(one.receivers)
    wanted: dict[Key, Away] = {}
    for one in decisions:
        wanted[one.channel_id, keys[one.channel_id, one.receivers]] = one
    known = await _known(session, wanted)
    new = [
        (channel, key, one.receivers, one.accepted_at)
        for (channel, key), one in wanted.items()
        if (channel, key) not in known or known[channel, key][1] < one.accepted_at - DAY_MS
    ]
    if new:
        await write_rows(session, "put_away_sets", new)
        known = await _known(session, wanted)
    return {
        (one.channel_id, one.message_id): Decided(one, known[one.channel_id, keys[one.channel_id, one.receivers]][0])
        for one in decisions
    }


async def put_firsts(session: Session, decisions: Collection[Decided]) -> None:
    """Write the rows that the invariant demands.

    Of messages with the same sender, channel and set, only the first needs rows, unless a receiver tapped after it.
    """
    if not decisions:
        return
    firsts: dict[tuple[str, str, int], int] = {}
    first, later = [], []
    for away, set_id in sorted(decisions, key=lambda one: one.away.accepted_at):
        pair = away.channel_id, away.sender_id, set_id
        row = (away.channel_id, away.sender_id, away.accepted_at, away.message_id, set_id)
        if pair in firsts:
            later.append((*row, firsts[pair]))
        else:
            firsts[pair] = away.accepted_at
            first.append(row)
    await session.lock_taps()
    await write_rows(session, "put_first_undelivered", first)
    if later:
        since = min(row[-1] for row in later)
        await session.run("put_undelivered_since", rows=as_json(later), since=since)


async def _known(session: Session, wanted: Iterable[Key]) -> dict[Key, tuple[int, int]]:
    """By (channel, key): the id of a set, and when it was last used."""
    found = await ask(session, rows.anything, "away_sets", wanted)
    return {(channel, key): (id_, used_at) for channel, key, id_, used_at in found}


def _key(receivers: Iterable[str]) -> str:
    return blake2b("\0".join(receivers).encode(), digest_size=15).hexdigest()
