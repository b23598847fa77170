"""Folds records of an import into a store. Pure: known state in, rows to write and refusals out.

An import adds and moves forward; it never takes anything back. So it can be repeated, and can meet live data:
- a message that exists stays as it is, except that a delete applies; a seq is assigned once, and times follow seqs;
- a channel's last seq only grows; its name and avatar stay where it has them;
- pointers merge as everywhere; of two memberships the later join wins, and of the same join the leave;
- members follow the threads that they began, replied in or were mentioned in, as they would in live traffic. A `follow`
  record says more than such a presumed follow, and replaces it. Replies of a thread that has its own record make no
  followers;
- preferences that are still at their defaults take the given values.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from readstate.api import Refused
from readstate.domain.facts import Key, has_no_replies, named_by_id
from readstate.domain.model import (
    FOREVER,
    NO_PREFERENCES,
    START,
    Channel,
    Latest,
    Member,
    Message,
    Mode,
    Pointer,
    Position,
    Preferences,
    ReadState,
)
from readstate.domain.rooms import channel_and_thread, is_thread, thread_room
from readstate.domain.rules import MAX_IN_DIRECT, merge

from .records import Given, GivenRead, GivenUser, GivenUserRoom, Numbered

Place = tuple[str, int]

PRESUMED_AT = 1
"""`joined_at` of a presumed follow: no real follow is from the first millisecond of 1970."""


class KnownMessage(Struct, frozen=True, gc=False, array_like=True):
    """What the fold needs of a stored message."""

    seq: int | None
    thread_seq: int | None
    sender_id: str
    at: int
    sent_at: int | None
    thread_id: str | None
    deleted: bool


class KnownUserRoom(Struct, frozen=True, gc=False):
    member: Member | None = None
    preferences: Preferences = NO_PREFERENCES
    pointer: Pointer | None = None


class Neighbours(Struct, frozen=True, gc=False, array_like=True):
    """The message at a seq, and the times of those before and after it."""

    before_at: int | None = None
    id: str | None = None
    after_at: int | None = None


class Known(Struct):
    """What the store has when a run begins; the fold updates it. Rooms are channels and threads."""

    rooms: dict[str, Channel] = field(default_factory=dict)
    messages: dict[Key, KnownMessage] = field(default_factory=dict)
    around: dict[Place, Neighbours] = field(default_factory=dict)
    user_rooms: dict[Key, KnownUserRoom] = field(default_factory=dict)
    """By (room, user)."""
    places: dict[Place, Position] = field(default_factory=dict)
    times: dict[Place, Position | None] = field(default_factory=dict)
    """The newest position at or before a time; None: no message is there to decide it."""
    own: dict[Key, frozenset[int]] = field(default_factory=dict)
    """Seqs of a user's own messages beyond the pointer of the record, by (room, user)."""
    users: dict[str, GivenUser] = field(default_factory=dict)


class Concern(Struct, frozen=True, gc=False, array_like=True):
    """A thread concerns a user: the author of its root, a replier, or a mentioned user."""

    channel_id: str
    thread_id: str
    user_id: str
    seq: int
    """How far the user has read the thread as a result."""
    own: bool
    """The user wrote the reply."""


class Rows(Struct):
    rooms: set[str] = field(default_factory=set)
    """Rooms that changed; `Known.rooms` has their new state."""
    messages: list[Message] = field(default_factory=list)
    deleted: list[Key] = field(default_factory=list)
    user_rooms: dict[Key, KnownUserRoom] = field(default_factory=dict)
    pointers: dict[Key, Pointer] = field(default_factory=dict)
    users: dict[str, GivenUser] = field(default_factory=dict)
    latest_gone: set[str] = field(default_factory=set)
    """Rooms whose latest message is deleted: another one takes its place."""
    audiences: set[str] = field(default_factory=set)
    """Rooms whose members all have stale hot state."""
    concerned: set[str] = field(default_factory=set)
    """Users whose hot state is stale."""
    concerns: list[Concern] = field(default_factory=list)
    """From new replies."""
    arrived: dict[Key, int] = field(default_factory=dict)
    """New members of channels: (channel, user) to the time of the join."""


class Misfit(Exception):
    """A record does not fit what the store has."""


class _Line:
    """The seqs of one room that this run has filled, in order."""

    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.rows: list[tuple[str, int]] = []

    def around(self, seq: int) -> Neighbours:
        index = bisect_left(self.seqs, seq)
        taken = index < len(self.seqs) and self.seqs[index] == seq
        after = index + taken
        return Neighbours(
            self.rows[index - 1][1] if index else None,
            self.rows[index][0] if taken else None,
            self.rows[after][1] if after < len(self.rows) else None,
        )

    def put(self, seq: int, id_: str, at: int) -> None:
        index = bisect_left(self.seqs, seq)
        self.seqs.insert(index, seq)
        self.rows.insert(index, (id_, at))


def take(run: Sequence[Numbered], known: Known, fanout_max_members: int, stop: bool) -> tuple[Rows, list[Refused]]:
    """Fold a run of records of one type into `known`. A refused record leaves nothing behind."""
    taking = _Taking(known, fanout_max_members)
    refused = []
    for one in run:
        try:
            taking.take(one.given)
        except Misfit as misfit:
            refused.append(Refused(one.line, str(misfit)))
            if stop:
                break
    taking.settle()
    return taking.rows, refused


def resolve(given: GivenUserRoom, known: Known) -> Position:
    """The position of a pointer that a record gives by seq, by id or by time."""
    read, room = given.read, known.rooms.get(given.room)
    if read is None:
        return START
    last = 0 if room is None else room.last_seq
    if read.seq is not None:
        if read.seq > last:
            raise Misfit(f"last_read.seq is {read.seq}, but the last seq there is {last}")
        place = known.places.get((given.room, read.seq), START)
        return Position(read.seq, read.id or place.id, place.at if read.at is None else read.at)
    if read.id is not None:
        return _place_of(given.room, read.id, known)
    assert read.at is not None
    if room is not None and room.last_at and read.at >= room.last_at:
        return room.end
    found = known.times.get((given.room, read.at))
    if found is None:
        raise Misfit("last_read gives a time, and no message is there to tell what was read by then")
    return found


def _place_of(room: str, id_: str, known: Known) -> Position:
    channel = channel_and_thread(room)[0]
    message = known.messages.get((channel, id_))
    holder = known.rooms.get(room)
    if message is None and holder is not None and holder.last_id == id_:
        return holder.end
    if message is None or not message.sender_id:
        raise Misfit(f"last_read names message {id_!r}, which is not there")
    seq = message.thread_seq if is_thread(room) else message.seq
    if seq is None:
        raise Misfit(f"last_read names message {id_!r}, which has no place there")
    return Position(seq, id_, message.at)


class _Taking:
    def __init__(self, known: Known, limit: int) -> None:
        self.known = known
        self.limit = limit
        self.rows = Rows()
        self.lines: dict[str, _Line] = {}
        self.joined: dict[str, int] = {}

    def take(self, given: Given) -> None:
        match given:
            case Message():
                self._message(given)
            case GivenUserRoom():
                self._user_room(given)
            case Channel():
                self._room(given)
            case GivenUser():
                self._user(given)

    def settle(self) -> None:
        """Update the member counts; a channel that has outgrown the limit changes from ledgers to a timeline."""
        for name, joined in self.joined.items():
            room = self.known.rooms[name]
            count = room.member_count + joined
            outgrown = room.mode is Mode.LEDGER and room.type != "thread" and count > self.limit
            if outgrown:
                self.rows.audiences.add(name)
            self._set(replace(room, member_count=count, mode=Mode.TIMELINE if outgrown else room.mode))

    def _set(self, room: Channel) -> None:
        self.known.rooms[room.channel_id] = room
        self.rows.rooms.add(room.channel_id)

    def _live(self, channel: str) -> Channel:
        room = self.known.rooms.get(channel)
        if room is None or room.deleted:
            raise Misfit(f"there is no channel {channel!r}: its own record must come first")
        return room

    # ------------------------------------------------------------ channels and threads

    def _room(self, given: Channel) -> None:
        name = given.channel_id
        if is_thread(name) and channel_and_thread(name)[0] not in self.known.rooms:
            raise Misfit(f"there is no channel {channel_and_thread(name)[0]!r}: its own record must come first")
        if is_thread(name) and not given.deleted:
            self._live(channel_and_thread(name)[0])
        known = self.known.rooms.get(name)
        if known is None:
            self._set(given)
        elif known.deleted:
            self._set_if_new(known, _further(replace(given, change=known.change), known))
        elif not given.deleted:
            self._set_if_new(known, self._joined_rooms(known, given))

    def _set_if_new(self, known: Channel, room: Channel) -> None:
        if room != replace(known, position=room.position):
            self._set(room)

    def _joined_rooms(self, known: Channel, given: Channel) -> Channel:
        """The stored room, with what the record knows beyond it."""
        room = _further(known, given)
        latest = given.latest
        if latest is not None and (room.latest is None or latest.seq > room.latest.seq):
            message = self.known.messages.get((channel_and_thread(known.channel_id)[0], latest.id))
            if message is None or not message.deleted:
                room = replace(room, latest=latest)
        return replace(room, name=room.name or given.name, avatar=room.avatar or given.avatar)

    # ------------------------------------------------------------ messages

    def _message(self, given: Message) -> None:
        channel = self._live(given.channel_id)
        key = (given.channel_id, given.id)
        known = self.known.messages.get(key)
        if known is not None:
            self._again(given, known, channel)
            return
        room = self._thread_of(given)
        message = given
        in_channel = bool(given.sender_id) and not given.backfill and (given.seq is not None or room is None)
        in_thread = room is not None and not given.backfill
        if in_channel and given.seq is None:
            message = _next(message, channel, seq=channel.last_seq + 1)
        if in_thread and given.thread_seq is None:
            assert room is not None
            message = _next(message, room, thread_seq=room.last_seq + 1, keep_at=given.seq is not None)
        if in_channel:
            self._check_place(channel, message.seq, message.at)
        if in_thread:
            assert room is not None
            self._check_place(room, message.thread_seq, message.at)
        self._store(message, channel, room if in_thread else None)

    def _thread_of(self, given: Message) -> Channel | None:
        """The thread of a reply. The root must exist and must not be a reply itself."""
        if given.thread_id is None:
            return None
        self._root(given.channel_id, given.thread_id)
        return self._thread_room(given.channel_id, given.thread_id)

    def _root(self, channel: str, thread: str) -> None:
        root = self.known.messages.get((channel, thread))
        if root is None or not root.sender_id:
            raise Misfit(f"there is no message {thread!r} for a thread to hang on: its record must come first")
        if root.thread_id is not None:
            raise Misfit(f"{thread!r} is a reply itself: a thread hangs on a root message")

    def _thread_room(self, channel: str, thread: str) -> Channel:
        name = thread_room(channel, thread)
        known = self.known.rooms.get(name)
        if known is None:
            return Channel(name, type="thread")
        return replace(known, deleted=False, type="thread") if known.deleted else known

    def _check_place(self, room: Channel, seq: int | None, at: int) -> None:
        assert seq is not None
        if seq > room.last_seq + 1:
            raise Misfit(f"seq {seq} leaves a gap: the last one before it is {room.last_seq}")
        line = self.lines.get(room.channel_id)
        here = line.around(seq) if line is not None else Neighbours()
        there = self.known.around.get((room.channel_id, seq), Neighbours())
        if taken := here.id or there.id:
            raise Misfit(f"seq {seq} is already taken, by message {taken!r}")
        before = max(here.before_at or 0, there.before_at or 0)
        after = min(here.after_at or FOREVER, there.after_at or FOREVER)
        if seq > room.last_seq:
            before = max(before, room.last_at)
        elif seq < room.last_seq and room.last_at:
            after = min(after, room.last_at)
        if not before < at < after:
            raise Misfit(f"its time {at} is not between those of the messages before and after seq {seq}")

    def _store(self, message: Message, channel: Channel, thread: Channel | None) -> None:
        m = replace(message, change=channel.change + 1)
        self.known.messages[m.channel_id, m.id] = KnownMessage(
            m.seq, m.thread_seq, m.sender_id, m.at, m.sent_at, m.thread_id, m.deleted
        )
        self.rows.messages.append(m)
        self.rows.rooms.add(channel.channel_id)
        if m.seq is not None:
            self._fill(channel, m, m.seq)
            self._read_own(m.channel_id, m.sender_id, m.seq)
            self.rows.concerned.update(m.mentions)
        if thread is not None and m.thread_seq is not None:
            if m.thread_seq > thread.last_seq:
                self.rows.concerns += self._concerns(m, m.thread_seq, first=has_no_replies(thread))
            self.known.rooms[thread.channel_id] = thread
            self._fill(thread, m, m.thread_seq)

    def _concerns(self, reply: Message, seq: int, first: bool) -> Iterator[Concern]:
        """Whom a reply at the end of its thread concerns, as if it were sent now."""
        assert reply.thread_id is not None
        place = (reply.channel_id, reply.thread_id)
        if first:
            yield Concern(*place, self.known.messages[place].sender_id, 0, own=False)
        for user in named_by_id(reply.mentions):
            yield Concern(*place, user, seq - 1, own=False)
        yield Concern(*place, reply.sender_id, seq, own=True)

    def _fill(self, room: Channel, message: Message, seq: int) -> None:
        name = room.channel_id
        self.lines.setdefault(name, _Line()).put(seq, message.id, message.at)
        if seq >= room.last_seq:
            room = replace(room, last_seq=seq, last_id=message.id, last_at=message.at)
        if not message.deleted and (room.latest is None or seq > room.latest.seq):
            latest = Latest(message.id, seq, message.at, message.sender_id, message.preview)
            room = replace(room, latest=latest)
        self._set(room)
        if room.mode is Mode.LEDGER:
            self.rows.audiences.add(name)

    def _read_own(self, channel: str, user: str, seq: int) -> None:
        """A read state always covers the user's own messages.

        Without a user room there is nothing to do: the record that brings one takes them from `Known.own`.
        """
        user_room = self.known.user_rooms.get((channel, user))
        if user_room is None or (user_room.member is None and user_room.pointer is None):
            return
        pointer = user_room.pointer or Pointer()
        if seq > pointer.seq and seq not in pointer.apart:
            self._point((channel, user), replace(pointer, apart=pointer.apart | {seq}))

    def _again(self, given: Message, known: KnownMessage, channel: Channel) -> None:
        """A message that exists already: only a delete still applies."""
        if not known.sender_id or not given.sender_id:
            if given.seq == channel.last_seq + 1:
                self._set(
                    replace(channel, last_seq=given.seq, last_id=given.id, last_at=max(given.at, channel.last_at))
                )
            return
        for name, here, there in (
            ("seq", given.seq, known.seq),
            ("thread_seq", given.thread_seq, known.thread_seq),
            ("thread_id", given.thread_id, known.thread_id),
            ("sender_id", given.sender_id, known.sender_id),
        ):
            if here is not None and here != there:
                raise Misfit(f"message {given.id!r} is already there, with another {name}: {there}")
        sent = given.at if given.sent_at is None else given.sent_at
        if given.at != known.at and sent not in {known.at, known.sent_at}:
            raise Misfit(f"message {given.id!r} is already there, with another time: {known.at}")
        if given.deleted and not known.deleted:
            self._delete(given, known, channel)

    def _delete(self, given: Message, known: KnownMessage, channel: Channel) -> None:
        key = (given.channel_id, given.id)
        self.known.messages[key] = replace(known, deleted=True)
        self.rows.deleted.append(key)
        rooms = [channel.channel_id]
        if known.thread_id is not None and known.thread_seq is not None:
            rooms.append(thread_room(given.channel_id, known.thread_id))
        for name in rooms:
            room = self.known.rooms.get(name)
            if room is None:
                continue
            self.rows.rooms.add(name)
            self.rows.audiences.add(name)
            if room.latest is not None and room.latest.id == given.id:
                self.rows.latest_gone.add(name)

    # ------------------------------------------------------------ members, followers, pointers

    def _user_room(self, given: GivenUserRoom) -> None:
        room = self._has_user_room(given.room)
        key = (given.room, given.user_id)
        place = resolve(given, self.known)
        if given.read is not None and any(seq > room.last_seq for seq in given.read.apart):
            raise Misfit(f"last_read.apart goes beyond the last seq, which is {room.last_seq}")
        known = self.known.user_rooms.get(key, KnownUserRoom())
        self.known.rooms[given.room] = room
        presumed = given.member is not None and not given.presumed and is_presumed(known, given.room)
        if given.member is not None:
            wanted = self._wanted(known, given.preferences, room)
            self._join(key, known, given.member, wanted, presumed=presumed)
        pointer = _pointer(given.read, place, self.known.own.get(key, frozenset()))
        before = known.pointer
        if presumed:
            self._point(key, pointer or Pointer())
        elif before is None and pointer is not None:
            self._point(key, pointer)
        elif before is not None and pointer is not None:
            state = merge(before.state, pointer.state)
            if state != before.state:
                further = pointer if (pointer.epoch, pointer.seq) > (before.epoch, before.seq) else before
                self._point(key, replace(further, apart=state.apart))

    def _has_user_room(self, name: str) -> Channel:
        if not is_thread(name):
            return self._live(name)
        channel, thread = channel_and_thread(name)
        self._live(channel)
        known = self.known.rooms.get(name)
        if known is not None and not known.deleted:
            return known
        self._root(channel, thread)
        return self._thread_room(channel, thread)

    @staticmethod
    def _wanted(known: KnownUserRoom, given: Preferences, room: Channel) -> Preferences:
        """Preferences that are set stay; those at their defaults take the given values."""
        if given.archived_seq == FOREVER:
            given = replace(given, archived_seq=room.last_seq)
        names, here = Preferences.__struct_fields__, known.preferences
        unset = (name for name in names if getattr(here, name) == getattr(NO_PREFERENCES, name))
        return replace(here, **{name: getattr(given, name) for name in unset})

    def _join(self, key: Key, known: KnownUserRoom, given: Member, preferences: Preferences, *, presumed: bool) -> None:
        member = given if known.member is None or presumed else _later(known.member, given)
        user_room = KnownUserRoom(member, preferences, known.pointer)
        if member == known.member and preferences == known.preferences:
            return
        was = known.member is not None and known.member.active
        if member.active and not was:
            self._check_room_for_one(key[0])
        self.known.user_rooms[key] = self.rows.user_rooms[key] = user_room
        if member.active != was:
            self.joined[key[0]] = self.joined.get(key[0], 0) + (1 if member.active else -1)
        if member.active and not was and not is_thread(key[0]):
            self.rows.arrived[key] = member.joined_at
        self._concern(key)

    def _check_room_for_one(self, name: str) -> None:
        room = self.known.rooms[name]
        if room.type == "direct" and room.member_count + self.joined.get(name, 0) >= MAX_IN_DIRECT:
            raise Misfit(f"channel {name!r} is direct and has two members at most")

    def _point(self, key: Key, pointer: Pointer) -> None:
        known = self.known.user_rooms.get(key, KnownUserRoom())
        self.known.user_rooms[key] = replace(known, pointer=pointer)
        self.rows.pointers[key] = pointer
        self._concern(key)

    def _concern(self, key: Key) -> None:
        room, user = key
        self.rows.rooms.add(room)
        self.rows.concerned.add(user)

    # ------------------------------------------------------------ users

    def _user(self, given: GivenUser) -> None:
        known = self.known.users.get(given.user_id)
        if known is not None:
            given = GivenUser(
                given.user_id,
                max(known.last_tap, given.last_tap),
                max(known.last_seen, given.last_seen),
                known.receipts if known.receipts != "public" else given.receipts,
            )
        if given != known:
            self.known.users[given.user_id] = self.rows.users[given.user_id] = given
            self.rows.concerned.add(given.user_id)


def is_presumed(user_room: KnownUserRoom, room: str) -> bool:
    """Whether the user follows a thread only because an import presumed it, and has not read in it since."""
    member = user_room.member
    if not is_thread(room) or member is None or not member.active or member.joined_at != PRESUMED_AT:
        return False
    return user_room.pointer is None or (user_room.pointer.epoch == 0 and user_room.pointer.read_at == 0)


def _next(message: Message, room: Channel, keep_at: bool = False, **place: int) -> Message:
    """The message with the next seq of a room, at a time after the previous message."""
    if keep_at:
        return replace(message, **place)
    sent_at = message.at if message.sent_at is None else message.sent_at
    return replace(message, at=max(message.at, room.last_at + 1), sent_at=sent_at, **place)


def _further(room: Channel, other: Channel) -> Channel:
    """The room, advanced to the end of `other` if that is further."""
    if other.last_seq <= room.last_seq:
        return room
    last_at = max(room.last_at, other.last_at)
    return replace(room, last_seq=other.last_seq, last_id=other.last_id, last_at=last_at)


def _later(known: Member, given: Member) -> Member:
    """The later join; of the same join, the leave."""
    if given.joined_at != known.joined_at:
        return given if given.joined_at > known.joined_at else known
    return replace(known, active=known.active and given.active)


def _pointer(read: GivenRead | None, place: Position, own: Iterable[int]) -> Pointer | None:
    if read is None:
        beyond = frozenset(own)
        return Pointer(apart=beyond) if beyond else None
    state = ReadState(read.epoch, place.seq, frozenset(s for s in read.apart.union(own) if s > place.seq))
    read_at = read.read_at if read.read_at is not None else place.at or 0
    return Pointer(state.epoch, state.seq, state.apart, place.id, place.at, read_at)
