"""Folds replays: events that were applied before. Pure: facts in, effects out; the durable store does not change.

A writer that dies after its transaction leaves a batch that the durable store has and the hot store may lack. What the
events did at the time can no longer be determined, since later events may have followed. So the hot state of the
channels and users concerned is set to what the store has now, with the channel's current change number. Keys that
have passed that number ignore it.
"""

from collections.abc import Iterable, Mapping, Sequence

from readstate.domain.errors import ChannelNotFound, DirectChannelFull, NotAMember, ReadstateError
from readstate.domain.events import ChannelEvent, DeleteEvent, Delivery, EditEvent, MembersEvent, MessageEvent
from readstate.domain.facts import Effect, Facts, FactsNeeded, Key, named_by_id
from readstate.domain.hot_updates import ChannelHotUpdate, Joined, Left, OwnRead, UserHotUpdate
from readstate.domain.model import NO_CHANGE, Away, Channel, Message, Pointer, Undelivered
from readstate.domain.rooms import thread_room

from .state import gone


def facts_needed_by_replays(run: Sequence[Delivery], facts: Facts) -> FactsNeeded:
    """Further facts: the pointers of all affected users, and for a deleted channel all users who were ever in it."""
    needed = FactsNeeded()
    for delivery in run:
        event = delivery.event
        channel = facts.channels.get(event.channel_id)
        if is_delete(event):
            needed.everyone.add(event.channel_id)
        if channel is None or channel.deleted:
            continue
        needed.members.update((event.channel_id, user) for user in _involved(event, facts))
        users = {*facts.audience.get(event.channel_id, ()), *_involved(event, facts)}
        needed.pointers.update((event.channel_id, user) for user in users)
        if (room := _room(event, facts)) is not None:
            needed.channels.add(room)
            needed.pointers.update((room, user) for user in facts.followers.get(room, ()))
    return needed


def repeat(
    run: Sequence[Delivery],
    facts: Facts,
    away: Mapping[Key, Away],
    reached: Mapping[tuple[int, int], Sequence[str]],
) -> list[Effect]:
    """The effects of replays, for the hot store to take again.

    `away`: each message with its receivers who were away. `reached`: by (partition, offset), the users who had a
    connection at that time; the first writer may have died before it tracked their delivery. The audience of a channel
    that may have outgrown the ledger limit by one of these events is all members it had then.
    """
    return [_Repeating(one, facts).effect(away, reached.get((one.part, one.position), ())) for one in run]


class _Repeating:
    def __init__(self, delivery: Delivery, facts: Facts) -> None:
        self.event = delivery.event
        self.facts = facts

    def effect(self, away: Mapping[Key, Away], reached: Sequence[str]) -> Effect:
        event = self.event
        channel = self.facts.channels.get(event.channel_id)
        if channel is None:
            return Effect(error=ChannelNotFound(f"there is no channel {event.channel_id!r}", field="channel_id"))
        effect = Effect(channel=channel, repeated=True, message=self._message())
        effect.channel_updates.append(ChannelHotUpdate(channel, channel.change, reload=True))
        if is_delete(event):
            # With the change number of the delete: users who joined a new channel of that id keep their state.
            change = self.facts.gone.get(channel.channel_id, NO_CHANGE)
            effect.user_updates += gone(self.facts.everyone.get(channel.channel_id, ()), change)
        if channel.deleted:
            return effect
        effect.user_updates += self._user_rooms(channel, self.facts.audience.get(channel.channel_id, ()))
        effect.user_updates += self._own_read()
        if (name := _room(event, self.facts)) is not None and (room := self.facts.channels.get(name)) is not None:
            effect.channel_updates.append(ChannelHotUpdate(room, room.change))
            effect.user_updates += self._user_rooms(room, self.facts.followers.get(name, ()))
        if isinstance(event, MessageEvent):
            effect.away = away.get((event.channel_id, event.id))
            effect.reached += self._reached(event, effect, reached)
        elif isinstance(event, MembersEvent):
            effect.added, effect.removed = len(event.add), len(event.remove)
            effect.error = self._refusal(event, channel)
        return effect

    def _refusal(self, event: MembersEvent, channel: Channel) -> ReadstateError | None:
        """Why the event added fewer members than it names, if so. A member who was added and then left counts."""
        name = channel.channel_id
        room = name if event.thread_id is None else thread_room(name, event.thread_id)
        for user in event.add:
            member = self.facts.members.get((room, user))
            if member is not None and (member.active or member.joined_at >= event.created_at):
                continue
            if event.thread_id is None and channel.type == "direct":
                return DirectChannelFull(field="add")
            if event.thread_id is not None and not self._is_active(name, user):
                return NotAMember(f"channel {name!r} has no member {user!r}", field="user")
        return None

    def _reached(self, event: MessageEvent, effect: Effect, users: Sequence[str]) -> Iterable[Undelivered]:
        """Users not recorded as away since. A deleted message goes to no device, so its delivery is not tracked."""
        if effect.message is None or effect.message.deleted:
            return
        noted = () if effect.away is None else effect.away.receivers
        for user in users:
            if user not in noted:
                yield Undelivered(user, event.created_at, event.sender_id, event.channel_id, event.id)

    def _message(self) -> Message | None:
        if isinstance(self.event, MessageEvent | EditEvent | DeleteEvent):
            return self.facts.messages.get((self.event.channel_id, self.event.id))
        return None

    def _user_rooms(self, room: Channel, members: Iterable[str]) -> Iterable[UserHotUpdate]:
        """The current state of the members and of the users whom the event was about."""
        name = room.channel_id
        if name == self.event.channel_id:
            involved = _involved(self.event, self.facts)
            active = {user for user in involved if self._is_active(name, user)}.union(members)
        else:
            involved = {*self.event.add, *self.event.remove} if isinstance(self.event, MembersEvent) else set()
            active = set(members)
        if active:
            pointers = tuple((user, self.facts.pointers.get((name, user)) or Pointer()) for user in sorted(active))
            yield Joined(name, room.change, room.mode, room.last_seq, room.latest_at, room.archived, pointers)
        if left := tuple(sorted(involved - active)):
            yield Left(name, room.change, left)

    def _own_read(self) -> Iterable[UserHotUpdate]:
        """The sender's read by sending, whatever epoch the hot store has by now."""
        message = self._message()
        if not isinstance(self.event, MessageEvent) or message is None or message.deleted:
            return
        seqs = [(message.channel_id, message.seq)]
        if message.thread_id is not None:
            seqs.append((thread_room(message.channel_id, message.thread_id), message.thread_seq))
        for room, seq in seqs:
            if seq is not None:
                pointer = self.facts.pointers.get((room, message.sender_id)) or Pointer()
                yield OwnRead(room, message.sender_id, seq, pointer)

    def _is_active(self, room: str, user: str) -> bool:
        member = self.facts.members.get((room, user))
        return member is not None and member.active


def is_delete(event: object) -> bool:
    return isinstance(event, ChannelEvent) and event.action == "delete"


def _involved(event: object, facts: Facts) -> set[str]:
    """The users whom an event is about in its channel, besides all members of a ledger channel."""
    match event:
        case MembersEvent(thread_id=None):
            return {*event.add, *event.remove}
        case MessageEvent() | EditEvent() | DeleteEvent():
            known = facts.messages.get((event.channel_id, event.id))
            mentions = set() if known is None else named_by_id(known.mentions)
            if isinstance(event, MessageEvent | EditEvent) and isinstance(event.mentions, tuple):
                mentions |= named_by_id(event.mentions)
            return mentions | facts.once_named.get((event.channel_id, event.id), set())
    return set()


def _room(event: object, facts: Facts) -> str | None:
    """The room of the thread that an event is about; None: no thread."""
    match event:
        case MembersEvent(thread_id=str() as thread):
            return thread_room(event.channel_id, thread)
        case MessageEvent() | EditEvent() | DeleteEvent():
            known = facts.messages.get((event.channel_id, event.id))
            if known is not None and known.thread_id is not None and known.thread_seq is not None:
                return thread_room(event.channel_id, known.thread_id)
    return None
