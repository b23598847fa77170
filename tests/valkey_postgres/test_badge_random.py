"""Random schedules of a cluster: whatever is sent, lost, repeated and killed, in whatever order, the badge by the set
is the badge by SQL, and both are what a naive model says.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace

import pytest

from readstate.api import ChangeMembers
from readstate.domain.events import MessageEvent
from tests.conftest import Clock
from tests.contract.valkey import ask_all, single
from tests.effort import long

from .away import PATIENT, Cluster, a_cluster, outsider, second

USERS = ["ann", "bob", "cy", "dan"]
CHANNELS = {
    "pair": ("direct", ["ann", "bob"]),
    "group": ("group", ["ann", "bob", "cy"]),
    "big": ("group", [*USERS, "eve", "fay"]),
    "open": ("channel", USERS),
}
STEPS = 120


@dataclass
class Sent:
    """A message as the naive model knows it."""

    sender: str
    channel: str
    mentions: tuple[str, ...]
    accepted_at: int
    away: set[str] | None = None
    """Decided when it is first written, and never again."""


@dataclass
class Naive:
    """Everything that ever happened, counted from the start each time."""

    sent: list[Sent] = field(default_factory=list)
    written: int = 0
    online: set[str] = field(default_factory=set)
    muted: set[tuple[str, str]] = field(default_factory=set)
    taps: dict[str, int] = field(default_factory=dict)
    erasing: str | None = None

    def write(self, most: int) -> None:
        """The next messages are written: who is away now was away when they came."""
        for one in self.sent[self.written : self.written + most]:
            kind, members = CHANNELS[one.channel]
            eligible = set(one.mentions) & set(members)
            if kind != "channel" and one.channel != "big":
                eligible |= {user for user in members if (user, one.channel) not in self.muted}
            one.away = eligible - {one.sender, self.erasing} - self.online
        self.written = min(len(self.sent), self.written + most)

    def delete(self, channel: str) -> None:
        """Nobody is told of what was written in a channel that is gone. Those who come again begin anew."""
        for one in self.sent:
            if one.channel == channel:
                one.away = set()
        self.muted = {(user, there) for user, there in self.muted if there != channel}

    def leave(self, user: str) -> None:
        """Somebody is about to be erased: what is still to be written finds them nowhere."""
        self.online.discard(user)
        self.erasing = user

    def erase(self, user: str) -> None:
        """Nobody is told of them, nor they of anybody."""
        for one in self.sent:
            one.away = set() if one.sender == user else (one.away or set()) - {user}
        self.muted = {(whose, channel) for whose, channel in self.muted if whose != user}
        self.taps.pop(user, None)
        self.erasing = None

    def missed(self, user: str) -> list[int]:
        """The numbers of the messages that came while the user was away, since the last tap."""
        since = self.taps.get(user, 0)
        return [n for n, one in enumerate(self.sent) if one.away and user in one.away and one.accepted_at > since]

    def badge(self, user: str) -> int:
        """How many different people wrote while the user was away, since the last tap."""
        return len({self.sent[number].sender for number in self.missed(user)})


class Schedule:
    """One cluster and one naive model, driven by the same dice."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.naive = Naive()
        self.dice = random.Random(seed)
        self.story: list[str] = []

    async def step(self) -> None:
        """Something happens."""
        often = [self.send] * 8 + [self.write] * 4 + [self.update] * 4
        rest = [self.connect, self.disconnect, self.tap, self.tap, self.look, self.look, self.mute, self.repeat]
        faults = [self.writer_dies, self.update_dies, self.flush_replica, self.replica_lies, self.restart_replica]
        gone = [self.delete, self.erase]
        chosen = self.dice.choice([*often, *rest, *faults, *gone, self.flush_main, self.wait, self.check])
        self.story.append(chosen.__name__)
        if self.dice.random() < 0.6:
            self.cluster.clock.advance(ms=self.dice.randint(1, 20))
        await chosen()

    # ------------------------------------------------------------ people

    async def send(self) -> None:
        channel = self.dice.choice(list(CHANNELS))
        sender = self.dice.choice([user for user in CHANNELS[channel][1] if user in USERS])
        mentions = tuple(self.dice.sample(USERS, self.dice.choice([0, 0, 1, 2])))
        await self.cluster.send(sender, channel, f"m{len(self.naive.sent)}", *mentions, instance=self.dice.randrange(2))
        accepted_at = self.cluster.log.messages[-1].event.created_at
        self.naive.sent.append(Sent(sender, channel, mentions, accepted_at))

    async def connect(self) -> None:
        user = self.dice.choice(USERS)
        await self.cluster.comes_online(user)
        self.naive.online.add(user)

    async def disconnect(self) -> None:
        user = self.dice.choice(USERS)
        await self.cluster.goes_away(user)
        self.naive.online.discard(user)

    async def tap(self) -> None:
        user = self.dice.choice(USERS)
        wanted = self.naive.missed(user)
        tap = await self.cluster.tap(user, instance=self.dice.randrange(2))
        shown = sorted(int(one.id[1:]) for sender in tap.by_sender for one in sender.messages)
        assert shown == [n for n in wanted if self.naive.sent[n].accepted_at <= tap.tapped_at], self.story
        self.naive.taps[user] = max(tap.tapped_at, self.naive.taps.get(user, 0))

    async def mute(self) -> None:
        channel = self.dice.choice(list(CHANNELS))
        user = self.dice.choice([user for user in CHANNELS[channel][1] if user in USERS])
        muted = self.dice.random() < 0.5
        await self.cluster.mute(user, channel, muted)
        (self.naive.muted.add if muted else self.naive.muted.discard)((user, channel))

    async def delete(self) -> None:
        """A channel is deleted, with all that is under way to it, and opened again."""
        channel = self.dice.choice(list(CHANNELS))
        kind, members = CHANNELS[channel]
        self.naive.write(len(self.naive.sent))
        await self.cluster.instances[self.dice.randrange(2)].channels.delete(channel)
        self.naive.delete(channel)
        await self.cluster.open(channel, *members, type=kind)
        await self.all_look()

    async def erase(self) -> None:
        """Somebody is erased, and comes back as a new one."""
        user = self.dice.choice(USERS)
        self.naive.leave(user)
        self.naive.write(len(self.naive.sent))
        await self.cluster.instances[self.dice.randrange(2)].transfer.erase_user(user)
        self.naive.erase(user)
        self.cluster.clock.advance(seconds=1)  # what was made up to then is not theirs any more
        for channel, (_, members) in CHANNELS.items():
            if user in members:
                await self.cluster.instances[0].channels.change_members(channel, ChangeMembers(add=(user,)))
        await self.all_look()

    async def look(self) -> None:
        """Loads the badge, if it is not. It may be behind what is under way."""
        await self.cluster.instances[self.dice.randrange(2)].badge.count(self.dice.choice(USERS))

    async def all_look(self) -> None:
        """Every badge is loaded when late events come."""
        for user in USERS:
            await self.cluster.instances[0].badge.count(user)

    # ------------------------------------------------------------ workers

    async def write(self) -> None:
        most = self.dice.randint(1, 5)
        await self._write(self.cluster.write, most)

    async def writer_dies(self) -> None:
        """After its commit: the batch comes again, with others behind it, when presence may have changed."""
        await self._write(self.cluster.write_and_die, self.dice.randint(1, 5))

    async def _write(self, work: Callable[[int], Awaitable[object]], most: int) -> None:
        end = self.cluster.written + most
        await work(most)
        written = sum(isinstance(one.event, MessageEvent) for one in self.cluster.log.messages[:end])
        self.naive.write(max(0, written - self.naive.written))

    async def update(self) -> None:
        await self.cluster.update(self.dice.randint(1, 5))

    async def update_dies(self) -> None:
        """Before it can say how far it has come."""
        before = self.cluster.updated
        await self.cluster.update(self.dice.randint(1, 5))
        self.cluster.updated = before

    async def repeat(self) -> None:
        """Old events come again."""
        await self.cluster.update(0, again=self.dice.randint(1, 30))

    async def wait(self) -> None:
        self.cluster.clock.advance(seconds=1)

    # ------------------------------------------------------------ servers

    async def flush_replica(self) -> None:
        second().ask("FLUSHALL")

    async def flush_main(self) -> None:
        async with outsider(single().url) as main:
            await ask_all(main, "FLUSHALL")

    async def restart_replica(self) -> None:
        if self.dice.random() < 0.3:
            second().kill()
            await self.update()
            second().start()

    async def replica_lies(self) -> None:
        """It has somebody more on every set, or somebody less."""
        word = self.dice.choice(["'HSET', key, '{}', ''", "'HDEL', key, '{}'"]).format(self.dice.choice(USERS))
        second().ask("EVAL", f"for _, key in ipairs(redis.call('KEYS', '*')) do redis.call({word}) end", "0")

    # ------------------------------------------------------------ what must hold

    async def check(self) -> None:
        """Everything that is under way arrives; then all ways of counting agree."""
        await self._write(lambda _: self.cluster.write(), len(self.cluster.log.messages))
        await self.cluster.update()
        for user in USERS:
            found = [await self.cluster.badge(user, instance) for instance in (0, 1)]
            wanted = self.naive.badge(user)
            assert found == [wanted, wanted], f"{user}: {found} instead of {wanted} after {self.story}"


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    second().ask("FLUSHALL")
    async with a_cluster(Clock(), timings=replace(PATIENT, replica_answer=5.0)) as cluster:
        for channel, (kind, members) in CHANNELS.items():
            await cluster.open(channel, *members, type=kind)
        yield cluster


@pytest.mark.parametrize("seed", [*range(6), *long(range(6, 25))])
async def test_the_badge_by_the_set_by_sql_and_by_hand_is_the_same(cluster: Cluster, seed: int) -> None:
    schedule = Schedule(cluster, seed)
    for _ in range(STEPS):
        await schedule.step()
    await schedule.check()
    assert any(one.away for one in schedule.naive.sent)
