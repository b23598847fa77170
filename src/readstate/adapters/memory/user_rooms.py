"""The memory layout of a user: each user room is one packed bytes object, and ledgers are kept by kind."""

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
    """Ledgers that are not empty. A channel neither in here nor in `missing` is known to be empty."""

    __slots__ = ("missing",)

    def __init__(self) -> None:
        super().__init__()
        self.missing: set[str] = set()
        """Channels whose ledger must be loaded first."""

    def unload(self, channel: str) -> None:
        """Mark the ledger as not loaded."""
        self.pop(channel, None)
        self.missing.add(intern(channel))

    def put(self, channel: str, ledger: Ledger) -> None:
        """Keep a ledger that is not empty. An empty one that has evicted messages must be loaded again."""
        if ledger:
            self._found(channel)
            self[intern(channel)] = ledger
        elif ledger.floor:
            self.unload(channel)
        else:
            self.drop(channel)

    def drop(self, channel: str) -> None:
        """Mark the ledger as known to be empty."""
        self.pop(channel, None)
        self._found(channel)

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
