"""What members and followers are told of an event of the log."""

from collections.abc import Iterator

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
from readstate.domain.hot_updates import FanOut, Gone, Joined, Left, UserStep
from readstate.domain.rooms import is_thread


def announcements(event: AnyChannelEvent, effect: Effect, instance_id: str) -> Iterator[Announcement]:
    """In the order in which devices must see them. A repeat that changed nothing is not told again."""
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
    for step in effect.user_steps:
        if is_thread(step.channel_id):
            if users := _concerned(step):
                yield ThreadTouched(step.channel_id, users)
        elif isinstance(step, Joined):
            joined = _concerned(step) if not effect.repeated else _added(event, step)
            if joined:
                yield MembersChanged(step.channel_id, joined=joined)
        elif isinstance(step, Left | Gone):
            yield MembersChanged(step.channel_id, left=step.users)
            if isinstance(step, Gone):  # with what was written in it
                yield from map(BadgeChanged, step.users)
    yield from (BadgeChanged(one.receiver_id) for one in effect.undelivered)


def outcome(ref: str, effect: Effect) -> Outcome:
    """What became of an event, for the one who waits for it."""
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


def _added(event: AnyChannelEvent, step: Joined) -> tuple[str, ...]:
    """Of those who stand in a channel, whom the event has brought there."""
    added = event.add if isinstance(event, MembersEvent) else ()
    return tuple(user for user, _ in step.pointers if user in added)


def _concerned(step: UserStep) -> tuple[str, ...]:
    match step:
        case Joined():
            return tuple(user for user, _ in step.pointers)
        case FanOut() | Left() | Gone():
            return step.users
        case _:
            return ()
