"""Adds senders to the badges of receivers who were away. A batch is folded first: one entry per sender and receiver."""

from collections.abc import Iterable, Sequence

from readstate.domain.announcements import BadgeChanged
from readstate.domain.events import UnsentEvent, UnsentMessage
from readstate.domain.facts import Effect
from readstate.domain.model import Undelivered
from readstate.ports import Bus, DurableUsers, HotBadges
from readstate.services.badge_notes import BadgeNotes


class StatusUpdate:
    """Consumer of the topic `ON_MSG_UNSENT`. Idempotent, in any order: the durable store decides."""

    def __init__(self, badges: HotBadges, durable: DurableUsers, bus: Bus) -> None:
        self._badges = BadgeNotes(badges, durable)
        self._bus = bus

    async def handle(self, events: Sequence[UnsentEvent]) -> None:
        """Apply a batch. If it fails, the caller must retry it until it succeeds."""
        changed = await self._badges.add(list(fold_unsent(events)), or_reload=False)
        await self._bus.publish([BadgeChanged(user) for user in sorted(changed)])


def unsent_messages(effects: Iterable[Effect], now: int) -> list[UnsentMessage]:
    """The messages of which receivers were away."""
    return [
        UnsentMessage(
            away.sender_id,
            away.message_id,
            away.channel_id,
            effect.message.at if effect.message is not None else away.accepted_at,
            away.accepted_at,
            now,
            away.others,
        )
        for effect in effects
        if (away := effect.away) is not None
    ]


def newest_undelivered(effects: Iterable[Effect]) -> list[Undelivered]:
    """What badges need to know: of a sender's messages to the same receivers, the newest."""
    newest: dict[tuple[str, tuple[str, ...]], Effect] = {}
    for effect in effects:
        if (away := effect.away) is not None:
            known = newest.get((away.sender_id, away.receivers))
            if known is None or known.away is None or away.accepted_at > known.away.accepted_at:
                newest[away.sender_id, away.receivers] = effect
    return [one for effect in newest.values() for one in effect.undelivered]


def fold_unsent(events: Iterable[UnsentEvent]) -> Iterable[Undelivered]:
    """The newest message of each sender to each receiver: if a tap covers that one, it covers the others."""
    newest: dict[tuple[str, str], UnsentEvent] = {}
    for event in events:
        key = event.receiver_id, event.sender_id
        known = newest.get(key)
        if known is None or event.accepted_at > known.accepted_at:
            newest[key] = event
    return (
        Undelivered(event.receiver_id, event.accepted_at, event.sender_id, event.channel_id, event.message_id)
        for event in newest.values()
    )
