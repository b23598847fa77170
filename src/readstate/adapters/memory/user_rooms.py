"""The memory layout of a user: each user room is one packed bytes object, and ledgers are kept by kind."""

from bisect import bisect_left
from collections.abc import Callable
from struct import Struct as Packing
from sys import intern

from msgspec import Struct, field

from readstate.domain.model import NO_CHANGE, ChangeNumber, Mode, Position, Preferences
from readstate.domain.rooms import is_thread

from .ledger import Ledger

PACKING = Packing("<QQQIIQQB")
HEAD = PACKING.size
U64 = Packing("<Q")
SEQ_AT, NUMBER_AT, LATEST_AT = 8, 32, 40
MEMBER, TIMELINE, THREAD, ARCHIVED = 1, 2, 4, 8
MANY_MOVED = 200
"""If an order lacks this many channels, it is cheaper to sort anew."""


class Row(Struct, gc=False):
    """A user room, unpacked.

    `change`: the channel's change number that the user room has passed. `filled`: the one its ledger has passed; a
    ledger may be loaded ahead of the user room. `number`: the user's change number. `latest`: the time of the channel's
    latest message.
    """

    epoch: int = 0
    seq: int = 0
    at: int = 0
    change: int = 0
    filled: int = 0
    number: ChangeNumber = NO_CHANGE
    latest: int = 0
    flags: int = 0
    id: bytes = b""

    def pack(self) -> bytes:
        head = PACKING.pack(
            self.epoch, self.seq, self.at, self.change, self.filled, self.number, self.latest, self.flags
        )
        return head + self.id

    def point(self, position: Position) -> None:
        self.at = position.at or 0
        self.id = b"" if position.id is None else position.id.encode()

    @property
    def position(self) -> Position:
        return Position(self.seq, self.id.decode() or None, self.at or None)

    @property
    def mode(self) -> Mode:
        return Mode.TIMELINE if self.flags & TIMELINE else Mode.LEDGER


def unpack(raw: bytes) -> Row:
    epoch, seq, at, change, filled, number, latest, flags = PACKING.unpack_from(raw)
    return Row(epoch, seq, at, change, filled, number, latest, flags, raw[HEAD:])


def flags_of(channel: str, member: bool, mode: Mode, archived: bool) -> int:
    return (
        (MEMBER if member else 0)
        | (TIMELINE if mode is Mode.TIMELINE else 0)
        | (THREAD if is_thread(channel) else 0)
        | (ARCHIVED if archived else 0)
    )


class Shelf(dict[str, Ledger]):
    """Ledgers that are not empty, and their sums. A channel neither in here nor in `missing` is known to be empty.

    A ledger is changed between `take` and `put`, so that the sums follow.
    """

    __slots__ = ("capped", "mentions", "missing", "moved", "recent", "unread")

    def __init__(self) -> None:
        super().__init__()
        self.missing: set[str] = set()
        """Channels whose ledger must be loaded first."""
        self.unread = 0
        self.mentions = 0
        self.capped = 0
        """How many of the ledgers are."""
        self.recent: list[tuple[int, str]] | None = None
        """Sorted (minus the time of the latest message, channel); made on first use. Entries whose channel is read by
        now, or has a later message, are out of date and skipped."""
        self.moved: set[str] | None = None
        """Channels that may lack their entry in `recent`; None as long as that is."""

    def take(self, channel: str) -> Ledger | None:
        """The ledger, which is not in the sums until the caller puts it back."""
        ledger = self.get(channel)
        if ledger is not None:
            self.unread -= len(ledger.seqs)
            self.mentions -= len(ledger.named)
            self.capped -= ledger.floor > 0
        return ledger

    def put(self, channel: str, ledger: Ledger) -> None:
        """Keep a ledger that is not empty. An empty one that has evicted messages must be loaded again."""
        if ledger.seqs:
            self._found(channel)
            if self.get(channel) is not ledger:
                self[intern(channel)] = ledger
                self.note_moved(channel)
            self.unread += len(ledger.seqs)
            self.mentions += len(ledger.named)
            self.capped += ledger.floor > 0
            return
        self.pop(channel, None)
        if ledger.floor:
            self.missing.add(intern(channel))
        else:
            self._found(channel)

    def unload(self, channel: str) -> None:
        """Mark the ledger as not loaded."""
        self.take(channel)
        self.pop(channel, None)
        self.missing.add(intern(channel))

    def drop(self, channel: str) -> None:
        """Mark the ledger as known to be empty."""
        self.take(channel)
        self.pop(channel, None)
        self._found(channel)

    def note_moved(self, channel: str) -> None:
        """The channel is unread, or its latest message is another one."""
        if self.moved is not None:
            self.moved.add(intern(channel))

    def by_activity(self, latest: Callable[[str], int]) -> list[tuple[int, str]]:
        """`recent`, up to date. `latest`: the time of a channel's latest message."""
        if self.recent is None or self.moved is None or len(self.recent) + len(self.moved) > 2 * len(self) + MANY_MOVED:
            self.recent = sorted((-latest(name), name) for name in self)
        else:
            for key in [(-latest(name), name) for name in self.moved if name in self]:
                index = bisect_left(self.recent, key)
                if index == len(self.recent) or self.recent[index] != key:
                    self.recent.insert(index, key)
        self.moved = set()
        return self.recent

    def _found(self, channel: str) -> None:
        if self.missing:
            self.missing.discard(channel)
            if not self.missing:
                self.missing.clear()  # a set emptied by discard keeps its capacity, and iteration costs that much


class User(Struct):
    since: ChangeNumber
    """The change number as of the load: changes before it are not known."""
    change: ChangeNumber
    used: int
    user_rooms: dict[str, bytes] = field(default_factory=dict)
    apart: dict[str, frozenset[int]] = field(default_factory=dict)
    live: Shelf = field(default_factory=Shelf)
    """Ledgers of ledger channels."""
    named: Shelf = field(default_factory=Shelf)
    """Mentions by name in timeline channels."""
    threads: Shelf = field(default_factory=Shelf)
    """Ledgers of followed threads."""
    timelines: list[str] = field(default_factory=list)
    preferences: dict[str, Preferences] = field(default_factory=dict)
    set_aside: set[str] = field(default_factory=set)
    """Archived ledger channels."""
    inbox: list[tuple[int, str]] | None = None
    """Sorted (minus the time of the latest message, channel) of the ledger channels; built on first use."""

    def shelf(self, flags: int) -> Shelf:
        if flags & TIMELINE:
            return self.named
        return self.threads if flags & THREAD else self.live

    def row(self, channel: str) -> Row:
        """The user room, or an empty one."""
        raw = self.user_rooms.get(channel)
        return Row(flags=THREAD if is_thread(channel) else 0) if raw is None else unpack(raw)

    def put(self, channel: str, row: Row, number: ChangeNumber) -> None:
        """Store a changed user room under the user's next change number."""
        row.number = self.change = number
        self.user_rooms[intern(channel)] = row.pack()

    def user_room_flags(self, channel: str, row: Row, flags: int) -> None:
        """Change the kind of a user room; its ledger leaves the old shelf."""
        self.shelf(row.flags).drop(channel)
        if row.flags & TIMELINE and row.flags & MEMBER:
            self.timelines.remove(channel)
        self.set_aside.discard(channel)
        row.flags = flags
        if flags & TIMELINE and flags & MEMBER:
            self.timelines.append(intern(channel))
        if flags & ARCHIVED and flags & MEMBER and not flags & TIMELINE:
            self.set_aside.add(intern(channel))
