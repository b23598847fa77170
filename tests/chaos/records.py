"""What clients were told, and what may be true where they were told nothing.

A user acts one after the other and always names the epoch that it has seen last. So what was answered is certain, and
what was not answered can have happened at any time since, but only as long as that epoch lasts:

- a read that was given up joins the state, or never does. Reads of one epoch merge, so the order does not matter;
- a mark-unread that was given up ends the epoch, or never does. Whatever names the old epoch after it is void.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import combinations


class Violation(AssertionError):
    """The service said something that can't be."""


@dataclass(frozen=True)
class World:
    """One of the states that may stand in an epoch: everything up to `seq` is read, and `apart` beyond it."""

    seq: int = 0
    apart: frozenset[int] = frozenset()

    def read(self, seq: int = 0, apart: Iterable[int] = ()) -> "World":
        top = max(self.seq, seq)
        return World(top, frozenset(s for s in self.apart.union(apart) if s > top))

    def rewind(self, seq: int) -> "World":
        """Own messages stay read too, but those are never counted."""
        return World(min(self.seq, seq - 1), frozenset(s for s in self.apart if s < seq))


@dataclass(frozen=True)
class Read:
    seq: int = 0
    apart: tuple[int, ...] = ()
    everything: bool = False
    """Up to whatever was there when it was done."""


@dataclass
class MarkUnread:
    seq: int
    own_after: int = 0
    """The highest message of one's own that was sent after it was given up."""


Step = Read | MarkUnread


@dataclass
class Reading:
    """What one user has read in one channel, as far as it can be known."""

    epoch: int
    worlds: set[World]
    given_up: list[Step] = field(default_factory=list)
    """In this epoch."""
    doubtful: bool = False
    """Some step was given up: the hot store may have it, and the log not."""
    story: list[str] = field(default_factory=list, repr=False)
    """Everything in its order, for whoever has to find out what went wrong."""

    def answered(self, step: Step, seq: int, epoch: int, context: object) -> None:
        """A step was acknowledged, and this is where the pointer stands now."""
        self.tell(f"{step} is acknowledged: epoch {epoch}, seq {seq}")
        if epoch < self.epoch:
            raise Violation(f"epoch {self.epoch} has become {epoch}: {context}")
        if epoch == self.epoch and isinstance(step, Read):
            self._keep({_done(world, step, seq) for world in self._with_given_up(seq)}, seq, context)
        elif isinstance(step, MarkUnread) and epoch > self.epoch:
            # Done now, or by an attempt that got no answer; or by another one that had been given up before.
            rewound = {world.rewind(step.seq) for world in self._with_given_up(seq)}
            self._begin(epoch, rewound | self._rewound(seq), seq, context)
        elif epoch > self.epoch:
            self._begin(epoch, self._rewound(seq), seq, context)  # the step named an epoch that was over
        else:
            raise Violation(f"acknowledged, but epoch {epoch} goes on: {step}, {context}")

    def seen(self, seq: int, epoch: int, context: object) -> None:
        """An exact answer showed the pointer here."""
        self.tell(f"seen: epoch {epoch}, seq {seq}")
        if epoch < self.epoch:
            raise Violation(f"epoch {self.epoch} has become {epoch}: {context}")
        if epoch > self.epoch:
            self._begin(epoch, self._rewound(seq), seq, context)
        else:
            self._keep(self._with_given_up(seq), seq, context)

    def joined(self, seq: int, epoch: int) -> None:
        """A join was acknowledged: what was read outlives leaving, and it reads on in whatever epoch there is."""
        self.tell(f"joined: epoch {epoch}, seq {seq}")
        if epoch < self.epoch:
            raise Violation(f"epoch {self.epoch} has become {epoch} by a join")
        worlds = self._with_given_up(seq) if epoch == self.epoch else self._rewound(seq)
        read = {_done(world, Read(everything=True), seq) for world in worlds}
        if epoch == self.epoch:
            self._keep(read, seq, "a join")
        else:
            self._begin(epoch, read, seq, "a join")

    def own_message(self, seq: int) -> None:
        """A message of one's own has taken effect: it is read up to there."""
        self.tell(f"own message: seq {seq}")
        self.worlds = {world.read(seq) for world in self.worlds}
        for step in self.given_up:
            if isinstance(step, MarkUnread):
                step.own_after = seq

    def give_up(self, step: Step) -> None:
        """A step got no answer, and is not tried again."""
        self.tell(f"{step} is given up")
        self.doubtful = True
        self.given_up.append(step)

    def tell(self, text: str) -> None:
        """Notes what happens."""
        self.story.append(f"{datetime.now(UTC):%H:%M:%S.%f} {text}")

    def may_be(self, seq: int, epoch: int) -> set[World]:
        """The worlds in which the pointer stands here in the end."""
        worlds = (
            self._with_given_up(seq) if epoch == self.epoch else self._rewound(seq) if epoch > self.epoch else set()
        )
        return {world for world in worlds if world.seq == seq}

    def _keep(self, worlds: set[World], seq: int, context: object) -> None:
        kept = {world for world in worlds if world.seq == seq}
        if not kept:
            raise Violation(f"the pointer is at {seq}, which can't be: {self}, {context}")
        self.worlds = kept

    def _begin(self, epoch: int, worlds: set[World], seq: int, context: object) -> None:
        before = f"{self}"
        self.epoch, self.given_up = epoch, []
        kept = {world for world in worlds if world.seq == seq}
        if not kept:
            raise Violation(f"a new epoch {epoch} began at {seq}, which can't be: {before}, {context}")
        self.worlds = kept

    def _with_given_up(self, seq: int) -> set[World]:
        """With any of the reads that were given up, or none. `seq`: where one of everything may have led to."""
        worlds = set(self.worlds)
        reads = [step for step in self.given_up if isinstance(step, Read)]
        for some in _subsets(reads):
            for world in self.worlds:
                done = world
                for read in some:
                    done = _done(done, read, seq)
                worlds.add(done)
        return worlds

    def _rewound(self, seq: int) -> set[World]:
        """After any of the mark-unreads that were given up, with or without what was sent since."""
        rewinds = [step for step in self.given_up if isinstance(step, MarkUnread)]
        worlds = {world.rewind(step.seq) for world in self._with_given_up(seq) for step in rewinds}
        sent = {world.rewind(step.seq).read(step.own_after) for world in self._with_given_up(seq) for step in rewinds}
        return worlds | sent


def _done(world: World, step: Read, seq: int) -> World:
    return world.read(max(step.seq, seq) if step.everything else step.seq, step.apart)


def _subsets(steps: list[Read]) -> Iterator[tuple[Read, ...]]:
    for size in range(1, len(steps) + 1):
        yield from combinations(steps, size)


@dataclass
class Sent:
    """A message that somebody tried to send."""

    channel: str
    id: str
    sender: str
    acknowledged: bool = False
    seq: int | None = None
    delete_tried: bool = False
    delete_acknowledged: bool = False


@dataclass
class UserRoom:
    """A membership that changes."""

    inside: bool = False
    """What was acknowledged last, or is being tried."""
    certain: bool = True
    loose: bool = False
    """Some attempt got no answer: it may still be done later, so the opposite is not tried any more."""


@dataclass
class Records:
    """Everything that all clients know."""

    sent: dict[tuple[str, str], Sent] = field(default_factory=dict)
    readings: dict[tuple[str, str], Reading] = field(default_factory=dict)
    user_rooms: dict[tuple[str, str], UserRoom] = field(default_factory=dict)
    tapped: set[str] = field(default_factory=set)
    violations: list[str] = field(default_factory=list)
    answers: dict[str, int] = field(default_factory=dict)
    """How often each kind of answer came."""

    def known(self, channel: str) -> list[Sent]:
        """Messages of a channel whose place is known, and that nobody has tried to delete."""
        return [
            one for one in self.sent.values() if one.channel == channel and one.seq is not None and not one.delete_tried
        ]

    def highest(self, channel: str) -> int:
        """The highest seq that somebody was told."""
        return max((one.seq or 0 for one in self.sent.values() if one.channel == channel), default=0)

    def count(self, answer: str) -> None:
        self.answers[answer] = self.answers.get(answer, 0) + 1
