"""The naive chat among people: threads, presence, the offline badge, receipts and the inbox, as slow and obvious."""

from collections.abc import Callable
from typing import Any

from .naive import History, NaiveChat
from .values import Channel, Message, Refused, Row, Thread, Undelivered


class NaivePeople(NaiveChat):
    """Everything that users see, worked out from plain lists."""

    def __init__(self, clock: Callable[[], int], *, receipts_max_members: int = 100, **limits: Any) -> None:
        super().__init__(clock, **limits)
        self.receipts_max_members = receipts_max_members
        self.devices: dict[str, dict[str, int]] = {}
        self.undelivered: list[Undelivered] = []
        self.taps: dict[str, int] = {}
        self.private: set[str] = set()
        """Who keeps receipts private everywhere."""
        self.by_joining: dict[tuple[str, str], set[int]] = {}
        """The seqs that only a join has marked as read."""

    # ------------------------------------------------------------ presence

    def now(self) -> int:
        """Whatever is accepted after a tap is later than the tap."""
        return max([self.clock(), *(tap + 1 for tap in self.taps.values())])

    def connect(self, user: str, device: str, online: bool, ttl: int) -> None:
        """A device comes, stays or goes."""
        mine = self.devices.setdefault(user, {})
        mine.pop(device, None)
        if online:
            mine[device] = self.clock() + ttl * 1000

    def connected(self, user: str) -> list[str]:
        """The user's devices, by name."""
        return sorted(d for d, until in self.devices.get(user, {}).items() if until > self.clock())

    def online(self, user: str) -> bool:
        """Whether the user has a device connected."""
        return bool(self.connected(user))

    # ------------------------------------------------------------ threads

    def placed(self, channel: Channel, thread: Thread | None, message: Message, named: set[str]) -> None:
        """Those whom a reply concerns follow its thread; those who are away will be told."""
        if thread is not None:
            self._follow_by_reply(channel, thread, message, named)
        if not message.silent:
            self._note_who_is_away(channel, thread, message)

    def _follow_by_reply(self, channel: Channel, thread: Thread, message: Message, named: set[str]) -> None:
        assert message.thread_seq is not None
        root = channel.find(thread.root)
        assert root is not None
        author = {root.sender} if len(self.replies(thread)) == 1 else set()
        for user in (named & channel.members) - thread.followers - author - {message.sender}:
            self._read_thread_up_to(thread, user, message.thread_seq - 1)
        thread.followers |= (named | author | {message.sender}) & channel.members
        self._read_thread_up_to(thread, message.sender, message.thread_seq)
        thread.overfull |= {u for u in thread.followers if len(self.unread_replies(u, thread)) > self.unread_cap}

    def _read_thread_up_to(self, thread: Thread, user: str, seq: int) -> bool:
        before = thread.read_up_to.get(user, 0)
        thread.read_up_to[user] = max(before, seq)
        return seq > before

    def replies(self, thread: Thread) -> list[Message]:
        """All that were ever written in it, oldest first."""
        messages = self.channels[thread.channel_id].messages
        return [m for m in messages if m.thread_id == thread.root and m.thread_seq is not None]

    def unread_replies(self, user: str, thread: Thread) -> list[Message]:
        """Replies by others after the user's pointer, neither deleted nor silent."""
        start = thread.read_up_to.get(user, 0)
        after = [m for m in self.replies(thread) if (m.thread_seq or 0) > start]
        return [m for m in after if m.sender != user and not m.deleted and not m.silent]

    def follow(self, user: str, channel_id: str, root: str, on: bool) -> None:
        """By hand: everything in it is read then."""
        thread = self.thread(self.member_channel(user, channel_id), root)
        if not on:
            thread.followers.discard(user)
        elif user not in thread.followers:
            thread.followers.add(user)
            self._read_thread_up_to(thread, user, thread.last_seq)

    def read_thread(self, user: str, channel_id: str, root: str, up_to: str | None = None) -> bool:
        """Everything in it, or up to a reply."""
        thread = self.thread(self.member_channel(user, channel_id), root)
        if user not in thread.followers:
            raise Refused("thread_not_found")
        seq: int | None = thread.last_seq
        if up_to is not None:
            seq = next((m.thread_seq for m in self.replies(thread) if m.id == up_to), None)
        if seq is None:
            raise Refused("message_not_found")
        return self._read_thread_up_to(thread, user, seq)

    def followed(self, user: str) -> list[Thread]:
        """The threads that the user follows in channels that the user is in, the latest activity first."""
        mine = {c.id for c in self.channels_of(user)}

        def order(thread: Thread) -> tuple[int, str, str]:
            newest = self.latest_reply(thread)
            return -(newest.at if newest else 0), thread.channel_id, thread.root

        return sorted((t for t in self.threads.values() if t.channel_id in mine and user in t.followers), key=order)

    def latest_reply(self, thread: Thread) -> Message | None:
        """The newest that is not deleted."""
        return next((m for m in reversed(self.replies(thread)) if not m.deleted), None)

    # ------------------------------------------------------------ the offline badge

    def _note_who_is_away(self, channel: Channel, thread: Thread | None, message: Message) -> None:
        told = set(message.mentions) & channel.members
        if message.seq is not None and channel.type in {"direct", "group"} and not channel.outgrown:
            told |= {u for u in channel.members if self.wants(u, channel.id).muted_until <= self.now()}
        if thread is not None:
            told |= thread.followers & channel.members
        for user in told - {message.sender}:
            if not self.online(user):
                self.undelivered.append(Undelivered(user, self.now(), message.sender, channel.id, message.id))

    def meanwhile(self, user: str) -> list[Undelivered]:
        """What came for the user since the last tap, while away."""
        since = self.taps.get(user, 0)
        return [one for one in self.undelivered if one.receiver == user and one.accepted_at > since]

    def badge(self, user: str) -> int:
        """How many different people wrote."""
        return len({one.sender for one in self.meanwhile(user)})

    def tap(self, user: str) -> dict[str, set[tuple[str, str, str | None]]]:
        """What each of them wrote where the user still is: channel, id and text, which is gone if it is deleted."""
        shown: dict[str, set[tuple[str, str, str | None]]] = {}
        mine = {channel.id for channel in self.channels_of(user)}
        for one in self.meanwhile(user):
            if one.channel_id not in mine:
                continue
            message = self.message(one.channel_id, one.message_id)
            text = None if message.deleted else message.text
            shown.setdefault(one.sender, set()).add((one.channel_id, one.message_id, text))
        self.taps[user] = self.now()
        return shown

    def delete_channel(self, channel_id: str) -> None:
        """Nothing of it is told to anyone any more."""
        super().delete_channel(channel_id)
        self.undelivered = [one for one in self.undelivered if one.channel_id != channel_id]
        self.by_joining = {pair: kept for pair, kept in self.by_joining.items() if pair[1] != channel_id}

    # ------------------------------------------------------------ receipts

    def _join(self, channel: Channel, user: str, history: History) -> None:
        before = self.reading(user, channel.id)
        super()._join(channel, user, history)
        passed = set(range(before.seq + 1, self.reading(user, channel.id).seq + 1))
        self.by_joining.setdefault((user, channel.id), set()).update(passed - before.apart)

    def mark_unread(self, user: str, channel_id: str, from_: str, epoch: int | None = None) -> bool:
        """What is marked unread and read again is a receipt, also if once a join had marked it."""
        done = super().mark_unread(user, channel_id, from_, epoch)
        if done:
            start = self._seq_of(self.channel(channel_id), from_)
            kept = self.by_joining.get((user, channel_id), set())
            self.by_joining[user, channel_id] = {seq for seq in kept if seq < start}
        return done

    def has_seen(self, user: str, channel_id: str, seq: int) -> bool:
        """Whether the user has read it, other than by joining, and lets it be known."""
        state = self.reading(user, channel_id)
        if user in self.private or self.wants(user, channel_id).receipts == "private":
            return False
        return (seq <= state.seq or seq in state.apart) and seq not in self.by_joining.get((user, channel_id), set())

    def seen(self, channel_id: str, message_id: str) -> tuple[set[str], int]:
        """Who has seen a message, and out of how many."""
        channel = self.channel(channel_id)
        message = self.message(channel_id, message_id)
        if message.deleted:
            raise Refused("message_deleted")
        seq = self._seq_of(channel, message_id)
        others = channel.members - {message.sender}
        return {user for user in others if self.has_seen(user, channel_id, seq)}, len(others)

    def receipts(self, channel_id: str) -> dict[str, int]:
        """How far each member has read; nobody's in large channels."""
        channel = self.channel(channel_id)
        if len(channel.members) > self.receipts_max_members:
            return {}
        far = {u: self._seen_up_to(u, channel_id) for u in channel.members}
        return {user: seq for user, seq in far.items() if seq}

    def _seen_up_to(self, user: str, channel_id: str) -> int:
        end = self.reading(user, channel_id).seq
        return max((seq for seq in range(1, end + 1) if self.has_seen(user, channel_id, seq)), default=0)

    # ------------------------------------------------------------ the inbox

    def is_archived(self, user: str, channel_id: str) -> bool:
        """Until somebody else writes."""
        since = self.wants(user, channel_id).archived_seq
        if since is None:
            return False
        return not any((m.seq or 0) > since and m.sender != user for m in self.channel(channel_id).placed())

    def inbox(self, user: str, order: str, filter_: str) -> list[Row]:
        """Conversations, the pinned ones first."""

        def key(row: Row) -> tuple[bool, bool, float, str]:
            later = order == "unread_first" and not row.has_unread
            pinned = self.wants(user, row.channel_id).pinned
            return not pinned, later, -row.latest[2] if row.latest else 0, row.channel_id

        rows = [r for r in self.rows(user) if self.is_archived(user, r.channel_id) == (filter_ == "archived")]
        return sorted((r for r in rows if filter_ != "unread" or r.has_unread), key=key)
