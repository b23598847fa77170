"""A chat in plain lists: what Readstate must answer, worked out the slow and obvious way.

It is written from the specification and shares no code with the service. Every count walks all messages
of a channel; nothing is kept that could be computed. The tests drive it beside the real one.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .values import AllRead, Channel, Message, Preferences, Reading, Refused, Row, Sent, Thread

ALL = "@channel"
ONLINE = "@here"
FOREVER = 2**53 - 1
History = str | int


class NaiveChat:
    """All channels, all members, all reads."""

    def __init__(
        self,
        clock: Callable[[], int],
        *,
        fanout_max_members: int = 100,
        unread_cap: int = 10_000,
        display_cap: int = 99,
        undo_ttl: int = 600,
    ) -> None:
        self.clock = clock
        self.fanout_max_members = fanout_max_members
        self.unread_cap = unread_cap
        self.display_cap = display_cap
        self.undo_ttl = undo_ttl
        self.channels: dict[str, Channel] = {}
        self.threads: dict[tuple[str, str], Thread] = {}
        self.readings: dict[tuple[str, str], Reading] = {}
        self.preferences: dict[tuple[str, str], Preferences] = {}
        self.undos: list[AllRead] = []
        self.let_go: dict[tuple[str | None, str], int] = {}
        self._epochs = 0

    # ------------------------------------------------------------ looking things up

    def channel(self, channel_id: str) -> Channel:
        """The channel, if it is there."""
        found = self.channels.get(channel_id)
        if found is None or not found.exists:
            raise Refused("channel_not_found")
        return found

    def member_channel(self, user: str, channel_id: str) -> Channel:
        """The channel, if it is there and the user is in it."""
        channel = self.channel(channel_id)
        if user not in channel.members:
            raise Refused("not_a_member")
        return channel

    def channels_of(self, user: str) -> list[Channel]:
        """All channels that the user is in."""
        return [c for c in self.channels.values() if c.exists and user in c.members]

    def reading(self, user: str, channel_id: str) -> Reading:
        """What the user has read in the channel; nothing, at first."""
        if (user, channel_id) not in self.readings:
            self.readings[user, channel_id] = Reading(self._new_epoch())
        return self.readings[user, channel_id]

    def _new_epoch(self) -> int:
        self._epochs += 1
        return self._epochs

    # ------------------------------------------------------------ channels and members

    def put_channel(
        self,
        channel_id: str,
        members: Iterable[str] = (),
        type: str | None = None,  # noqa: A002
        archived: bool | None = None,
    ) -> None:
        """Creates or changes a channel; members come with everything read."""
        known = self.channels.get(channel_id, Channel(channel_id))
        new_type = known.type if type is None else type
        grows = not known.members.issuperset(members)
        if new_type == "direct" and (grows or known.type != "direct") and len(known.members.union(members)) > 2:
            raise Refused("direct_channel_full")
        channel = self.channels.setdefault(channel_id, known)
        channel.exists = True
        channel.type = channel.type if type is None else type
        channel.archived = channel.archived if archived is None else archived
        for user in members:
            self._join(channel, user, "read")
        self._note_size(channel)

    def delete_channel(self, channel_id: str) -> None:
        """Nothing is left but the count of its seqs."""
        old = self.channel(channel_id)
        self.channels[channel_id] = Channel(channel_id, last_seq=old.last_seq, last_at=old.last_at)
        self.readings = {pair: kept for pair, kept in self.readings.items() if pair[1] != channel_id}
        self.preferences = {pair: kept for pair, kept in self.preferences.items() if pair[1] != channel_id}
        self.let_go = {pair: kept for pair, kept in self.let_go.items() if pair[1] != channel_id}
        for thread in self.threads.values():
            if thread.channel_id == channel_id:
                thread.followers, thread.read_up_to, thread.overfull = set(), {}, set()

    def change_members(
        self, channel_id: str, add: Sequence[str] = (), remove: Sequence[str] = (), history: History = "read"
    ) -> tuple[int, int, int]:
        """How many were added and removed, and how many there are."""
        if set(add) & set(remove) or not (add or remove):
            raise Refused("invalid")
        channel = self.channel(channel_id)
        before = set(channel.members)
        after = before.union(add) - set(remove)
        if channel.type == "direct" and len(after) > 2 and not before.issuperset(add):
            raise Refused("direct_channel_full")
        for user in add:
            self._join(channel, user, history)
        joined = len(channel.members - before)
        left = len(channel.members & set(remove))
        channel.members -= set(remove)
        self._note_size(channel)
        return joined, left, len(channel.members)

    def _join(self, channel: Channel, user: str, history: History) -> None:
        if user in channel.members:
            return
        channel.members.add(user)
        self._read_up_to(user, channel.id, self._start_of(channel, history))
        self._note_let_go(channel)

    def _note_size(self, channel: Channel) -> None:
        if len(channel.members) > self.fanout_max_members:
            channel.outgrown = True

    def _start_of(self, channel: Channel, history: History) -> int:
        if history == "unread":
            return 0
        standing = [m for m in channel.placed() if not m.deleted]
        if history in {"read", 0}:
            return channel.last_seq
        assert isinstance(history, int)
        if len(standing) < history:
            return 0
        seq = standing[-history].seq
        assert seq is not None
        return seq - 1

    # ------------------------------------------------------------ messages

    def send(self, channel_id: str, sender: str, message_id: str, **fields: Any) -> Sent:
        """Takes one message, or says why not. The same id again is the same message."""
        try:
            return self._send(channel_id, sender, message_id, **fields)
        except Refused as why:
            return Sent("rejected", message_id, code=why.code)

    def _send(
        self,
        channel_id: str,
        sender: str,
        message_id: str,
        *,
        at: int | None = None,
        text: str | None = None,
        preview: str | None = None,
        thread_id: str | None = None,
        also_to_channel: bool = False,
        mentions: Iterable[str] = (),
        silent: bool = False,
        backfill: bool = False,
        outside: bool = False,
    ) -> Sent:
        channel = self.channel(channel_id)
        if channel.archived:
            raise Refused("channel_archived")
        if sender not in channel.members and not outside:
            raise Refused("not_a_member")
        first = channel.find(message_id)
        if first is not None:
            return Sent("duplicate", message_id, first.seq, first.thread_seq)
        message = Message(message_id, sender, self._time(at), sent_at=at, text=text, silent=silent)
        message.preview = self._preview(text, preview)
        message.mentions = self._mentioned(channel, mentions, sender)
        message.thread_id = thread_id
        thread = None if thread_id is None else self.thread(channel, thread_id)
        channel.messages.append(message)
        if not backfill:
            self._place(channel if thread is None or also_to_channel else None, thread, message)
            self.placed(channel, thread, message, {u for u in mentions if u not in {ALL, ONLINE}})
        return Sent("accepted", message_id, message.seq, message.thread_seq)

    def _place(self, channel: Channel | None, thread: Thread | None, message: Message) -> None:
        """In the channel, in the thread or in both, after everything that is there."""
        ends = [room for room in (channel, thread) if room is not None]
        message.at = max([message.at, *(room.last_at + 1 for room in ends)])
        for room in ends:
            room.last_seq, room.last_at = room.last_seq + 1, message.at
        message.thread_seq = None if thread is None else thread.last_seq
        if channel is not None:
            message.seq = channel.last_seq
            self._read_up_to(message.sender, channel.id, message.seq)
            self._note_let_go(channel)

    def placed(self, channel: Channel, thread: Thread | None, message: Message, named: set[str]) -> None:
        """What else a message does once it has its place; it names these by id."""

    def now(self) -> int:
        """When something is accepted."""
        return self.clock()

    def online(self, user: str) -> bool:
        """Whether the user has a device connected."""
        return False

    def _time(self, at: int | None) -> int:
        return self.now() if at is None else min(at, self.now())

    def _preview(self, text: str | None, given: str | None) -> str | None:
        source = text if given is None else given
        return None if source is None else source[:100]

    def _mentioned(self, channel: Channel, mentions: Iterable[str], sender: str) -> frozenset[str]:
        """`@here` means the members who are online, or everybody where there are many."""
        named = set(mentions)
        if ONLINE in named:
            named.discard(ONLINE)
            here = {user for user in channel.members if self.online(user) and user != sender}
            named |= {ALL} if channel.outgrown else here
        return frozenset(named)

    def thread(self, channel: Channel, thread_id: str) -> Thread:
        """The thread under a message that can have one."""
        root = channel.find(thread_id)
        if root is None or root.tombstone:
            raise Refused("thread_not_found")
        if root.thread_id is not None:
            raise Refused("reply_to_reply")
        return self.threads.setdefault((channel.id, thread_id), Thread(channel.id, thread_id))

    def message(self, channel_id: str, message_id: str) -> Message:
        """A message that was once sent."""
        found = self.channel(channel_id).find(message_id)
        if found is None or found.tombstone:
            raise Refused("message_not_found")
        return found

    def edit(self, channel_id: str, message_id: str, **fields: Any) -> None:
        """Changes the `text` or the `mentions`, or both."""
        message = self.message(channel_id, message_id)
        if message.deleted:
            raise Refused("message_deleted")
        if "text" in fields:
            message.text, message.preview = fields["text"], self._preview(fields["text"], None)
        if "mentions" in fields:
            message.mentions = self._mentioned(self.channel(channel_id), fields["mentions"], message.sender)

    def delete(self, channel_id: str, message_id: str) -> None:
        """It counts nowhere from now on, even if it comes only later."""
        channel = self.channel(channel_id)
        message = channel.find(message_id)
        if message is None:
            channel.messages.append(Message(message_id, "", 0, deleted=True, tombstone=True))
        else:
            message.deleted = True

    # ------------------------------------------------------------ reading

    def mark_read(self, user: str, channel_id: str, *, epoch: int | None = None, **target: Any) -> bool:
        """Reads everything, or what one of `up_to`, `up_to_seq`, `up_to_time`, `messages` says."""
        seq, apart = self._meant(self.channel(channel_id), **target)
        self.member_channel(user, channel_id)
        if epoch is not None and epoch != self.reading(user, channel_id).epoch:
            return False
        return self._read_up_to(user, channel_id, seq, apart)

    def _meant(
        self,
        channel: Channel,
        up_to: str | None = None,
        up_to_seq: int | None = None,
        up_to_time: int | None = None,
        messages: Iterable[str] | None = None,
    ) -> tuple[int, list[int]]:
        if up_to is not None:
            return self._seq_of(channel, up_to), []
        if up_to_seq is not None:
            return min(up_to_seq, channel.last_seq), []
        if up_to_time is not None:
            return max((m.seq or 0 for m in channel.placed() if m.at <= up_to_time), default=0), []
        if messages is not None:
            return 0, [self._seq_of(channel, m) for m in messages]
        return channel.last_seq, []

    def _seq_of(self, channel: Channel, message_id: str) -> int:
        message = self.message(channel.id, message_id)
        if message.seq is None:
            raise Refused("message_without_seq")
        return message.seq

    def _read_up_to(self, user: str, channel_id: str, seq: int, apart: Iterable[int] = ()) -> bool:
        old = self.reading(user, channel_id)
        top = max(old.seq, seq)
        new = Reading(old.epoch, top, frozenset(s for s in {*old.apart, *apart} if s > top))
        self.readings[user, channel_id] = new
        return new != old

    def mark_unread(self, user: str, channel_id: str, from_: str, epoch: int | None = None) -> bool:
        """That message and all later ones are unread again; nothing becomes read."""
        channel = self.member_channel(user, channel_id)
        if self.message(channel_id, from_).deleted:
            raise Refused("message_deleted")
        seq = self._seq_of(channel, from_)
        old = self.reading(user, channel_id)
        if epoch is not None and epoch != old.epoch:
            return False
        top = min(old.seq, seq - 1)
        own = {m.seq for m in channel.placed() if m.sender == user and m.seq}
        kept = frozenset(s for s in old.apart | own if s > top and (s < seq or s in own))
        self.readings[user, channel_id] = Reading(self._new_epoch(), top, kept)
        self._note_let_go(channel)
        return True

    def mark_all(
        self, user: str, *, up_to_time: int | None = None, items: list[dict[str, Any]] | None = None
    ) -> tuple[int, int]:
        """Reads every channel, or those of `items`: how many changed, and the number to undo it with."""
        if items is None:
            everywhere = {} if up_to_time is None else {"up_to_time": up_to_time}
            items = [{"channel_id": c.id, **everywhere} for c in self.channels_of(user)]
        before = {i["channel_id"]: self.reading(user, i["channel_id"]) for i in items}
        backup = dict(self.readings)
        try:
            for item in items:
                self.mark_read(user, **item)
        except Refused:
            self.readings = backup
            raise
        steps = {c: (old, self.reading(user, c)) for c, old in before.items() if old != self.reading(user, c)}
        self.undos.append(AllRead(user, self.clock(), steps))
        return len(steps), len(self.undos) - 1

    def undo(self, user: str, number: int) -> int:
        """Gives back what a "mark all read" took, where the user has not moved the pointer since."""
        undo = self.undos[number]
        if undo.user != user or undo.used or self.clock() >= undo.made_at + self.undo_ttl * 1000:
            raise Refused("undo_not_found")
        undo.used = True
        return sum(self._give_back(user, c, before, after) for c, (before, after) in undo.steps.items())

    def _give_back(self, user: str, channel_id: str, before: Reading, after: Reading) -> bool:
        now = self.readings.get((user, channel_id))
        left = user not in self.channels[channel_id].members
        if left or now is None or (now.epoch, now.seq) != (after.epoch, after.seq):
            return False
        since = now.apart - after.apart
        self.readings[user, channel_id] = Reading(self._new_epoch(), before.seq, before.apart | since)
        self._note_let_go(self.channels[channel_id])
        return True

    # ------------------------------------------------------------ counting

    def unread_messages(self, user: str, channel_id: str) -> list[Message]:
        """Every message that is unread for the user, oldest first."""
        state = self.reading(user, channel_id)
        return [
            m
            for m in self.channel(channel_id).placed()
            if m.seq is not None and m.seq > state.seq and m.seq not in state.apart
            if m.sender != user and not m.deleted and not m.silent
        ]

    def unread_mentions(self, user: str, channel_id: str) -> list[Message]:
        """The unread ones that name the user, or everyone."""
        return [m for m in self.unread_messages(user, channel_id) if m.mentions & {user, ALL}]

    def put_preferences(
        self,
        user: str,
        channel_id: str,
        *,
        muted: bool | int | None = None,
        count: str | None = None,
        receipts: str | None = None,
        pinned: bool | None = None,
        archived: bool | None = None,
    ) -> None:
        """Changes what is given."""
        channel = self.member_channel(user, channel_id)
        mine = self.preferences.setdefault((user, channel_id), Preferences())
        if muted is not None:
            mine.muted_until = (FOREVER if muted else 0) if isinstance(muted, bool) else muted
        mine.count = mine.count if count is None else count
        mine.receipts = mine.receipts if receipts is None else receipts
        mine.pinned = mine.pinned if pinned is None else pinned
        if archived is not None:
            mine.archived_seq = channel.last_seq if archived else None

    def wants(self, user: str, channel_id: str) -> Preferences:
        """The user's preferences for the channel."""
        return self.preferences.get((user, channel_id), Preferences())

    def is_muted(self, user: str, channel_id: str) -> bool:
        """Whether the channel is muted for the user now."""
        return self.clock() < self.wants(user, channel_id).muted_until

    def shown(self, user: str, channel_id: str) -> int:
        """The number that the user wants to see."""
        wanted = self.wants(user, channel_id).count
        if wanted == "none":
            return 0
        of = self.unread_mentions if wanted == "mentions" else self.unread_messages
        return len(of(user, channel_id))

    def label(self, count: int) -> str:
        """The number as a badge shows it."""
        if count == 0:
            return ""
        return str(count) if count <= self.display_cap else f"{self.display_cap}+"

    def row(self, user: str, channel_id: str) -> Row:
        """Everything that the user sees of the channel."""
        channel = self.member_channel(user, channel_id)
        unread = self.unread_messages(user, channel_id)
        shown = self.shown(user, channel_id)
        latest = channel.latest()
        return Row(
            channel_id=channel_id,
            unread=shown,
            label=self.label(shown),
            has_unread=bool(unread),
            mentions=len(self.unread_mentions(user, channel_id)),
            first_unread=(unread[0].id, unread[0].seq or 0, unread[0].at) if unread else None,
            last_read=self._last_read(user, channel),
            latest=(latest.id, latest.seq or 0, latest.at, latest.sender, latest.preview) if latest else None,
            muted=self.is_muted(user, channel_id),
        )

    def _last_read(self, user: str, channel: Channel) -> tuple[str | None, int, int | None]:
        seq = self.reading(user, channel.id).seq
        message = next((m for m in channel.placed() if m.seq == seq), None)
        return (message.id, seq, message.at) if message else (None, seq, None)

    def rows(self, user: str) -> list[Row]:
        """All of a user's channels: unread first, then by latest activity, then by id."""

        def order(row: Row) -> tuple[bool, float, str]:
            return not row.has_unread, -row.latest[2] if row.latest else 1, row.channel_id

        return sorted((self.row(user, c.id) for c in self.channels_of(user)), key=order)

    def totals(self, user: str) -> tuple[int, int, int]:
        """Unread, mentions and channels with anything unread, over what is neither muted nor archived."""
        loud = [r for r in self.rows(user) if not r.muted and not self.channel(r.channel_id).archived]
        return sum(r.unread for r in loud), sum(r.mentions for r in loud), sum(r.has_unread for r in loud)

    def after_pointer(self, user: str, channel_id: str) -> list[Message]:
        """Everything that has a place after the user's pointer, counted or not."""
        seq = self.reading(user, channel_id).seq
        return [m for m in self.channel(channel_id).placed() if (m.seq or 0) > seq]

    # ------------------------------------------------------------ lower bounds

    def _note_let_go(self, channel: Channel) -> None:
        """Remembers the newest message that a set of at most `unread_cap` had to let go, per member and for all."""
        counted = [m for m in channel.placed() if not m.deleted and not m.silent]
        self._let_go(channel, None, counted)
        for user in channel.members:
            self._let_go(channel, user, self.unread_messages(user, channel.id))

    def _let_go(self, channel: Channel, user: str | None, messages: list[Message]) -> None:
        if len(messages) > self.unread_cap:
            newest = messages[-self.unread_cap - 1].seq or 0
            self.let_go[user, channel.id] = max(newest, self.let_go.get((user, channel.id), 0))

    def may_be_capped(self, user: str, channel_id: str) -> bool:
        """Whether the count may be a lower bound: the pointer has not passed what was let go."""
        of_all = self.let_go.get((None, channel_id), 0) if self.channel(channel_id).outgrown else 0
        return max(of_all, self.let_go.get((user, channel_id), 0)) > self.reading(user, channel_id).seq
