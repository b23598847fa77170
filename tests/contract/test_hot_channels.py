"""What every adapter of the hot state of channels promises."""

from readstate.model import Channel, Entry, Latest, Mode, ReadState
from readstate.ports import Count, CountQuery, HotChannels, TimelineLoad
from readstate.steps import ChannelStep

from .conftest import CAP


def entry(seq: int, everyone: bool = False) -> Entry:
    return Entry(seq, f"m{seq}", 1000 + seq, everyone)


def channel(change: int, last_seq: int = 0, mode: Mode = Mode.TIMELINE) -> Channel:
    latest = Latest(f"m{last_seq}", last_seq, 1000 + last_seq, "alice", None) if last_seq else None
    return Channel("c", mode=mode, change=change, position=change, last_seq=last_seq, latest=latest)


def step(seq: int, everyone: bool = False) -> ChannelStep:
    return ChannelStep(channel(seq, seq), seq, entry(seq, everyone))


async def loaded(channels: HotChannels, *steps: ChannelStep) -> None:
    await channels.install([channel(0)])
    assert await channels.install_timeline(TimelineLoad("c", 0, [], 0))
    await channels.apply(steps)


async def count(channels: HotChannels, seq: int, apart: tuple[int, ...] = (), named: tuple[int, ...] = ()) -> Count:
    found = (await channels.count([CountQuery("bob", "c", ReadState(0, seq, frozenset(apart)), named)]))[0]
    assert found is not None
    return found


async def test_what_is_not_loaded_is_none(channels: HotChannels) -> None:
    assert await channels.channels(["c"]) == [None]
    assert await channels.count([CountQuery("bob", "c", ReadState())]) == [None]


async def test_a_channel_stands_as_its_last_change_left_it(channels: HotChannels) -> None:
    await channels.apply([step(1), step(2), step(1)])
    assert await channels.channels(["c"]) == [channel(2, 2)]
    await channels.install([channel(1, 1)])
    assert await channels.channels(["c"]) == [channel(2, 2)]
    assert await channels.position() == 2


async def test_counting_after_a_pointer(channels: HotChannels) -> None:
    await loaded(channels, step(1), step(2), step(3))
    found = await count(channels, 1)
    assert (found.count, found.capped) == (2, False)
    assert found.first is not None
    assert found.first.seq == 2
    assert (await count(channels, 3)) == Count(0, 0, None, False)


async def test_hard_case_5_read_one_by_one_and_then_deleted_counts_out_once(channels: HotChannels) -> None:
    await loaded(channels, step(1), step(2), step(3))
    assert (await count(channels, 0, apart=(2,))).count == 2
    await channels.apply([ChannelStep(channel(4, 3), 4, remove=2)])
    found = await count(channels, 0, apart=(2,))
    assert found.count == 2


async def test_the_first_unread_is_not_one_that_was_read_apart(channels: HotChannels) -> None:
    await loaded(channels, step(1), step(2), step(3))
    found = await count(channels, 0, apart=(1, 2))
    assert found.first is not None
    assert (found.count, found.first.id) == (1, "m3")


async def test_a_message_that_names_the_user_and_everyone_is_one_mention(channels: HotChannels) -> None:
    await loaded(channels, step(1, True), step(2), step(3, True))
    assert (await count(channels, 0, named=(1, 2))).mentions == 3
    assert (await count(channels, 1, named=(2,))).mentions == 2
    assert (await count(channels, 0, apart=(3,), named=(1,))).mentions == 1


async def test_an_edit_takes_everyone_out_of_the_mention(channels: HotChannels) -> None:
    await loaded(channels, step(1, True))
    await channels.apply([ChannelStep(channel(2, 1), 2, entry(1, False))])
    found = await count(channels, 0)
    assert (found.count, found.mentions) == (1, 0)


async def test_a_step_that_comes_again_brings_nothing_back(channels: HotChannels) -> None:
    await loaded(channels, step(1), step(2))
    await channels.apply([ChannelStep(channel(3, 2), 3, remove=1), step(1), step(2)])
    assert (await count(channels, 0)).count == 1


async def test_only_the_newest_are_kept_and_the_count_says_so(channels: HotChannels) -> None:
    await loaded(channels, *[step(seq) for seq in range(1, CAP + 3)])
    found = await count(channels, 0)
    assert (found.count, found.capped) == (CAP, True)
    assert not (await count(channels, 2)).capped


async def test_a_lower_bound_is_not_sure_if_the_newest_that_was_let_go_is_read(channels: HotChannels) -> None:
    await loaded(channels, *[step(seq) for seq in range(1, CAP + 3)])
    assert (await count(channels, 0, apart=(1,))).sure
    read = await count(channels, 0, apart=(2,))
    assert (read.count, read.capped, read.sure) == (CAP, True, False)


async def test_a_load_that_was_overtaken_is_refused(channels: HotChannels) -> None:
    await channels.apply([step(1), step(2)])
    assert not await channels.install_timeline(TimelineLoad("c", 1, [entry(1)], 0))
    assert await channels.install_timeline(TimelineLoad("c", 2, [entry(1), entry(2)], 0))
    assert (await count(channels, 0)).count == 2


async def test_a_load_knows_what_it_left_out(channels: HotChannels) -> None:
    await channels.install([channel(9, 9)])
    assert await channels.install_timeline(TimelineLoad("c", 9, [entry(seq) for seq in range(5, 10)], 4))
    assert (await count(channels, 2)).capped
    assert not (await count(channels, 4)).capped


async def test_a_ledger_channel_has_no_timeline(channels: HotChannels) -> None:
    await channels.install([channel(1, 1, Mode.LEDGER)])
    assert not await channels.install_timeline(TimelineLoad("c", 1, [entry(1)], 0))


async def test_forgetting(channels: HotChannels) -> None:
    await loaded(channels, step(1))
    await channels.forget("c")
    assert await channels.channels(["c"]) == [None]
    assert await channels.count([CountQuery("bob", "c", ReadState())]) == [None]
