"""The state of a user in Valkey: packed rows, the same as in `lua/user.lua`, and key names."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from struct import Struct as Packing
from struct import pack
from struct import unpack as unpack_all
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from readstate.domain.model import NO_PREFERENCES, Mode, Pointer, Position, Preferences
from readstate.domain.rooms import is_thread
from readstate.ports import LedgerView, LoadedUserRoom, UserRoom

from . import Function, slot_of, tag_of


class Flag:
    """Bits of a user room's flags, and of the row of its ledger."""

    MEMBER, TIMELINE, THREAD, ARCHIVED, COUNTED, APART, MISSING, PREFERS = (1 << bit for bit in range(8))


# For loops over many rows: a name of the module is found faster than one of a class.
MEMBER, TIMELINE, COUNTED, APART, MISSING = Flag.MEMBER, Flag.TIMELINE, Flag.COUNTED, Flag.APART, Flag.MISSING

USER = Packing(">QQQII")
USER_ROOM = Packing(">BQIQIQ")
COUNT = Packing(">BIIIIQQIQB")
COUNT_HEAD = COUNT.size
NAMED = Packing(">IQ")
MOVED = Packing(">QIQ")

FAMILIES = (
    "read-pointer", "read-apart", "unread-counts", "preferences", "inbox", "timelines", "loading", "read-at",
)  # fmt: skip
"""The keys of a user, in the order in which functions receive them."""
LOADED = FAMILIES[:6]
"""Those that a load writes."""

_EMPTY = LedgerView()
_NOTHING: frozenset[int] = frozenset()
_decode_preferences = msgspec.msgpack.Decoder(Preferences).decode


class UserFunction(Function):
    """A function over users. It receives the first `width` keys of each; if `timed`, `read-at` replaces the last."""

    def __init__(self, name: str, *, width: int = len(FAMILIES), timed: bool = False, expires: bool = False) -> None:
        super().__init__(f"user_{name}", expires=expires)
        self._width, self._timed = width, timed

    def keys(self, keys: Sequence[bytes]) -> Sequence[bytes]:
        return [*keys[: self._width - 1], keys[-1]] if self._timed else keys[: self._width]


class UserKeys:
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.of = lru_cache(maxsize=100_000)(self._of)
        self._ledgers = lru_cache(maxsize=100_000)(self._ledgers_of)

    def _of(self, user: str) -> tuple[int, tuple[bytes, ...]]:
        """The slot and the keys of a user."""
        keys = tuple(f"{self._prefix}{family}:{tag_of(user)}".encode() for family in FAMILIES)
        return slot_of(keys[0]), keys

    def ledger(self, user: str, room: str) -> bytes:
        return self._ledgers(user) + room.encode()

    def _ledgers_of(self, user: str) -> bytes:
        return f"{self._prefix}unread:{tag_of(user)}:".encode()

    def staged(self, user: str, load: str) -> list[bytes]:
        """The keys in which a load is assembled, one per family in `LOADED`."""
        return [f"{self._prefix}staged:{tag_of(user)}:{load}:{family}".encode() for family in LOADED]


# ---------------------------------------------------------------- to Valkey


def pack_seqs(seqs: Iterable[int]) -> bytes:
    """Sorted, 4 bytes each, big-endian: functions compare them as strings."""
    ordered = sorted(seqs)
    return pack(f">{len(ordered)}I", *ordered)


def pack_user_room(pointer: Pointer, change: int, flags: int) -> bytes:
    head = USER_ROOM.pack(flags, pointer.epoch, pointer.seq, pointer.at or 0, change, pointer.change)
    return head + (pointer.id or "").encode()


def flags_of_room(room: str, mode: Mode, archived: bool) -> int:
    flags = Flag.THREAD if is_thread(room) else 0
    flags |= Flag.TIMELINE if mode is Mode.TIMELINE else 0
    return flags | (Flag.ARCHIVED if archived else 0)


def flags_of(load: LoadedUserRoom) -> int:
    flags = flags_of_room(load.channel_id, load.mode, load.archived)
    flags |= Flag.MEMBER if load.member else 0
    flags |= Flag.APART if load.pointer.apart else 0
    flags |= Flag.PREFERS if load.preferences != NO_PREFERENCES else 0
    return flags | (Flag.COUNTED if load.member and not load.empty else 0)


def pack_missing(flags: int) -> bytes:
    """The row of a ledger that must be loaded."""
    return COUNT.pack(flags & (Flag.TIMELINE | Flag.THREAD | Flag.ARCHIVED) | Flag.MISSING, 0, 0, 0, 0, 0, 0, 0, 0, 0)


# ---------------------------------------------------------------- from Valkey


def seqs_of(packed: bytes) -> frozenset[int]:
    return frozenset(unpack_all(f">{len(packed) // 4}I", packed)) if packed else _NOTHING


def pairs(flat: Sequence[bytes]) -> dict[str, bytes]:
    """A hash, from the server's flat list of fields and values."""
    values = iter(flat)
    return {key.decode(): value for key, value in zip(values, values, strict=True)}


def preferences_of(packed: bytes | None) -> Preferences:
    return _decode_preferences(packed) if packed else NO_PREFERENCES


def pointer_of(raw: bytes, apart: bytes, read_at: int = 0) -> Pointer:
    """The pointer in the row of a user room."""
    _, epoch, seq, at, _, number = USER_ROOM.unpack_from(raw)
    return Pointer(epoch, seq, seqs_of(apart), raw[USER_ROOM.size :].decode() or None, at or None, read_at, number)


def read_at_of(pointer: Pointer, moved: bytes) -> Pointer:
    """With the time of its last move, if that is noted for this position."""
    epoch, seq, at = MOVED.unpack(moved) if moved else (0, 0, 0)
    return replace(pointer, read_at=at) if (epoch, seq) == (pointer.epoch, pointer.seq) else pointer


class Packed(NamedTuple):
    """Rows of a user by room, as the server has them: user rooms, seqs read apart, and ledgers."""

    user_rooms: Mapping[str, bytes]
    apart: Mapping[str, bytes]
    ledgers: Mapping[str, bytes]


def user_rooms_of(
    names: Iterable[str], packed: Packed, wanted: Mapping[str, Preferences], oldest: int
) -> list[UserRoom]:
    """Those of these rooms that there are. A ledger that was last used before `oldest` (in s) must be loaded."""
    found = []
    unpack_head, head = USER_ROOM.unpack_from, USER_ROOM.size
    for room in names:
        raw = packed.user_rooms.get(room)
        if raw is None:
            continue
        flags, epoch, seq, at, _, number = unpack_head(raw)
        apart = seqs_of(packed.apart.get(room, b"")) if flags & APART else _NOTHING
        found.append(
            UserRoom(
                room,
                flags & MEMBER > 0,
                Mode.TIMELINE if flags & TIMELINE else Mode.LEDGER,
                Pointer(epoch, seq, apart, raw[head:].decode() or None, at or None, 0, number),
                wanted.get(room, NO_PREFERENCES),
                ledger_of(packed.ledgers.get(room), oldest) if flags & COUNTED else _EMPTY,
            )
        )
    return found


def ledger_of(row: bytes | None, oldest: int) -> LedgerView | None:
    """None: the ledger must be loaded."""
    if not row:
        return None
    flags, count, touched, _, floor, floor_at, _, first_seq, first_at, length = COUNT.unpack_from(row)
    if flags & MISSING or (count and touched < oldest):
        return None
    if not count:
        return _EMPTY
    end = COUNT_HEAD + length
    capped = floor > 0 or floor_at > 0
    if flags & TIMELINE:
        seqs = named_of(row)
        return LedgerView(count, len(seqs), None, capped, True, seqs)
    first = Position(first_seq, row[COUNT_HEAD:end].decode(), first_at)
    return LedgerView(count, (len(row) - end) // NAMED.size, first, capped)


def named_of(row: bytes) -> tuple[int, ...]:
    """The seqs of the mentions in the row of a ledger."""
    return tuple(seq for seq, _ in NAMED.iter_unpack(row[COUNT_HEAD + COUNT.unpack_from(row)[9] :]))
