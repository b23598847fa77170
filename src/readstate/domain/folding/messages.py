"""Folds channel events, pure: facts in, changes and effects out.

The durable store gathers the facts for a run of events, folds, and writes the changes, all in one transaction. So
every store assigns the same seqs and makes the same decisions, and no store has rules of its own.

A run is a list of messages, or one event of another kind, which needs facts that are up to date.
"""

from collections.abc import Container, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from readstate.domain.errors import (
    ChannelNotFound,
    MessageDeleted,
    MessageNotFound,
    NotAMember,
    ReadstateError,
    ReplyToReply,
    ThreadNotFound,
)
from readstate.domain.events import ChannelEvent, DeleteEvent, Delivery, EditEvent, MembersEvent, MessageEvent
from readstate.domain.facts import Changes, Effect, Facts, has_no_replies, named_by_id
from readstate.domain.hot_updates import ChannelHotUpdate, FanOut, Gone, Joined, Left, OwnRead, Switched
from readstate.domain.model import (
    START,
    ChangeNumber,
    Channel,
    Entry,
    Latest,
    LogPosition,
    Member,
    Message,
    Mode,
    Pointer,
    Position,
    ReadState,
    Undelivered,
)
from readstate.domain.rooms import is_thread, thread_room
from readstate.domain.rules import EVERYONE, HERE, advance, direct_error, pointer_at, skipped_by_join


def fold(
    run: Sequence[Delivery], facts: Facts, fanout_max_members: int, online: Container[str]
) -> tuple[Changes, list[Effect]]:
    """Apply a run to the facts. Who is away is decided here, once."""
    folding = _Folding(facts, fanout_max_members, online)
    return folding.changes, [folding.apply(delivery) for delivery in run]


class _Folding:
    def __init__(self, facts: Facts, fanout_max_members: int, online: Container[str]) -> None:
        self.facts = facts
        self.limit = fanout_max_members
        self.online = online
        self.changes = Changes()

    def apply(self, delivery: Delivery) -> Effect:
        event, position = delivery.event, LogPosition(delivery.position)  # the store has replaced offsets
        if is_thread(event.channel_id):  # from an instance of an earlier version: callers cannot name a thread's room
            return Effect(error=ChannelNotFound(f"there is no channel {event.channel_id!r}", field="channel_id"))
        channel = self.facts.channels.get(event.channel_id)
        if isinstance(event, ChannelEvent):
            if event.action == "put":
                return self._put_channel(event, channel, position)
            return self._delete_channel(event, channel, position)
        if channel is None or channel.deleted:
            return Effect(error=ChannelNotFound(f"there is no channel {event.channel_id!r}", field="channel_id"))
        channel = replace(channel, change=channel.change + 1)
        match event:
            case MessageEvent():
                return self._message(event, channel, position)
            case EditEvent():
                return self._edit(event, replace(channel, position=position))
            case DeleteEvent():
                return self._delete(event, replace(channel, position=position))
            case MembersEvent(thread_id=str()):
                return self._follows(event, channel, position)
            case MembersEvent():
                return self._members(event, replace(channel, position=position))

    # ------------------------------------------------------------ messages

    def _message(self, event: MessageEvent, channel: Channel, position: LogPosition) -> Effect:
        known = self.facts.messages.get((event.channel_id, event.id))
        if known is not None:
            return self._duplicate(known, self.facts.channels[event.channel_id])
        error = self._thread_error(event.channel_id, event.thread_id)
        if error is not None:
            return Effect(error=error)
        room = None
        if event.thread_id is not None and not event.backfill:
            room = self._room(event.channel_id, event.thread_id)
        in_channel = not event.backfill and (room is None or event.also_to_channel)
        after = max(channel.last_at if in_channel else 0, room.last_at if room else 0)
        message = Message(
            channel_id=event.channel_id,
            id=event.id,
            seq=channel.last_seq + 1 if in_channel else None,
            sender_id=event.sender_id,
            at=max(event.at, after + 1),
            sent_at=event.sent_at,
            text=event.text,
            preview=event.preview,
            thread_id=event.thread_id,
            thread_seq=None if room is None else room.last_seq + 1,
            mentions=self._resolve(event.mentions, channel, event.sender_id),
            silent=event.silent,
            backfill=event.backfill,
            change=channel.change,
            position=position,
        )
        self._store(message)
        if event.backfill:
            return Effect(message=message)
        channel = replace(channel, position=position, **_end(message, message.seq)) if in_channel else channel
        self._set_channel(channel)
        effect = Effect(message=message, channel=channel)
        if in_channel:
            known_pointer = self.facts.pointers.get((channel.channel_id, event.sender_id)) or Pointer()
            effect.read_before = known_pointer.seq < channel.last_seq - 1
            own = self._own_pointer(channel.channel_id, message, message.seq, event, event.epoch)
            self._deliver(effect, message, channel, own)
        else:
            effect.channel_updates.append(ChannelHotUpdate(channel, channel.change))
        if room is not None:
            self._reply(effect, message, room, event)
        self._decide_away(effect, message, channel, event)
        return effect

    def _duplicate(self, known: Message, channel: Channel) -> Effect:
        """Produce the hot updates again: the writer that stored the message may have died before it sent them."""
        effect = Effect(message=known, channel=channel, duplicate=True)
        if known.deleted:
            return effect
        if known.seq is not None:
            pointer = self.facts.pointers.get((known.channel_id, known.sender_id))
            self._deliver(effect, known, channel, pointer)
        if known.thread_id is not None and known.thread_seq is not None:
            room = thread_room(known.channel_id, known.thread_id)
            if room in self.facts.channels:
                self._deliver_reply(effect, known, self.facts.channels[room], self.facts.followers.get(room, {}))
        return effect

    def _deliver(self, effect: Effect, message: Message, channel: Channel, pointer: Pointer | None) -> None:
        """Add the hot updates of a message that has a seq in the channel."""
        assert message.seq is not None
        everyone = EVERYONE in message.mentions
        entry = None if message.silent else Entry(message.seq, message.id, message.at, everyone)
        ledger = channel.mode is Mode.LEDGER
        users = self.facts.audience.get(channel.channel_id, ()) if ledger else _by_id(message)
        effect.channel_updates.append(ChannelHotUpdate(channel, message.change, None if ledger else entry))
        if users:
            named = None if everyone and ledger else frozenset(message.mentions)
            fan_out = FanOut(channel.channel_id, message.change, users, entry, named, message.sender_id)
            effect.user_updates.append(replace(fan_out, latest_at=_latest_at(channel), archived=channel.archived))
        if pointer is not None:
            effect.user_updates.append(OwnRead(channel.channel_id, message.sender_id, message.seq, pointer))

    def _resolve(self, mentions: tuple[str, ...], channel: Channel, sender: str) -> tuple[str, ...]:
        """`@here` means everyone in a timeline channel, and the online members in a ledger channel."""
        if HERE not in mentions:
            return mentions
        rest = [user for user in mentions if user != HERE]
        if channel.mode is Mode.TIMELINE:
            return tuple(dict.fromkeys([*rest, EVERYONE]))
        members = self.facts.audience.get(channel.channel_id, ())
        return tuple(dict.fromkeys([*rest, *(user for user in members if user in self.online and user != sender)]))

    def _own_pointer(
        self, room: str, message: Message, seq: int | None, event: MessageEvent, epoch: int = 0
    ) -> Pointer:
        """The sender has read up to the message. `epoch` may not be stored yet; the pointer merges with it later."""
        assert seq is not None
        key = (room, message.sender_id)
        known = self.facts.pointers.get(key) or Pointer()
        known = known if epoch <= known.epoch else Pointer(epoch)
        end = Position(seq, message.id, message.at)
        pointer = pointer_at(advance(known.state, seq), end, event.created_at)
        self.facts.pointers[key] = self.changes.pointers[key] = pointer
        return pointer

    # ------------------------------------------------------------ threads

    def _thread_error(self, channel: str, thread: str | None) -> ReadstateError | None:
        if thread is None:
            return None
        return root_error(thread, self.facts.messages.get((channel, thread)))

    def _room(self, channel: str, thread: str) -> Channel:
        """The thread's room. If it was deleted, the new one continues its seqs."""
        name = thread_room(channel, thread)
        known = self.facts.channels.get(name)
        if known is None:
            return Channel(name, type="thread")
        if known.deleted:
            return Channel(name, type="thread", last_seq=known.last_seq, last_at=known.last_at)
        return known

    def _reply(self, effect: Effect, message: Message, room: Channel, event: MessageEvent) -> None:
        """Add a reply: new followers join the thread, and the earlier followers get the message."""
        assert message.thread_seq is not None
        name = room.channel_id
        followers = self.facts.followers.setdefault(name, {})
        earlier = dict(followers)
        before = room.end
        room = replace(room, change=message.change, position=message.position, **_end(message, message.thread_seq))
        own = self._own_pointer(name, message, message.thread_seq, event)
        joined: dict[str, Pointer] = {}
        for user, start in self._new_followers(message, event, before, own).items():
            if user not in followers and self._is_active(message.channel_id, user):
                joined[user] = self._follow(name, user, start, event.created_at)
        room = replace(room, member_count=room.member_count + len(joined))
        self._set_channel(room)
        if joined:
            pointers = tuple(joined.items())
            update = Joined(name, message.change, Mode.LEDGER, room.last_seq, _latest_at(room), False, pointers)
            effect.user_updates.append(update)
        self._deliver_reply(effect, message, room, earlier)

    def _new_followers(
        self, message: Message, event: MessageEvent, before: Position, own: Pointer
    ) -> dict[str, Pointer]:
        """Who starts to follow, and at which pointer: the root's author, the mentioned users, the sender."""
        found: dict[str, Pointer] = {}
        thread = event.thread_id or ""
        if has_no_replies(self.facts.channels.get(thread_room(message.channel_id, thread))):
            found[self.facts.messages[message.channel_id, thread].sender_id] = Pointer()
        for user in named_by_id(event.mentions):
            found.setdefault(user, pointer_at(ReadState(0, before.seq), before))
        return found | {message.sender_id: own}

    def _follow(self, room: str, user: str, start: Pointer, now: int) -> Pointer:
        """Add a follower. A pointer that is further ahead stays."""
        known = self.facts.pointers.get((room, user)) or Pointer()
        pointer = known if known.seq >= start.seq else replace(start, epoch=known.epoch, apart=frozenset())
        if pointer.seq:
            self.facts.pointers[room, user] = self.changes.pointers[room, user] = pointer
        self._set_member(Member(room, user, joined_seq=pointer.seq, joined_at=now))
        self.facts.followers.setdefault(room, {})[user] = True
        return pointer

    def _follows(self, event: MembersEvent, channel: Channel, position: LogPosition) -> Effect:
        """Follow or unfollow on request. A new follower starts with everything read."""
        assert event.thread_id is not None
        error = self._thread_error(event.channel_id, event.thread_id)
        if error is not None:
            return Effect(error=error)
        for user in event.add:
            if not self._is_active(event.channel_id, user):
                return Effect(error=NotAMember(f"channel {event.channel_id!r} has no member {user!r}", field="user"))
        room = self._room(event.channel_id, event.thread_id)
        name, end = room.channel_id, room.end
        joined, left = [], []
        for user in event.add:
            if not self._is_active(name, user):
                start = pointer_at(ReadState(0, end.seq), end, event.created_at)
                joined.append((user, self._follow(name, user, start, event.created_at)))
        for user in event.remove:
            if self._is_active(name, user):
                self._set_member(replace(self.facts.members[name, user], active=False))
                left.append(user)
        effect = Effect(channel=room, added=len(joined), removed=len(left))
        if not joined and not left:
            return effect
        self._set_channel(channel)
        count = room.member_count + len(joined) - len(left)
        room = replace(room, change=channel.change, position=position, member_count=count)
        self._set_channel(room)
        effect.channel_updates += [ChannelHotUpdate(channel, channel.change), ChannelHotUpdate(room, room.change)]
        if joined:
            update = Joined(name, room.change, Mode.LEDGER, room.last_seq, _latest_at(room), False, tuple(joined))
            effect.user_updates.append(update)
        if left:
            effect.user_updates.append(Left(name, room.change, tuple(left)))
        return effect

    def _deliver_reply(self, effect: Effect, message: Message, room: Channel, followers: dict[str, bool]) -> None:
        assert message.thread_seq is not None
        entry = None if message.silent else Entry(message.thread_seq, message.id, message.at, False)
        effect.channel_updates.append(ChannelHotUpdate(room, message.change))
        if followers:
            named = frozenset(message.mentions)
            fan_out = FanOut(room.channel_id, message.change, tuple(followers), entry, named, message.sender_id)
            effect.user_updates.append(replace(fan_out, latest_at=_latest_at(room)))
        pointer = self.facts.pointers.get((room.channel_id, message.sender_id))
        if pointer is not None:
            effect.user_updates.append(OwnRead(room.channel_id, message.sender_id, message.thread_seq, pointer))

    def _change_reply(self, effect: Effect, message: Message, channel: Channel) -> None:
        """Update the thread of an edited or deleted reply, for its followers."""
        if message.thread_id is None or message.thread_seq is None:
            return
        name, change = thread_room(message.channel_id, message.thread_id), channel.change
        room = replace(self.facts.channels[name], change=change, position=channel.position)
        if room.latest is not None and room.latest.id == message.id:
            newest = self.facts.newest_but.get((name, message.id)) if message.deleted else message
            room = replace(room, latest=None if newest is None else _latest(newest, newest.thread_seq))
        self._set_channel(room)
        effect.channel_updates.append(ChannelHotUpdate(room, change))
        followers = tuple(self.facts.followers.get(name, ()))
        if followers:
            remove = _place(message, message.thread_seq) if message.deleted else None
            effect.user_updates.append(FanOut(name, change, followers, remove=remove, latest_at=_latest_at(room)))

    # ------------------------------------------------------------ who was away

    def _decide_away(self, effect: Effect, message: Message, channel: Channel, event: MessageEvent) -> None:
        """Split the receivers into those who are online (`reached`) and those who are away (`undelivered`)."""
        if message.silent:
            return
        name = channel.channel_id
        receivers = {user for user in named_by_id(event.mentions) if self._is_active(name, user)}
        if message.seq is not None and channel.type in {"direct", "group"} and channel.mode is Mode.LEDGER:
            now = event.created_at
            audience = self.facts.audience.get(name, ())
            receivers.update(user for user in audience if self.facts.muted.get((name, user), 0) <= now)
        if message.thread_id is not None and message.thread_seq is not None:
            followers = self.facts.followers.get(thread_room(name, message.thread_id), {})
            receivers.update(user for user, member in followers.items() if member)
        for user in sorted(receivers - {message.sender_id}):
            noted = Undelivered(user, event.created_at, message.sender_id, name, message.id)
            (effect.reached if user in self.online else effect.undelivered).append(noted)
        self.changes.undelivered += effect.undelivered

    # ------------------------------------------------------------ edits and deletes

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
            mentions=known.mentions
            if event.mentions is UNSET
            else self._resolve(event.mentions, channel, known.sender_id),
        )
        self._store(message)
        if channel.latest is not None and channel.latest.id == message.id:
            channel = replace(channel, latest=_latest(message, message.seq))
        effect = self._recounted(known, message, channel)
        self._change_reply(effect, message, channel)
        return effect

    def _recounted(self, before: Message, message: Message, channel: Channel) -> Effect:
        """Hot updates of an edit, for users who were or are mentioned and members who see the channel."""
        self._set_channel(channel)
        effect = Effect(message=message, channel=channel)
        ledger = channel.mode is Mode.LEDGER
        everyone = EVERYONE in message.mentions
        entry = None
        if message.seq is not None and not message.silent:
            entry = Entry(message.seq, message.id, message.at, everyone)
        effect.channel_updates.append(ChannelHotUpdate(channel, channel.change, None if ledger else entry))
        users = self.facts.audience.get(channel.channel_id, ()) if ledger else _by_id(before, message)
        if not ledger:
            once = sorted(set(_by_id(before)).difference(message.mentions))
            self.changes.once_named += [(channel.channel_id, message.id, user) for user in once]
        if users:
            named = None if everyone and ledger else frozenset(message.mentions)
            fan_out = FanOut(channel.channel_id, channel.change, users, entry, named, message.sender_id, edit=True)
            effect.user_updates.append(replace(fan_out, latest_at=_latest_at(channel), archived=channel.archived))
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
            channel = replace(channel, latest=None if newest is None else _latest(newest, newest.seq))
        self._set_channel(channel)
        ledger = channel.mode is Mode.LEDGER
        effect = Effect(message=message, channel=channel)
        effect.channel_updates.append(ChannelHotUpdate(channel, channel.change, remove=message.seq or 0))
        users = self.facts.audience.get(channel.channel_id, ()) if ledger else _by_id(message)
        if users:
            remove, latest_at = _place(message, message.seq), _latest_at(channel)
            fan_out = FanOut(channel.channel_id, channel.change, users, remove=remove, latest_at=latest_at)
            effect.user_updates.append(replace(fan_out, archived=channel.archived))
        self._change_reply(effect, message, channel)
        return effect

    # ------------------------------------------------------------ members and channels

    def _members(self, event: MembersEvent, channel: Channel) -> Effect:
        name = channel.channel_id
        new = [user for user in dict.fromkeys(event.add) if not self._is_active(name, user)]
        left = tuple(user for user in event.remove if self._is_active(name, user))
        count = channel.member_count + len(new) - len(left)
        if not new and not left:
            return Effect(channel=self.facts.channels[channel.channel_id])
        if new and channel.type == "direct" and (error := direct_error(name, count, "add")):
            return Effect(error=error)
        joined = tuple(self._join(user, event, channel) for user in new)
        for user in left:
            self._set_member(replace(self.facts.members[channel.channel_id, user], active=False))
        outgrown = channel.mode is Mode.LEDGER and count > self.limit
        mode = Mode.TIMELINE if outgrown else channel.mode
        known = self.facts.audience.get(name, ())
        stayed = tuple(user for user in known if user not in left)
        members = (*stayed, *(user for user, _ in joined))
        before = channel.peers
        channel = replace(channel, member_count=count, mode=mode, peers=_peers(channel.type, members))
        self._set_channel(channel)
        effect = Effect(channel=channel, added=len(joined), removed=len(left))
        effect.channel_updates.append(ChannelHotUpdate(channel, channel.change))
        if joined:
            effect.user_updates.append(
                Joined(
                    name,
                    channel.change,
                    mode,
                    channel.last_seq,
                    _latest_at(channel),
                    channel.archived,
                    joined,
                    self._reach(event, channel),
                )
            )
        if left:
            effect.user_updates.append(Left(channel.channel_id, channel.change, left))
        if stayed and outgrown:
            effect.user_updates.append(Switched(channel.channel_id, channel.change, stayed))
        elif stayed and channel.peers != before:  # the members who stay have another peer, or none
            fan_out = FanOut(name, channel.change, stayed, latest_at=_latest_at(channel), archived=channel.archived)
            effect.user_updates.append(fan_out)
        return effect

    def _is_active(self, channel: str, user: str) -> bool:
        member = self.facts.members.get((channel, user))
        return member is not None and member.active

    def _join(self, user: str, event: MembersEvent, channel: Channel) -> tuple[str, Pointer]:
        """Make the user a member and move the pointer forward as `history` says, never back.

        The event's epoch for the user may not be stored yet; the pointer merges with it later.
        """
        key = (channel.channel_id, user)
        pointer = self.facts.pointers.get(key) or Pointer()
        if (epoch := event.epochs.get(user, 0)) > pointer.epoch:
            pointer = Pointer(epoch)
        target = self._reach(event, channel)
        skipped: tuple[tuple[int, int], ...] = ()
        if target.seq > pointer.seq:
            skipped = skipped_by_join(pointer.state, target.seq)
            pointer = pointer_at(advance(pointer.state, target.seq), target, event.created_at)
            self.changes.pointers[key] = pointer
        own = advance(pointer.state, pointer.seq, self.facts.own_seqs.get(key, ()))
        if own != pointer.state:
            pointer = self.changes.pointers[key] = replace(pointer, apart=own.apart)
        known = self.facts.members.get(key)
        member = Member(
            channel_id=channel.channel_id,
            user_id=user,
            joined_seq=channel.last_seq,
            joined_at=event.created_at,
            skipped=(known.skipped if known else ()) + skipped,
            joined_position=channel.position,
        )
        self._set_member(member)
        return user, pointer

    def _reach(self, event: MembersEvent, channel: Channel) -> Position:
        """The position up to which the join reads."""
        if event.history in {"read", 0}:
            return channel.end
        if isinstance(event.history, int):
            return self.facts.before_last.get((channel.channel_id, event.history), START)
        return START

    def _put_channel(self, event: ChannelEvent, known: Channel | None, position: LogPosition) -> Effect:
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
        if channel.type == "direct" != base.type:
            error = direct_error(channel.channel_id, channel.member_count, "type")
            if error is not None:
                return Effect(error=error)
        users = self.facts.audience.get(channel.channel_id, ())
        channel = replace(channel, peers=_peers(channel.type, users))
        self._set_channel(channel)
        effect = Effect(channel=channel, channel_updates=[ChannelHotUpdate(channel, channel.change)])
        if users:
            fan_out = FanOut(channel.channel_id, channel.change, users, latest_at=_latest_at(channel))
            effect.user_updates.append(replace(fan_out, archived=channel.archived))
        return effect

    def _delete_channel(self, event: ChannelEvent, known: Channel | None, position: LogPosition) -> Effect:
        if known is None or known.deleted:
            return Effect(error=ChannelNotFound(f"there is no channel {event.channel_id!r}", field="channel_id"))
        channel = Channel(
            event.channel_id,
            deleted=True,
            last_seq=known.last_seq,
            last_at=known.last_at,
            change=ChangeNumber(known.change + 1),
            position=position,
        )
        self._set_channel(channel)
        self.changes.purged.add(event.channel_id)
        effect = Effect(channel=channel, channel_updates=[ChannelHotUpdate(channel, channel.change)])
        rooms: dict[str, list[str]] = {}
        for room, user in self.facts.everyone.get(event.channel_id, ()):
            rooms.setdefault(room, []).append(user)
        effect.user_updates += [Gone(room, channel.change, tuple(users)) for room, users in rooms.items()]
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


def root_error(thread: str, root: Message | None) -> ReadstateError | None:
    """Why a message cannot be the root of a thread; None: it can."""
    if root is None or _is_tombstone(root):
        return ThreadNotFound(f"there is no message {thread!r} to reply to", field="thread_id")
    if root.thread_id is not None:
        return ReplyToReply(f"{thread!r} is a reply itself: reply to {root.thread_id!r}", field="thread_id")
    return None


def _latest(message: Message, seq: int | None) -> Latest | None:
    if seq is None:
        return None
    return Latest(message.id, seq, message.at, message.sender_id, message.preview)


def _end(message: Message, seq: int | None) -> dict[str, object]:
    """The fields of a room that a new last message sets."""
    return {"last_seq": seq, "last_id": message.id, "last_at": message.at, "latest": _latest(message, seq)}


def _place(message: Message, seq: int | None) -> Position | None:
    return Position(seq, message.id, message.at) if seq else None


def _latest_at(room: Channel) -> int:
    return room.latest.at if room.latest is not None else 0


def _peers(type_: str, members: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(members)) if type_ == "direct" and len(members) <= 2 else ()


def _by_id(*messages: Message) -> tuple[str, ...]:
    """The users whom the messages mention by id."""
    return tuple({user for message in messages for user in message.mentions if user != EVERYONE})


def _is_tombstone(message: Message) -> bool:
    """Whether this is the trace of a delete whose message was never seen."""
    return message.deleted and not message.sender_id
