"""The short way of reads up to a position: a function that gets few keys and flat arguments, `lua/user_read.lua`."""

from collections.abc import Sequence
from struct import Struct as Packing
from typing import TypeGuard

from readstate.domain.model import NO_PREFERENCES, ChangeNumber, Generation, Mode, Pointer
from readstate.ports import Absent, Clock, Move, Moved, Read

from . import OVERTAKEN, calls
from .calls import Packet, UserCalls
from .groups import Packed, once_or_reload
from .user_rooms import FAMILIES, USER_ROOM, Flag, UserFunction

READ = UserFunction("read", expires=True)
ABSENT = (Absent.NOT_LOADED, Absent.NOT_A_MEMBER)
LEFT = 2
"""The answer to a read that must go the long way."""

_POINTER, _COUNTS, _READ_AT = map(FAMILIES.index, ("read-pointer", "unread-counts", "read-at"))
_ARGUMENT = Packing(">HqIQHH")
_ANSWER = Packing(">iQ" + USER_ROOM.format.removeprefix(">"))
_NOTHING: frozenset[int] = frozenset()


class ShortWay:
    def __init__(self, calls: UserCalls, clock: Clock) -> None:
        self._calls = calls
        self._clock = clock

    def sort(self, moves: Sequence[Move]) -> tuple[dict[str, list[int]], list[int]]:
        """The indexes of moves: by user, of those who may take the short way with all of theirs; and of all others."""
        by_user: dict[str, list[int]] = {}
        for index, move in enumerate(moves):
            own = by_user.get(move.user_id)
            if own is None:
                by_user[move.user_id] = [index]
            else:
                own.append(index)
        if all(map(_is_plain, moves)) and max(map(len, by_user.values()), default=0) <= calls.MAX_ITEMS:
            return by_user, []
        others: list[int] = []
        for user, own in list(by_user.items()):
            # In several packets, the reads of a user could overtake one that goes the long way.
            if len(own) > calls.MAX_ITEMS or not all(_is_plain(moves[index]) for index in own):
                others += by_user.pop(user)
        return by_user, others

    async def read(
        self,
        moves: Sequence[Move],
        by_user: dict[str, list[int]],
        answers: list[Moved | Absent],
        generation: Generation | None,
    ) -> tuple[list[int], bool]:
        """Set the answers. Returns the indexes of reads that must go the long way, and whether any was sent twice."""
        packets = self._calls.packets()
        for user, own in by_user.items():
            packet = packets.first(user, len(own))
            packet.weight += len(own)
            packet.users[user] = len(packet.users) + 1
            packet.indexes += own

        def pack(packet: Packet) -> Packed:
            return self._pack(packet, moves)

        call = self._calls.many(READ, packets, pack, generation)
        found, repeated = await once_or_reload(self._calls.backend.generation, call)
        now = self._clock()
        left: list[int] = []
        for packet, values in found:
            if values is OVERTAKEN:  # reads that were applied are lost with the slot
                continue
            for index, value in zip(packet.indexes, values, strict=True):
                if isinstance(value, bytes):
                    answers[index] = _moved(moves[index], value, now, repeated)
                elif value == LEFT:
                    left.append(index)
                else:
                    answers[index] = ABSENT[value]
        return left, repeated

    def _pack(self, packet: Packet, moves: Sequence[Move]) -> Packed:
        keys: list[bytes] = []
        of_user, of_ledger, pack = self._calls.keys.of, self._calls.keys.ledger, _ARGUMENT.pack
        for user in packet.users:
            families = of_user(user)[1]
            keys += (families[_POINTER], families[_COUNTS], families[_READ_AT])
        parts: list[bytes] = []
        numbers = packet.users
        for index in packet.indexes:
            read = moves[index]
            assert isinstance(read, Read)
            user, to, epoch = read.user_id, read.to, read.epoch
            room, id_ = read.channel_id.encode(), (to.id or "").encode()
            keys.append(of_ledger(user, read.channel_id))
            head = pack(numbers[user], -1 if epoch is None else epoch, to.seq, to.at or 0, len(id_), len(room))
            parts += (head, id_, room)
        return keys, self._calls.arguments(len(numbers), b"".join(parts))


def _is_plain(move: Move) -> TypeGuard[Read]:
    return isinstance(move, Read) and not move.apart


def _moved(read: Move, value: bytes, now: int, repeated: bool) -> Moved:
    assert isinstance(read, Read)
    unread, number, flags, epoch, seq, at, _, was = _ANSWER.unpack_from(value)
    id_ = value[_ANSWER.size :].decode() or None
    before = Pointer(epoch, seq, _NOTHING, id_, at or None, 0, ChangeNumber(was))
    pointer = before
    if number:
        to = read.to
        pointer = Pointer(epoch, to.seq, _NOTHING, to.id or None, to.at or None, now, ChangeNumber(number))
    return Moved(
        read.user_id,
        read.channel_id,
        before,
        pointer,
        number > 0 or repeated,
        Mode.TIMELINE if flags & Flag.TIMELINE else Mode.LEDGER,
        NO_PREFERENCES,
        None if unread < 0 else unread,
    )
