"""What every adapter of the hot state of channels promises."""

from readstate.domain.hot_updates import ChannelHotUpdate
from readstate.domain.model import ChangeNumber, Channel, Entry, Latest, LogPosition, Mode, ReadState
from readstate.ports import Count, CountQuery, HotChannels, TimelineLoad

from .conftest import CAP


def entry(seq: int, everyone: bool = False) -> Entry:
    return Entry(seq, f"m{seq}", 1000 + seq, everyone)


def channel(change: int, last_seq: int = 0, mode: Mode = Mode.TIMELINE) -> Channel:
    latest = Latest(f"m{last_seq}", last_seq, 1000 + last_seq, "alice", None) if last_seq else None
    return Channel(
        "c", mode=mode, change=ChangeNumber(change), position=LogPosition(change), last_seq=last_seq, latest=latest
    )


def step(seq: int, everyone: bool = False) -> ChannelHotUpdate:
    return ChannelHotUpdate(channel(seq, seq), seq, entry(seq, everyone))


async def loaded(channels: HotChannels, *steps: ChannelHotUpdate) -> None:
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
    assert await channels.positions() == (2,)


async def test_counting_after_a_pointer(channels: HotChannels) -> None:
    await loaded(channels, step(1), step(2), step(3))
    found = await count(channels, 1)
    assert (found.count, found.capped) == (2, False)
    assert found.first is not None
    assert found.first.seq == 2
    assert (await count(channels, 3)) == Count(0, 0, None, False)


async def test_case_5_read_one_by_one_and_then_deleted_counts_out_once(channels: HotChannels) -> None:
    await loaded(channels, step(1), step(2), step(3))
    assert (await count(channels, 0, apart=(2,))).count == 2
    await channels.apply([ChannelHotUpdate(channel(4, 3), 4, remove=2)])
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
    await channels.apply([ChannelHotUpdate(channel(2, 1), 2, entry(1, False))])
    found = await count(channels, 0)
    assert (found.count, found.mentions) == (1, 0)


async def test_a_step_that_comes_again_brings_nothing_back(channels: HotChannels) -> None:
    await loaded(channels, step(1), step(2))
    await channels.apply([ChannelHotUpdate(channel(3, 2), 3, remove=1), step(1), step(2)])
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


async def test_every_detail_of_a_channel_comes_back(channels: HotChannels) -> None:
    elsewhere = Latest("m7", 7, 1007, "алиса", "a 👍 preview")
    full = [
        Channel("plain"),
        Channel("gone", type="direct", deleted=True, archived=True, change=ChangeNumber(3)),
        Channel("thread", type="thread", mode=Mode.TIMELINE, last_seq=7, last_id="m7", last_at=1007, latest=elsewhere),
        Channel(
            "деталь",
            type="channel",
            name="name",
            avatar="https://example.org/a.png",
            member_count=2,
            last_seq=9,
            last_id="m9",
            last_at=1009,
            change=ChangeNumber(2**53 - 1),
            position=LogPosition(2**53 - 1),
            latest=elsewhere,
            peers=("alice", "bob"),
        ),
    ]
    await channels.install(full)
    ids = [one.channel_id for one in full]
    assert await channels.channels([*ids, "unknown", ids[0]]) == [*full, None, full[0]]


async def test_many_channels_at_once_keep_their_own_order(channels: HotChannels) -> None:
    def at(name: str, seq: int) -> Channel:
        return Channel(name, mode=Mode.TIMELINE, change=ChangeNumber(seq), position=LogPosition(seq), last_seq=seq)

    names = [f"c{number}" for number in range(30)]
    await channels.install([at(name, 0) for name in names])
    for name in names:
        assert await channels.install_timeline(TimelineLoad(name, 0, [], 0))
    await channels.apply([ChannelHotUpdate(at(name, seq), seq, entry(seq)) for seq in (1, 2, 3) for name in names])
    await channels.apply([ChannelHotUpdate(at(name, 4), 4, remove=1) for name in names[:10]])

    counts = await channels.count([CountQuery("bob", name, ReadState(0, seq)) for seq in (0, 2) for name in names])
    assert [count.count for count in counts if count] == [2] * 10 + [3] * 20 + [1] * 30
    assert {channel.change for channel in await channels.channels(names) if channel} == {3, 4}


async def test_a_deleted_channel_has_no_timeline(channels: HotChannels) -> None:
    await loaded(channels, step(1))
    gone = Channel("c", mode=Mode.TIMELINE, change=ChangeNumber(2), position=LogPosition(2), deleted=True)
    await channels.apply([ChannelHotUpdate(gone, 2)])
    assert await channels.channels(["c"]) == [gone]
    assert await channels.count([CountQuery("bob", "c", ReadState())]) == [None]


async def test_a_message_that_was_let_go_does_not_come_back_by_an_edit(channels: HotChannels) -> None:
    await loaded(channels, *[step(seq) for seq in range(1, CAP + 2)])
    change = CAP + 2
    await channels.apply([ChannelHotUpdate(channel(change, CAP + 1), change, entry(1, True))])
    found = await count(channels, 0)
    assert (found.count, found.mentions, found.capped) == (CAP, 0, True)


async def test_a_mention_goes_with_its_message(channels: HotChannels) -> None:
    await loaded(channels, step(1, True), step(2, True), step(3))
    await channels.apply([ChannelHotUpdate(channel(4, 3), 4, remove=2)])
    assert (await count(channels, 0, named=(2,))).mentions == 1
    await channels.apply([step(seq) for seq in range(5, 5 + CAP)])
    assert (await count(channels, 0)).mentions == 0


async def test_a_load_with_more_than_is_kept_leaves_the_oldest_out(channels: HotChannels) -> None:
    await channels.install([channel(9, 9)])
    assert await channels.install_timeline(TimelineLoad("c", 9, [entry(seq, seq == 1) for seq in range(1, 10)], 0))
    found = await count(channels, 3)
    assert (found.count, found.mentions, found.capped) == (CAP, 0, True)
    assert not (await count(channels, 4)).capped


async def test_long_runs_of_messages_read_apart(channels: HotChannels) -> None:
    await loaded(channels, *[step(seq, True) for seq in range(1, CAP + 1)])
    found = await count(channels, 0, apart=(1, 2, *range(4, 10_000)))
    assert (found.count, found.mentions) == (1, 1)
    assert found.first is not None
    assert (found.first.seq, found.first.id, found.first.at) == (3, "m3", 1003)
    assert await count(channels, 0, apart=tuple(range(1, 10_000))) == Count(0, 0, None, False)


async def test_the_position_rises_with_what_is_applied_and_never_falls(channels: HotChannels) -> None:
    assert await channels.positions() == (0,)
    await channels.apply([step(7), step(3)])
    await channels.install([channel(9, 9)])
    assert await channels.positions() == (7,)


async def test_the_generation_changes_when_something_is_dropped(channels: HotChannels) -> None:
    await channels.install([channel(1, 1)])
    generation = await channels.generation()
    await channels.apply([step(2)])
    assert await channels.generation() == generation
    await channels.forget("c")
    assert await channels.generation() != generation
