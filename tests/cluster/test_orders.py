"""Events of one user and channel, in any order and any number of times, give the same state."""

import random
from collections import defaultdict

import pytest

from readstate.domain.events import ReadEvent
from readstate.domain.model import NO_CHANGE
from tests.effort import long

from .conftest import WorkingService

Key = tuple[str, str]
NOW = 1_700_000_000_000


def made_up(dice: random.Random, user: str, channel: str) -> ReadEvent:
    seq = dice.randint(0, 20)
    apart = tuple(sorted({seq + dice.randint(1, 9) for _ in range(dice.randint(0, 3))}))
    epoch = dice.choice([0, 0, 1, 1, 2, 1 << 20])
    return ReadEvent(user, channel, epoch, seq, apart, f"m{seq}" if seq else None, seq or None, NOW, NO_CHANGE, NOW)


def naive(events: list[ReadEvent]) -> tuple[int, int, frozenset[int]]:
    """The newest epoch counts alone; in it the farthest pointer, and what is apart beyond it."""
    epoch = max(event.epoch for event in events)
    counting = [event for event in events if event.epoch == epoch]
    seq = max(event.last_read_seq for event in counting)
    return epoch, seq, frozenset(s for event in counting for s in event.apart if s > seq)


def told_in_any_order(dice: random.Random, events: list[ReadEvent]) -> list[ReadEvent]:
    """Each at least once."""
    again = events + dice.choices(events, k=len(events) // 2)
    dice.shuffle(again)
    return again


@pytest.mark.parametrize("seed", [1, *long([2, 3])])
async def test_reads_of_the_log_merge_whatever_their_order(service: WorkingService, seed: int) -> None:
    dice = random.Random(seed)
    keys = [(f"user{u}", f"channel{c}") for u in range(8) for c in range(5)]
    events = [made_up(dice, *dice.choice(keys)) for _ in range(600)]
    for some in (told_in_any_order(dice, events[:400]), told_in_any_order(dice, events)):
        await service.rs.cluster.sender.send_reads(some)
        await service.all_done()

    by_key: dict[Key, list[ReadEvent]] = defaultdict(list)
    for event in events:
        by_key[event.user_id, event.channel_id].append(event)
    found = await service.receipts()
    assert {key: found[key] for key in by_key} == {key: naive(some) for key, some in by_key.items()}


async def test_reads_that_come_late_and_again_change_nothing_that_bob_sees(service: WorkingService) -> None:
    """What bob did, told to the log again in another order, while his hot state is lost."""
    chat = service.chat
    await chat.send("alice", *(f"m{n}" for n in range(1, 9)))
    events = []
    for target in ({"up_to": "m3"}, {"messages": ["m5", "m7"]}, None, {"up_to": "m2"}, {"messages": ["m8"]}):
        if target is None:
            await chat.mark_unread("bob", "m2")
        else:
            await chat.read("bob", **target)
        await service.all_done()
        [(epoch, seq, apart)] = [
            state for key, state in (await service.receipts()).items() if key == ("bob", "general")
        ]
        events.append(
            ReadEvent("bob", "general", epoch, seq, tuple(sorted(apart)), f"m{seq}", seq, NOW, NO_CHANGE, NOW)
        )
    before = await chat.unread("bob")
    assert before["unread"] == 5  # m3 to m7; the reads before the mark-unread are taken back

    await service.rs.evict()
    await service.rs.cluster.sender.send_reads(told_in_any_order(random.Random(4), events))
    await service.all_done()

    await service.rs.cluster.freshness.caught_up(["bob"])
    assert await chat.count("bob") == 5
    assert (await chat.unread("bob"))["last_read"] == before["last_read"]


async def test_events_of_a_channel_that_come_again_change_nothing(service: WorkingService) -> None:
    chat = service.chat
    await chat.send("alice", "m1", "m2", "m3")
    await chat.delete("m2")
    await chat.read("bob", messages=["m3"])
    before = await chat.unread("bob")

    for name in ("m3", "m1", "m2", "m1"):
        result = await chat.post("alice", id=name, text="again")
        assert result["status"] == "duplicate"

    assert await chat.count("bob") == 1
    assert await chat.unread("bob") == before
