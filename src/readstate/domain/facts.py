"""The input and output of folding: facts in, rows to write and hot updates out."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec import Struct, field

from .errors import ReadstateError
from .events import ChannelEvent, DeleteEvent, Delivery, EditEvent, MembersEvent, MessageEvent
from .hot_updates import ChannelHotUpdate, UserHotUpdate
from .model import (
    NO_POSITION,
    Away,
    ChangeNumber,
    Channel,
    LogPosition,
    Member,
    Message,
    Pointer,
    Position,
    Undelivered,
)
from .rooms import thread_room
from .rules import EVERYONE, HERE

Key = tuple[str, str]


class FactsNeeded(Struct):
    """Keys of the facts that a run needs: (channel, id), (room, user), (room, id) or (channel, number)."""

    channels: set[str] = field(default_factory=set)
    """Channels and rooms of threads."""
    messages: set[Key] = field(default_factory=set)
    members: set[Key] = field(default_factory=set)
    pointers: set[Key] = field(default_factory=set)
    audience: set[str] = field(default_factory=set)
    """Channels whose members are needed if they use ledgers."""
    followers: set[str] = field(default_factory=set)
    """Rooms of threads whose followers are needed."""
    everyone: set[str] = field(default_factory=set)
    """Channels of which every user is needed who was ever in them or their threads."""
    before_last: set[tuple[str, int]] = field(default_factory=set)
    """(channel, n): the position of a pointer that leaves the last n messages unread."""
    own_seqs: set[Key] = field(default_factory=set)
    """The seqs of a user's own messages."""
    newest_but: set[Key] = field(default_factory=set)
    """(room, id): the newest message of the room that is not deleted and is not this one."""


class Facts(Struct):
    """What the store knows at the beginning of a run. The fold keeps it up to date."""

    channels: dict[str, Channel] = field(default_factory=dict)
    messages: dict[Key, Message] = field(default_factory=dict)
    members: dict[Key, Member] = field(default_factory=dict)
    pointers: dict[Key, Pointer] = field(default_factory=dict)
    audience: dict[str, tuple[str, ...]] = field(default_factory=dict)
    muted: dict[Key, int] = field(default_factory=dict)
    """Until when a member of an audience has muted the channel."""
    followers: dict[str, dict[str, bool]] = field(default_factory=dict)
    """The followers of a thread, and whether they are still in its channel."""
    everyone: dict[str, tuple[Key, ...]] = field(default_factory=dict)
    """(room, user) of a channel and all its threads."""
    before_last: dict[tuple[str, int], Position] = field(default_factory=dict)
    own_seqs: dict[Key, tuple[int, ...]] = field(default_factory=dict)
    newest_but: dict[Key, Message] = field(default_factory=dict)
    once_named: dict[Key, set[str]] = field(default_factory=dict)
    """Users whom earlier versions of a message in a timeline channel mentioned. Only filled for replays."""
    gone: dict[str, ChangeNumber] = field(default_factory=dict)
    """The change number with which a channel was deleted last. Only filled for replays."""


class Changes(Struct):
    """Rows to write: inserted, replaced or (pointers) merged."""

    channels: dict[str, Channel] = field(default_factory=dict)
    messages: dict[Key, Message] = field(default_factory=dict)
    members: dict[Key, Member] = field(default_factory=dict)
    pointers: dict[Key, Pointer] = field(default_factory=dict)
    away: dict[Key, Away] = field(default_factory=dict)
    """Messages to receivers who were away."""
    once_named: list[tuple[str, str, str]] = field(default_factory=list)
    """(channel, message, user): an edit in a timeline channel has removed this mention."""
    purged: set[str] = field(default_factory=set)
    """Deleted channels: messages and pointers go, members become inactive and lose their preferences."""


class Effect(Struct):
    """What one event did, and the hot updates that follow."""

    message: Message | None = None
    channel: Channel | None = None
    duplicate: bool = False
    error: ReadstateError | None = None
    added: int = 0
    removed: int = 0
    channel_updates: list[ChannelHotUpdate] = field(default_factory=list)
    user_updates: list[UserHotUpdate] = field(default_factory=list)
    away: Away | None = None
    """The message, with its receivers who were away."""
    reached: list[Undelivered] = field(default_factory=list)
    """To receivers who were online. Counts as undelivered if delivery is not proven."""
    read_before: bool = False
    """By sending the message, its sender has read what others wrote before it."""
    position: LogPosition = NO_POSITION
    """The log position in a shared log; it only grows."""
    repeated: bool = False
    """A replay: nothing changes in the durable store, but the hot store may have missed the event."""

    @property
    def undelivered(self) -> list[Undelivered]:
        """One for each receiver who was away; where there are many, `away` is enough."""
        away = self.away
        if away is None:
            return []
        message = (away.accepted_at, away.sender_id, away.channel_id, away.message_id)
        return [Undelivered(user, *message) for user in away.others]


def runs(deliveries: Sequence[Delivery]) -> Iterator[Sequence[Delivery]]:
    """Split a batch into runs, in order: messages in a row, or one event of another kind."""
    for are_messages, group in groupby(deliveries, lambda one: isinstance(one.event, MessageEvent)):
        if are_messages:
            yield list(group)
        else:
            yield from ([one] for one in group)


def facts_needed(run: Sequence[Delivery]) -> FactsNeeded:
    needed = FactsNeeded()
    for delivery in run:
        event = delivery.event
        channel = event.channel_id
        needed.channels.add(channel)
        needed.audience.add(channel)
        match event:
            case MessageEvent():
                _want_message(needed, event)
            case EditEvent():
                needed.messages.add((channel, event.id))
            case DeleteEvent():
                needed.messages.add((channel, event.id))
                needed.newest_but.add((channel, event.id))
            case MembersEvent(thread_id=str() as thread):
                room = thread_room(channel, thread)
                needed.channels.add(room)
                needed.messages.add((channel, thread))
                needed.members.update((room, user) for user in event.add + event.remove)
                needed.members.update((channel, user) for user in event.add)
                needed.pointers.update((room, user) for user in event.add)
            case MembersEvent():
                needed.members.update((channel, user) for user in event.add + event.remove)
                needed.pointers.update((channel, user) for user in event.add)
                if event.history != "read":
                    needed.own_seqs.update((channel, user) for user in event.add)
                if isinstance(event.history, int):
                    needed.before_last.add((channel, event.history))
            case ChannelEvent(action="delete"):
                needed.everyone.add(channel)
    return needed


def named_by_id(mentions: tuple[str, ...]) -> set[str]:
    """The users whom a message mentions by id, without @channel and @here."""
    return {user for user in mentions if user not in {EVERYONE, HERE}}


def has_no_replies(room: Channel | None) -> bool:
    return room is None or room.deleted or not room.last_seq


def audience(run: Sequence[Delivery], facts: Facts) -> set[str]:
    """The users of whom a run must know whether they are online."""
    users: set[str] = set()
    channels = {one.event.channel_id for one in run if isinstance(one.event, MessageEvent | EditEvent)}
    for channel in channels:
        users.update(facts.audience.get(channel, ()))
    for delivery in run:
        event = delivery.event
        if isinstance(event, MessageEvent):
            users.update(named_by_id(event.mentions))
            if event.thread_id is not None:
                users.update(facts.followers.get(thread_room(event.channel_id, event.thread_id), ()))
                users.update(user for room, user in facts.members if room == event.channel_id)
    return users


def _want_message(needed: FactsNeeded, event: MessageEvent) -> None:
    channel = event.channel_id
    named = named_by_id(event.mentions)
    needed.messages.add((channel, event.id))
    needed.pointers.add((channel, event.sender_id))
    needed.members.update((channel, user) for user in named)
    if event.thread_id is None:
        return
    room = thread_room(channel, event.thread_id)
    needed.channels.add(room)
    needed.messages.add((channel, event.thread_id))
    needed.followers.add(room)
    needed.members.add((channel, event.sender_id))
    needed.pointers.update((room, user) for user in (*named, event.sender_id))


def more_facts_needed(run: Sequence[Delivery], facts: Facts) -> FactsNeeded:
    """Facts that only the first facts show to be needed: about threads to which these events refer."""
    needed = FactsNeeded()
    new = {(d.event.channel_id, d.event.id): d.event for d in run if isinstance(d.event, MessageEvent)}
    for delivery in run:
        event = delivery.event
        channel = event.channel_id
        if isinstance(event, MessageEvent) and event.thread_id is not None:
            root = facts.messages.get((channel, event.thread_id)) or new.get((channel, event.thread_id))
            if root is not None and has_no_replies(facts.channels.get(thread_room(channel, event.thread_id))):
                needed.members.add((channel, root.sender_id))
        elif isinstance(event, EditEvent | DeleteEvent):
            known = facts.messages.get((channel, event.id))
            if known is not None and known.thread_id is not None and known.thread_seq is not None:
                room = thread_room(channel, known.thread_id)
                needed.channels.add(room)
                needed.followers.add(room)
                needed.newest_but.add((room, known.id))
    return needed
