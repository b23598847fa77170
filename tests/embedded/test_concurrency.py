"""Many writers and readers at once over real HTTP: nothing lost, nothing doubled, the pointer is the maximum."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import Chat, check_problem, of
from tests.servers import Server, serving

CHANNELS = ("small", "large")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir: Path = tmp_path_factory.mktemp("concurrency") / "data"
    with serving(data_dir, fanout_max_members=20) as server:
        yield server


@pytest.fixture
async def chat(server: Server, request: pytest.FixtureRequest) -> AsyncIterator[Chat]:
    """The service over many connections, with two fresh channels: one below the limit of members, one above."""
    limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
    async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as http:
        chat = Chat(http, server.service_key)
        for channel in CHANNELS:
            if (await chat.call("GET", f"/v1/channels/{channel}")).is_success:
                await chat.delete_channel(channel)
        await chat.open_channel("alice", "bob", "carol", "dave", channel="small")
        guests = [f"guest{number}" for number in range(30)]
        await chat.open_channel("alice", "bob", "carol", "dave", *guests, channel="large")
        yield chat


@pytest.mark.parametrize("channel", CHANNELS)
async def test_every_message_of_many_writers_is_there_once_and_in_one_order(chat: Chat, channel: str) -> None:
    chance = random.Random(7)
    names = [f"m{number}" for number in range(400)]
    start = (await chat.explain("dave", channel))["latest_seq"]
    batches = [names[i : i + 4] for i in range(0, len(names), 4)] * 2  # everything is sent twice
    chance.shuffle(batches)

    async def write(batch: list[str]) -> list[tuple[str, str, int]]:
        sender = chance.choice(["alice", "carol"])
        messages = [{"channel_id": channel, "sender_id": sender, "id": name} for name in batch]
        return [(r["status"], r["id"], r["seq"]) for r in await chat.post_all(messages)]

    results = [result for done in await asyncio.gather(*map(write, batches)) for result in done]

    assert Counter(status for status, _, _ in results) == {"accepted": 400, "duplicate": 400}
    seqs = {name: seq for _, name, seq in results}
    assert all(seqs[name] == seq for _, name, seq in results)
    assert sorted(seqs.values()) == list(range(start + 1, start + 401))
    shown = await chat.all_waiting("dave", channel)
    assert [(m["id"], m["seq"]) for m in shown] == sorted(seqs.items(), key=lambda item: item[1])
    assert [m["at"] for m in shown] == sorted({m["at"] for m in shown})
    assert await chat.count("dave", channel) == 400


@pytest.mark.parametrize("channel", CHANNELS)
async def test_one_message_sent_by_all_at_once_is_accepted_once(chat: Chat, channel: str) -> None:
    results = await asyncio.gather(*(chat.post("alice", channel, id="same") for _ in range(50)))

    assert Counter(result["status"] for result in results) == {"accepted": 1, "duplicate": 49}
    assert len({result["seq"] for result in results}) == 1
    assert await chat.count("bob", channel) == 1


@pytest.mark.parametrize("channel", CHANNELS)
async def test_the_pointer_is_the_maximum_of_all_reads(chat: Chat, channel: str) -> None:
    chance = random.Random(11)
    sent = await chat.post_all(
        {"channel_id": channel, "sender_id": "alice", "id": f"m{number}"} for number in range(100)
    )
    seqs = [result["seq"] for result in sent]
    targets = [chance.choice(seqs[:80]) for _ in range(200)]

    async def read(seq: int) -> int:
        if seq % 3 == 0:
            [outcome] = await chat.read_many({"user_id": "bob", "channel_id": channel, "up_to_seq": seq})
            assert outcome["status"] == "ok"
            return seq
        place = int((await chat.read("bob", channel, up_to_seq=seq))["last_read"]["seq"])
        assert place >= seq
        return place

    places = await asyncio.gather(*map(read, targets))

    assert (await chat.unread("bob", channel))["last_read"]["seq"] == max(targets) == max(places)
    assert await chat.count("bob", channel) == seqs[-1] - max(targets)


@pytest.mark.parametrize("channel", CHANNELS)
async def test_single_reads_from_many_devices_add_up(chat: Chat, channel: str) -> None:
    names = [f"m{number}" for number in range(60)]
    await chat.post_all({"channel_id": channel, "sender_id": "alice", "id": name} for name in names)

    await asyncio.gather(*(chat.read("bob", channel, messages=[name]) for name in names[1::2]))

    assert await chat.waiting("bob", channel=channel, order="oldest") == names[0::2]
    assert await chat.count("bob", channel) == 30


async def test_everything_at_once_and_the_counts_come_out_right(chat: Chat) -> None:
    """Writers, deleters, readers, joiners and watchers in both channels, then a count by hand."""
    deleted: set[tuple[str, str]] = set()

    async def write(channel: str, sender: str) -> None:
        for number in range(40):
            name = f"{sender}{number}"
            await chat.post(sender, channel, id=name, mentions=["bob"] if number % 4 == 0 else [])
            if number % 5 == 0:
                await chat.delete(name, channel)
                deleted.add((channel, name))

    async def read(channel: str, user: str) -> None:
        for _ in range(30):
            first = (await chat.unread(user, channel))["first_unread"]
            if first is not None:
                result = await chat.read(user, channel, up_to_seq=first["seq"])
                assert result["last_read"]["seq"] >= first["seq"]

    async def watch(user: str) -> None:
        for _ in range(30):
            rows = await chat.sync(user, only_unread="false")
            assert rows["totals"]["unread"] == sum(row["unread"] for row in rows["channels"])
            assert all(row["exact"] and row["unread"] >= row["mentions"] >= 0 for row in rows["channels"])

    async def come_and_go(channel: str, user: str) -> None:
        for _ in range(10):
            await chat.join(user, channel=channel, history="unread")
            await chat.leave(user, channel=channel)
        await chat.join(user, channel=channel, history="unread")

    async with asyncio.TaskGroup() as together:
        for channel in CHANNELS:
            for sender in ("alice", "carol"):
                together.create_task(write(channel, sender))
            together.create_task(read(channel, "bob"))
            together.create_task(read(channel, "bob"))
            together.create_task(come_and_go(channel, "erin"))
        together.create_task(watch("bob"))
        together.create_task(watch("dave"))

    for channel in CHANNELS:
        expected = {f"{s}{n}" for s in ("alice", "carol") for n in range(40)}
        expected -= {name for place, name in deleted if place == channel}
        for watcher in ("dave", "erin"):
            shown = await chat.all_waiting(watcher, channel)
            assert {message["id"] for message in shown} == expected
            assert await chat.count(watcher, channel) == len(expected)
        pointer = (await chat.unread("bob", channel))["last_read"]["seq"]
        left = [m for m in await chat.all_waiting("dave", channel) if m["seq"] > pointer]
        assert await chat.count("bob", channel) == len(left)
        assert (await chat.unread("bob", channel))["mentions"] == sum("bob" in m["mentions"] for m in left)


@pytest.mark.parametrize("channel", CHANNELS)
async def test_of_many_undos_of_one_token_one_is_done(chat: Chat, channel: str) -> None:
    await chat.send("alice", "m1", "m2", channel=channel)
    token = (await chat.read_all("bob"))["undo"]

    undo = [chat.call("POST", "/v1/users/bob/read/undo", {"undo": token}) for _ in range(20)]
    answers = await asyncio.gather(*undo)

    changed = [answer.json()["changed"] for answer in answers if answer.is_success]
    assert sorted(changed, reverse=True)[0] >= 1
    assert sum(count > 0 for count in changed) == 1
    for late in answers:
        if not late.is_success:
            check_problem(late, 404, "undo_not_found")
    assert await chat.count("bob", channel) == 2


@pytest.mark.parametrize("channel", CHANNELS)
async def test_marking_unread_and_reading_at_once_end_in_one_of_both(chat: Chat, channel: str) -> None:
    await chat.send("alice", "m1", "m2", "m3", channel=channel)
    for _ in range(20):
        seen = (await chat.read("bob", channel))["last_read"]["epoch"]
        late = {"up_to": "m3", "epoch": seen}

        await asyncio.gather(
            *(chat.call("POST", f"{of('bob', channel)}/read", late) for _ in range(4)),
            chat.mark_unread("bob", "m2", channel),
            *(chat.call("POST", f"{of('bob', channel)}/read", late) for _ in range(4)),
        )

        assert await chat.count("bob", channel) == 2, "a read of the old epoch never undoes a mark-unread"


async def test_a_channel_made_by_all_at_once_is_one_channel(chat: Chat) -> None:
    names = [f"member{number}" for number in range(30)]

    await asyncio.gather(*(chat.open_channel(name, "everywhere", channel="made-by-all") for name in names))

    assert (await chat.channel("made-by-all"))["member_count"] == 31
    listed = (await chat.members("made-by-all"))["members"]
    assert [member["user_id"] for member in listed] == sorted([*names, "everywhere"])
    await chat.delete_channel("made-by-all")
