"""A sorted set of messages in memory: columns of numbers, and ids shared by all members of a channel."""

from array import array
from bisect import bisect_left, bisect_right, insort

from readstate.adapters.words import numbers, time_of
from readstate.domain.model import Entry, Position


class Ledger:
    """Messages by seq; order by seq is order by time. Keeps the newest `cap`."""

    __slots__ = ("ats", "cap", "floor", "ids", "named", "seqs", "touched")

    def __init__(self, cap: int, touched: int = 0) -> None:
        self.cap = cap
        self.touched = touched
        self.seqs = array("q")
        self.ats = array("q")
        self.ids: list[str] = []
        self.named = array("q")
        """Seqs of mentions: of the user in a ledger, of everyone in a timeline."""
        self.floor = 0
        """The newest seq that was evicted; 0: none."""

    def __len__(self) -> int:
        return len(self.seqs)

    def put(self, entry: Entry, mention: bool) -> None:
        """Add a message, or update its mention."""
        seqs = self.seqs
        if not seqs or entry.seq > seqs[-1]:
            seqs.append(entry.seq)
            self.ats.append(entry.at)
            self.ids.append(entry.id)
        else:
            index = bisect_left(seqs, entry.seq)
            if seqs[index] != entry.seq:
                seqs.insert(index, entry.seq)
                self.ats.insert(index, entry.at)
                self.ids.insert(index, entry.id)
        self.set_mention(entry.seq, mention)
        if len(seqs) > self.cap:
            self.floor = seqs[0]
            self.trim(self.floor)

    def set_mention(self, seq: int, mention: bool) -> None:
        index = bisect_left(self.named, seq)
        known = index < len(self.named) and self.named[index] == seq
        if mention and not known:
            insort(self.named, seq)
        elif known and not mention:
            del self.named[index]

    def remove(self, seq: int) -> None:
        index = bisect_left(self.seqs, seq)
        if index < len(self.seqs) and self.seqs[index] == seq:
            del self.seqs[index], self.ats[index], self.ids[index]
            self.set_mention(seq, False)

    def trim(self, seq: int) -> None:
        index = bisect_right(self.seqs, seq)
        if index:
            del self.seqs[:index], self.ats[:index], self.ids[:index]
            del self.named[: bisect_right(self.named, seq)]

    def read(self, seq: int) -> None:
        """The pointer has reached `seq`: nothing up to it counts, so evictions up to it don't matter either."""
        self.trim(seq)
        if seq >= self.floor:
            self.floor = 0

    def __contains__(self, seq: int) -> bool:
        index = bisect_left(self.seqs, seq)
        return index < len(self.seqs) and self.seqs[index] == seq

    def ends_with(self, seq: int) -> bool:
        """Whether this is the newest message, and none was evicted."""
        seqs = self.seqs
        return not self.floor and len(seqs) > 0 and seqs[-1] == seq

    def facts(self) -> dict[str, str]:
        """In words."""
        first, last = (self.position(place) if self.seqs else None for place in (0, -1))
        return {
            "messages": str(len(self)),
            "first": _place(first),
            "last": _place(last),
            "dropped up to": f"seq {self.floor}" if self.floor else "nothing was dropped",
            "mentions, by seq": numbers(self.named),
            "last used": time_of(self.touched),
        }

    def position(self, index: int) -> Position:
        return Position(self.seqs[index], self.ids[index], self.ats[index])

    def after(self, seq: int) -> int:
        return bisect_right(self.seqs, seq)


def _place(position: Position | None) -> str:
    return f"seq {position.seq} ({position.id}, sent {time_of(position.at)})" if position else "none"
