"""Folds replies, and who follows a thread."""

from msgspec.structs import replace

from readstate.domain.errors import NotAMember, ReadstateError, ReplyToReply, ThreadNotFound
from readstate.domain.events import MembersEvent, MessageEvent
from readstate.domain.facts import Effect, has_no_replies, named_by_id
from readstate.domain.hot_updates import ChannelHotUpdate, FanOut, Joined, Left, OwnRead
from readstate.domain.model import Channel, Entry, LogPosition, Member, Message, Mode, Pointer, Position, ReadState
from readstate.domain.rooms import thread_room
from readstate.domain.rules import pointer_at

from .state import Folding, end_of, latest_of, position_of


class ThreadFolding(Folding):
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
        room = replace(room, change=message.change, position=message.position, **end_of(message, message.thread_seq))
        own = self._own_pointer(name, message, message.thread_seq, event)
        joined: dict[str, Pointer] = {}
        for user, start in self._new_followers(message, event, before, own).items():
            if user not in followers and self._is_active(message.channel_id, user):
                joined[user] = self._follow(name, user, start, event.created_at)
        room = replace(room, member_count=room.member_count + len(joined))
        self._set_channel(room)
        if joined:
            pointers = tuple(joined.items())
            update = Joined(name, message.change, Mode.LEDGER, room.last_seq, room.latest_at, False, pointers)
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
            update = Joined(name, room.change, Mode.LEDGER, room.last_seq, room.latest_at, False, tuple(joined))
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
            effect.user_updates.append(replace(fan_out, latest_at=room.latest_at))
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
            room = replace(room, latest=None if newest is None else latest_of(newest, newest.thread_seq))
        self._set_channel(room)
        effect.channel_updates.append(ChannelHotUpdate(room, change))
        followers = tuple(self.facts.followers.get(name, ()))
        if followers:
            remove = position_of(message, message.thread_seq) if message.deleted else None
            effect.user_updates.append(FanOut(name, change, followers, remove=remove, latest_at=room.latest_at))


def root_error(thread: str, root: Message | None) -> ReadstateError | None:
    """Why a message cannot be the root of a thread; None: it can."""
    if root is None or is_tombstone(root):
        return ThreadNotFound(f"there is no message {thread!r} to reply to", field="thread_id")
    if root.thread_id is not None:
        return ReplyToReply(f"{thread!r} is a reply itself: reply to {root.thread_id!r}", field="thread_id")
    return None


def is_tombstone(message: Message) -> bool:
    """Whether this is the trace of a delete whose message was never seen."""
    return message.deleted and not message.sender_id
