"""Folds channel events, pure: facts in, changes and effects out.

The durable store gathers the facts for a run of events, folds, and writes the changes, all in one transaction. So
every store assigns the same seqs and makes the same decisions, and no store has rules of its own.

A run is a list of messages, or one event of another kind, which needs facts that are up to date.
"""

from collections.abc import Container, Iterable, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from readstate.domain.errors import ChannelNotFound, MessageDeleted, MessageNotFound
from readstate.domain.events import ChannelEvent, DeleteEvent, Delivery, EditEvent, MembersEvent, MessageEvent
from readstate.domain.facts import Changes, Effect, Facts, named_by_id
from readstate.domain.hot_updates import ChannelHotUpdate, FanOut, OwnRead
from readstate.domain.model import Away, Channel, Entry, LogPosition, Message, Mode, Pointer, Undelivered
from readstate.domain.rooms import is_thread, thread_room
from readstate.domain.rules import EVERYONE, HERE

from .channels import ChannelFolding
from .state import end_of, latest_of, position_of
from .threads import ThreadFolding, is_tombstone


def fold(
    run: Sequence[Delivery], facts: Facts, fanout_max_members: int, online: Container[str], keeps_badge: bool = True
) -> tuple[Changes, list[Effect]]:
    """Apply a run to the facts. Who is away is decided here, once; not at all if no badge is kept."""
    folding = _Folding(facts, fanout_max_members, online, keeps_badge)
    return folding.changes, [folding.apply(delivery) for delivery in run]


class _Folding(ThreadFolding, ChannelFolding):
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
        channel = replace(channel, position=position, **end_of(message, message.seq)) if in_channel else channel
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
            effect.user_updates.append(replace(fan_out, latest_at=channel.latest_at, archived=channel.archived))
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

    # ------------------------------------------------------------ who was away

    def _decide_away(self, effect: Effect, message: Message, channel: Channel, event: MessageEvent) -> None:
        """Split the receivers into those who are online (`reached`) and those who are away (`undelivered`)."""
        if message.silent or not self.keeps_badge:
            return
        name, sender = channel.channel_id, message.sender_id
        named = {user for user in named_by_id(event.mentions) if self._is_active(name, user)}
        if message.thread_id is not None and message.thread_seq is not None:
            followers = self.facts.followers.get(thread_room(name, message.thread_id), {})
            named.update(user for user, member in followers.items() if member)
        to_all = message.seq is not None and channel.type in {"direct", "group"} and channel.mode is Mode.LEDGER
        online, away = self._receivers(name, named, event.created_at if to_all else None)
        effect.reached += [
            Undelivered(user, event.created_at, sender, name, message.id) for user in online if user != sender
        ]
        decided = Away(name, message.id, sender, event.created_at, away)
        if decided.others:
            effect.away = self.changes.away[name, message.id] = decided

    def _receivers(self, name: str, named: set[str], at: int | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Those online and those away, in the order of ids: `named` and, with a time, the members who do not mute."""
        if at is None:
            return self._split(named)
        if named or name in self._muted:
            audience = self.facts.audience.get(name, ())
            muted = self.facts.muted
            return self._split(named.union(user for user in audience if muted.get((name, user), 0) <= at))
        known = self._split_audience.get(name)  # the audience stays the same throughout a run of messages
        if known is None:
            known = self._split_audience[name] = self._split(self.facts.audience.get(name, ()))
        return known

    def _split(self, receivers: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        users = sorted(receivers)
        online = tuple([user for user in users if user in self.online])
        return online, tuple([user for user in users if user not in self.online] if online else users)

    # ------------------------------------------------------------ edits and deletes

    def _edit(self, event: EditEvent, channel: Channel) -> Effect:
        known = self.facts.messages.get((event.channel_id, event.id))
        if known is None or is_tombstone(known):
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
            channel = replace(channel, latest=latest_of(message, message.seq))
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
            effect.user_updates.append(replace(fan_out, latest_at=channel.latest_at, archived=channel.archived))
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
            channel = replace(channel, latest=None if newest is None else latest_of(newest, newest.seq))
        self._set_channel(channel)
        ledger = channel.mode is Mode.LEDGER
        effect = Effect(message=message, channel=channel)
        effect.channel_updates.append(ChannelHotUpdate(channel, channel.change, remove=message.seq or 0))
        users = self.facts.audience.get(channel.channel_id, ()) if ledger else _by_id(message)
        if users:
            remove, latest_at = position_of(message, message.seq), channel.latest_at
            fan_out = FanOut(channel.channel_id, channel.change, users, remove=remove, latest_at=latest_at)
            effect.user_updates.append(replace(fan_out, archived=channel.archived))
        self._change_reply(effect, message, channel)
        return effect


def _by_id(*messages: Message) -> tuple[str, ...]:
    """The users whom the messages mention by id."""
    return tuple({user for message in messages for user in message.mentions if user != EVERYONE})
