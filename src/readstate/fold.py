"""What events of the log do to channels, pure: facts in, changes and effects out.

The durable store gathers the facts of a run of events, folds, and writes the changes, all in one
transaction. So every store gives the same seqs, decides the same things, and none has rules of its own.

A run is either a list of messages, or one event of another kind (it needs facts that are up to date).
"""

from collections.abc import Iterator, Sequence

from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from .errors import (
    ChannelNotFound,
    MessageDeleted,
    MessageNotFound,
    ReadstateError,
    ReplyToReply,
    ThreadNotFound,
)
from .events import ChannelEvent, DeleteEvent, Delivery, EditEvent, MembersEvent, MessageEvent, ReadEvent
from .model import START, Channel, Entry, Latest, Member, Message, Mode, Pointer, Position, ReadState
from .rules import EVERYONE, HERE, advance, merge, pointer_at
from .steps import ChannelStep, Fan, Gone, Joined, Left, OwnRead, Switched, UserStep

Key = tuple[str, str]


class Wants(Struct):
    """What a run must know. Pairs are (channel, id), (channel, user) or (channel, number)."""

    channels: set[str] = field(default_factory=set)
    messages: set[Key] = field(default_factory=set)
    members: set[Key] = field(default_factory=set)
    pointers: set[Key] = field(default_factory=set)
    threads: set[Key] = field(default_factory=set)
    audience: set[str] = field(default_factory=set)
    """Channels whose members are needed, if they are counted by ledger."""
    everyone: set[str] = field(default_factory=set)
    """Channels of which everyone is needed who ever had a membership or a pointer."""
    before_last: set[tuple[str, int]] = field(default_factory=set)
    """Where a pointer stands that leaves the last n messages unread."""
    newest_but: set[Key] = field(default_factory=set)
    """The newest message that is not deleted, other than this one."""


class Facts(Struct):
    """What the store knew when the run began."""

    channels: dict[str, Channel] = field(default_factory=dict)
    messages: dict[Key, Message] = field(default_factory=dict)
    members: dict[Key, Member] = field(default_factory=dict)
    pointers: dict[Key, Pointer] = field(default_factory=dict)
    threads: dict[Key, int] = field(default_factory=dict)
    audience: dict[str, tuple[str, ...]] = field(default_factory=dict)
    everyone: dict[str, tuple[str, ...]] = field(default_factory=dict)
    before_last: dict[tuple[str, int], Position] = field(default_factory=dict)
    newest_but: dict[Key, Message] = field(default_factory=dict)


class Changes(Struct):
    """Rows to write: inserted, replaced or (pointers) merged."""

    channels: dict[str, Channel] = field(default_factory=dict)
    messages: dict[Key, Message] = field(default_factory=dict)
    members: dict[Key, Member] = field(default_factory=dict)
    pointers: dict[Key, Pointer] = field(default_factory=dict)
    threads: dict[Key, int] = field(default_factory=dict)
    purged: set[str] = field(default_factory=set)
    """Deleted channels: messages, pointers and threads go, members become inactive and lose what they wanted."""


class Effect(Struct):
    """What became of one event, and what the hot store must be told."""

    message: Message | None = None
    channel: Channel | None = None
    duplicate: bool = False
    error: ReadstateError | None = None
    added: int = 0
    removed: int = 0
    channel_steps: list[ChannelStep] = field(default_factory=list)
    user_steps: list[UserStep] = field(default_factory=list)


def fold_reads(events: Sequence[ReadEvent]) -> list[ReadEvent]:
    """The same states with each (user, channel) once."""
    folded: dict[Key, ReadEvent] = {}
    for event in events:
        key = (event.user_id, event.channel_id)
        known = folded.get(key)
        folded[key] = event if known is None else _merge_events(known, event)
    return list(folded.values())


def _merge_events(a: ReadEvent, b: ReadEvent) -> ReadEvent:
    further, other = (a, b) if (a.epoch, a.last_read_seq) >= (b.epoch, b.last_read_seq) else (b, a)
    state = merge(_state(further), _state(other))
    return replace(further, apart=tuple(sorted(state.apart)), change=max(a.change, b.change))


def _state(event: ReadEvent) -> ReadState:
    return ReadState(event.epoch, event.last_read_seq, frozenset(event.apart))


def runs(deliveries: Sequence[Delivery]) -> Iterator[Sequence[Delivery]]:
    """Splits a batch into runs, in order."""
    start = 0
    for index, delivery in enumerate(deliveries):
        if not isinstance(delivery.event, MessageEvent):
            if index > start:
                yield deliveries[start:index]
            yield deliveries[index : index + 1]
            start = index + 1
    if start < len(deliveries):
        yield deliveries[start:]


def wants(run: Sequence[Delivery]) -> Wants:
    """What must be known to fold this run."""
    needed = Wants()
    for delivery in run:
        event = delivery.event
        channel = event.channel_id
        needed.channels.add(channel)
        match event:
            case MessageEvent():
                needed.messages.add((channel, event.id))
                needed.pointers.add((channel, event.sender_id))
                needed.audience.add(channel)
                if event.thread_id is not None:
                    needed.messages.add((channel, event.thread_id))
                    needed.threads.add((channel, event.thread_id))
            case EditEvent():
                needed.messages.add((channel, event.id))
                needed.audience.add(channel)
            case DeleteEvent():
                needed.messages.add((channel, event.id))
                needed.newest_but.add((channel, event.id))
                needed.audience.add(channel)
            case MembersEvent():
                needed.members.update((channel, user) for user in event.add + event.remove)
                needed.pointers.update((channel, user) for user in event.add)
                needed.audience.add(channel)
                if isinstance(event.history, int):
                    needed.before_last.add((channel, event.history))
            case ChannelEvent():
                needed.audience.add(channel)
                if event.action == "delete":
                    needed.everyone.add(channel)
    return needed


def fold(run: Sequence[Delivery], facts: Facts, fanout_max_members: int) -> tuple[Changes, list[Effect]]:
    """Applies a run to the facts."""
    folding = _Folding(facts, fanout_max_members)
    return folding.changes, [folding.apply(delivery) for delivery in run]


class _Folding:
    def __init__(self, facts: Facts, fanout_max_members: int) -> None:
        self.facts = facts
        self.limit = fanout_max_members
        self.changes = Changes()

    def apply(self, delivery: Delivery) -> Effect:
        event = delivery.event
        channel = self.facts.channels.get(event.channel_id)
        if isinstance(event, ChannelEvent):
            if event.action == "put":
                return self._put_channel(event, channel, delivery.position)
            return self._delete_channel(event, channel, delivery.position)
        if channel is None or channel.deleted:
            return Effect(error=ChannelNotFound(f"there is no channel {event.channel_id!r}", field="channel_id"))
        channel = replace(channel, change=channel.change + 1, position=delivery.position)
        match event:
            case MessageEvent():
                return self._message(event, channel)
            case EditEvent():
                return self._edit(event, channel)
            case DeleteEvent():
                return self._delete(event, channel)
            case MembersEvent():
                return self._members(event, channel)

    # ------------------------------------------------------------ messages

    def _message(self, event: MessageEvent, channel: Channel) -> Effect:
        key = (event.channel_id, event.id)
        known = self.facts.messages.get(key)
        if known is not None:
            return self._duplicate(known, self.facts.channels[event.channel_id])
        thread_seq = None
        if event.thread_id is not None:
            error = self._thread_error(event.channel_id, event.thread_id)
            if error is not None:
                return Effect(error=error)
            thread_seq = None if event.backfill else self._next_in_thread(event.channel_id, event.thread_id)
        in_channel = not event.backfill and (event.thread_id is None or event.also_to_channel)
        message = Message(
            channel_id=event.channel_id,
            id=event.id,
            seq=channel.last_seq + 1 if in_channel else None,
            sender_id=event.sender_id,
            at=max(event.at, channel.last_at + 1) if in_channel else event.at,
            sent_at=event.sent_at,
            text=event.text,
            preview=event.preview,
            thread_id=event.thread_id,
            thread_seq=thread_seq,
            mentions=_resolve(event.mentions, channel.mode),
            silent=event.silent,
            backfill=event.backfill,
            change=channel.change,
        )
        self._store(message)
        if message.seq is None:
            return Effect(message=message)
        channel = replace(
            channel,
            last_seq=message.seq,
            last_id=message.id,
            last_at=message.at,
            latest=_latest(message),
        )
        self._set_channel(channel)
        pointer = self._own_pointer(message, message.seq, event.created_at)
        return self._delivered(message, message.seq, channel, pointer)

    def _duplicate(self, known: Message, channel: Channel) -> Effect:
        """The steps again: the writer that stored the message may have died before it took them."""
        if known.seq is None or known.deleted:
            return Effect(message=known, duplicate=True)
        pointer = self.facts.pointers.get((known.channel_id, known.sender_id))
        effect = self._delivered(known, known.seq, channel, pointer)
        effect.duplicate = True
        return effect

    def _delivered(self, message: Message, seq: int, channel: Channel, pointer: Pointer | None) -> Effect:
        everyone = EVERYONE in message.mentions
        entry = None if message.silent else Entry(seq, message.id, message.at, everyone)
        ledger = channel.mode is Mode.LEDGER
        users = self.facts.audience.get(channel.channel_id, ()) if ledger else _by_id(message)
        effect = Effect(message=message, channel=channel)
        effect.channel_steps.append(ChannelStep(channel, message.change, None if ledger else entry))
        if users:
            named = None if everyone and ledger else frozenset(message.mentions)
            fan = Fan(channel.channel_id, message.change, users, entry, named, message.sender_id)
            effect.user_steps.append(fan)
        if pointer is not None:
            effect.user_steps.append(OwnRead(channel.channel_id, message.sender_id, seq, pointer))
        return effect

    def _own_pointer(self, message: Message, seq: int, now: int) -> Pointer:
        key = (message.channel_id, message.sender_id)
        known = self.facts.pointers.get(key) or Pointer()
        pointer = pointer_at(advance(known.state, seq), Position(seq, message.id, message.at), now)
        self.facts.pointers[key] = self.changes.pointers[key] = pointer
        return pointer

    def _thread_error(self, channel: str, thread: str) -> ReadstateError | None:
        root = self.facts.messages.get((channel, thread))
        if root is None or _is_tombstone(root):
            return ThreadNotFound(f"there is no message {thread!r} to reply to", field="thread_id")
        if root.thread_id is not None:
            return ReplyToReply(f"{thread!r} is a reply itself: reply to {root.thread_id!r}", field="thread_id")
        return None

    def _next_in_thread(self, channel: str, thread: str) -> int:
        seq = self.facts.threads.get((channel, thread), 0) + 1
        self.facts.threads[channel, thread] = self.changes.threads[channel, thread] = seq
        return seq

    def _edit(self, event: EditEvent, channel: Channel) -> Effect:
        known = self.facts.messages.get((event.channel_id, event.id))
        if known is None or _is_tombstone(known):
            return Effect(error=MessageNotFound(f"there is no message {event.id!r}", field="id"))
        if known.deleted:
            return Effect(error=MessageDeleted(f"message {event.id!r} is deleted", field="id"))
        message = replace(
            known,
            text=known.text if event.text is UNSET else event.text,
            preview=known.preview if event.preview is UNSET else event.preview,
            mentions=known.mentions if event.mentions is UNSET else _resolve(event.mentions, channel.mode),
        )
        self._store(message)
        if channel.latest is not None and channel.latest.id == message.id:
            channel = replace(channel, latest=_latest(message))
        return self._recounted(known, message, channel)

    def _recounted(self, before: Message, message: Message, channel: Channel) -> Effect:
        """Tells everyone whom an edit may concern: who was mentioned, who is, and who sees the channel."""
        self._set_channel(channel)
        effect = Effect(message=message, channel=channel)
        ledger = channel.mode is Mode.LEDGER
        everyone = EVERYONE in message.mentions
        entry = None
        if message.seq is not None and not message.silent:
            entry = Entry(message.seq, message.id, message.at, everyone)
        effect.channel_steps.append(ChannelStep(channel, channel.change, None if ledger else entry))
        users = self.facts.audience.get(channel.channel_id, ()) if ledger else _by_id(before, message)
        if users:
            named = None if everyone and ledger else frozenset(message.mentions)
            fan = Fan(channel.channel_id, channel.change, users, entry, named, message.sender_id, edit=True)
            effect.user_steps.append(fan)
        return effect

    def _delete(self, event: DeleteEvent, channel: Channel) -> Effect:
        key = (event.channel_id, event.id)
        known = self.facts.messages.get(key)
        if known is None:
            tombstone = Message(event.channel_id, event.id, None, "", event.created_at, deleted=True)
            self._store(tombstone)
            return Effect(message=tombstone)
        if known.deleted:
            return Effect(message=known, duplicate=True)
        message = replace(known, deleted=True, text=None, preview=None)
        self._store(message)
        if channel.latest is not None and channel.latest.id == message.id:
            newest = self.facts.newest_but.get(key)
            channel = replace(channel, latest=_latest(newest) if newest else None)
        self._set_channel(channel)
        ledger = channel.mode is Mode.LEDGER
        effect = Effect(message=message, channel=channel)
        effect.channel_steps.append(ChannelStep(channel, channel.change, remove=message.seq or 0))
        users = self.facts.audience.get(channel.channel_id, ()) if ledger else _by_id(message)
        if users:
            effect.user_steps.append(Fan(channel.channel_id, channel.change, users, remove=message.seq or 0))
        return effect

    # ------------------------------------------------------------ members and channels

    def _members(self, event: MembersEvent, channel: Channel) -> Effect:
        joined = tuple(self._join(user, event, channel) for user in event.add if not self._is_active(channel, user))
        left = tuple(user for user in event.remove if self._is_active(channel, user))
        for user in left:
            self._set_member(replace(self.facts.members[channel.channel_id, user], active=False))
        count = channel.member_count + len(joined) - len(left)
        if not joined and not left:
            return Effect(channel=self.facts.channels[channel.channel_id])
        outgrown = channel.mode is Mode.LEDGER and count > self.limit
        mode = Mode.TIMELINE if outgrown else channel.mode
        channel = replace(channel, member_count=count, mode=mode)
        self._set_channel(channel)
        effect = Effect(channel=channel, added=len(joined), removed=len(left))
        effect.channel_steps.append(ChannelStep(channel, channel.change))
        if joined:
            effect.user_steps.append(Joined(channel.channel_id, channel.change, channel.mode, channel.last_seq, joined))
        if left:
            effect.user_steps.append(Left(channel.channel_id, channel.change, left))
        stayed = tuple(user for user in self.facts.audience.get(channel.channel_id, ()) if user not in left)
        if stayed and outgrown:
            effect.user_steps.append(Switched(channel.channel_id, channel.change, stayed))
        return effect

    def _is_active(self, channel: Channel, user: str) -> bool:
        member = self.facts.members.get((channel.channel_id, user))
        return member is not None and member.active

    def _join(self, user: str, event: MembersEvent, channel: Channel) -> tuple[str, Pointer]:
        """Makes the user a member and moves the pointer forward as `history` says, never back."""
        key = (channel.channel_id, user)
        pointer = self.facts.pointers.get(key) or Pointer()
        target = START
        if event.history in {"read", 0}:
            target = channel.end
        elif isinstance(event.history, int):
            target = self.facts.before_last.get((channel.channel_id, event.history), START)
        skipped: tuple[tuple[int, int, int], ...] = ()
        if target.seq > pointer.seq:
            skipped = ((pointer.epoch, pointer.seq, target.seq),)
            pointer = pointer_at(advance(pointer.state, target.seq), target, event.created_at)
            self.changes.pointers[key] = pointer
        known = self.facts.members.get(key)
        member = Member(
            channel_id=channel.channel_id,
            user_id=user,
            joined_seq=channel.last_seq,
            joined_at=event.created_at,
            skipped=(known.skipped if known else ()) + skipped,
        )
        self._set_member(member)
        return user, pointer

    def _put_channel(self, event: ChannelEvent, known: Channel | None, position: int) -> Effect:
        base = Channel(event.channel_id)
        if known is not None and known.deleted:
            base = replace(base, last_seq=known.last_seq, last_at=known.last_at, change=known.change)
        elif known is not None:
            base = known
        channel = replace(
            base,
            change=base.change + 1,
            position=position,
            type=base.type if event.type is UNSET else event.type,
            name=base.name if event.name is UNSET else event.name,
            avatar=base.avatar if event.avatar is UNSET else event.avatar,
            archived=base.archived if event.archived is UNSET else event.archived,
        )
        self._set_channel(channel)
        effect = Effect(channel=channel, channel_steps=[ChannelStep(channel, channel.change)])
        users = self.facts.audience.get(channel.channel_id, ())
        if users:
            effect.user_steps.append(Fan(channel.channel_id, channel.change, users))
        return effect

    def _delete_channel(self, event: ChannelEvent, known: Channel | None, position: int) -> Effect:
        if known is None or known.deleted:
            return Effect(error=ChannelNotFound(f"there is no channel {event.channel_id!r}", field="channel_id"))
        channel = Channel(
            event.channel_id,
            deleted=True,
            last_seq=known.last_seq,
            last_at=known.last_at,
            change=known.change + 1,
            position=position,
        )
        self._set_channel(channel)
        self.changes.purged.add(event.channel_id)
        users = self.facts.everyone.get(event.channel_id, ())
        effect = Effect(channel=channel, channel_steps=[ChannelStep(channel, channel.change)])
        if users:
            effect.user_steps.append(Gone(event.channel_id, channel.change, users))
        return effect

    # ------------------------------------------------------------ rows

    def _store(self, message: Message) -> None:
        key = (message.channel_id, message.id)
        self.facts.messages[key] = self.changes.messages[key] = message

    def _set_channel(self, channel: Channel) -> None:
        self.facts.channels[channel.channel_id] = self.changes.channels[channel.channel_id] = channel

    def _set_member(self, member: Member) -> None:
        key = (member.channel_id, member.user_id)
        self.facts.members[key] = self.changes.members[key] = member


def _latest(message: Message) -> Latest | None:
    if message.seq is None:
        return None
    return Latest(message.id, message.seq, message.at, message.sender_id, message.preview)


def _by_id(*messages: Message) -> tuple[str, ...]:
    """Who is mentioned by id."""
    return tuple({user for message in messages for user in message.mentions if user != EVERYONE})


def _resolve(mentions: tuple[str, ...], mode: Mode) -> tuple[str, ...]:
    """`@here` in a big channel is everyone; in a small one those online, of whom there are none yet."""
    if HERE not in mentions:
        return mentions
    rest = tuple(user for user in mentions if user != HERE)
    return rest if mode is Mode.LEDGER or EVERYONE in rest else (*rest, EVERYONE)


def _is_tombstone(message: Message) -> bool:
    """A delete of an id that was never seen left this behind."""
    return message.deleted and not message.sender_id
