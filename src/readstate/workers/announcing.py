"""Turns the effect of an event into announcements for the members and followers it concerns."""

from collections.abc import Iterable, Iterator

from readstate.domain.announcements import (
    Announcement,
    BadgeChanged,
    ChannelTouched,
    MembersChanged,
    MessageCame,
    Outcome,
    ThreadTouched,
)
from readstate.domain.events import AnyChannelEvent, ChannelEvent, DeleteEvent, EditEvent, MembersEvent, MessageEvent
from readstate.domain.facts import Effect
from readstate.domain.hot_updates import FanOut, Gone, Joined, Left, UserHotUpdate
from readstate.domain.rooms import is_thread


def announcements(event: AnyChannelEvent, effect: Effect, instance_id: str) -> Iterator[Announcement]:
    """In the order in which devices must see them. A refused event or a duplicate message announces nothing."""
    if effect.error is not None or effect.duplicate or effect.channel is None:
        return
    match event:
        case MessageEvent() if effect.message is not None and not effect.message.deleted:
            yield MessageCame(effect.message, instance_id, tuple(effect.reached), effect.read_before)
        case EditEvent() | DeleteEvent():
            yield ChannelTouched(event.channel_id, "counts")
        case ChannelEvent(action="put"):
            yield ChannelTouched(event.channel_id, "conversation")
        case MembersEvent(thread_id=None) if effect.channel.type == "direct":
            yield ChannelTouched(event.channel_id, "conversation")
    for update in effect.user_updates:
        if is_thread(update.channel_id):
            if users := _concerned(update):
                yield ThreadTouched(update.channel_id, users)
        elif isinstance(update, Joined):
            joined = _concerned(update) if not effect.repeated else _added(event, update)
            if joined:
                yield MembersChanged(update.channel_id, joined=joined)
        elif isinstance(update, Left | Gone):
            yield MembersChanged(update.channel_id, left=update.users)
            if isinstance(update, Gone):  # its messages no longer count for badges
                yield from map(BadgeChanged, update.users)


def badges_changed(effects: Iterable[Effect]) -> Iterator[BadgeChanged]:
    """One for each receiver who was away: a badge is only marked, and counted when it is sent."""
    groups = dict.fromkeys(effect.away.others for effect in effects if effect.away is not None)
    return map(BadgeChanged, dict.fromkeys(user for users in groups for user in users))


def outcome(ref: str, effect: Effect) -> Outcome:
    """The result for the request that waits for this event."""
    if (error := effect.error) is not None:
        return Outcome(ref, error.code, error.detail, error.field)
    return Outcome(
        ref,
        message=effect.message,
        channel=effect.channel,
        duplicate=effect.duplicate,
        added=effect.added,
        removed=effect.removed,
    )


def _added(event: AnyChannelEvent, update: Joined) -> tuple[str, ...]:
    """The members that the event itself added; on a replay the update may name others."""
    added = event.add if isinstance(event, MembersEvent) else ()
    return tuple(user for user, _ in update.pointers if user in added)


def _concerned(update: UserHotUpdate) -> tuple[str, ...]:
    match update:
        case Joined():
            return tuple(user for user, _ in update.pointers)
        case FanOut() | Left() | Gone():
            return update.users
        case _:
            return ()
