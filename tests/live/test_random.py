"""Made-up days: people write, read, join and leave, lose their connections and come back. It always adds up."""

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.effort import long

from .conftest import LiveService, live_service
from .device import Cut
from .state import Follower

PEOPLE = ("alice", "bob", "carol", "dave")
CHANNELS = ("two", "few", "all")
DEVICES = (("alice", "phone"), ("bob", "phone"), ("bob", "laptop"), ("carol", "phone"))


class Day:
    """What people do, one thing after the other or all at once, as the dice say."""

    def __init__(self, service: LiveService, seed: int) -> None:
        self.service = service
        self.chat = service.chat
        self.dice = random.Random(seed)
        self.numbers = itertools.count(1)
        self.sent: dict[str, list[str]] = {name: [] for name in CHANNELS}
        self.undo: dict[str, str] = {}
        self.story: list[str] = []
        self.followers: list[Follower] = []
        self.turns: defaultdict[Follower, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def begin(self) -> None:
        await self.chat.open_channel("alice", "bob", channel="two", type="direct")
        await self.chat.open_channel("alice", "bob", "carol", channel="few")
        await self.chat.open_channel(*PEOPLE, channel="all", type="channel")
        self.followers = [await Follower(self.service, *place).start() for place in DEVICES]

    # ------------------------------------------------------------ one step

    def step(self) -> Coroutine[Any, Any, None]:
        """Something that somebody does; what is refused (to people who are no members, say) changes nothing."""
        kinds: dict[Callable[[], Awaitable[Any]], int] = {
            self.send: 12,
            self.reply: 4,
            self.edit: 2,
            self.delete: 3,
            self.read: 6,
            self.read_by_device: 6,
            self.mark_unread: 3,
            self.mark_unread_by_device: 2,
            self.focus: 3,
            self.blur: 2,
            self.read_all: 1,
            self.take_back: 1,
            self.read_thread: 2,
            self.follow: 1,
            self.prefer: 4,
            self.leave: 2,
            self.join: 4,
            self.rename: 1,
            self.archive: 1,
            self.tap: 1,
            self.recount: 1,
            self.evict: 1,
            self.make_anew: 1,
            self.erase: 1,
            self.cut: 3,
        }
        [kind] = self.dice.choices(list(kinds), list(kinds.values()))
        return self.tell(kind)

    async def tell(self, kind: Callable[[], Awaitable[Any]]) -> None:
        name = kind.__name__
        try:
            result = await kind()
        except (Refused, Cut) as refused:
            result = repr(refused)
        self.story.append(f"{name}: {result}")

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """A request that may be refused, but never fails."""
        answer: httpx.Response = await self.chat.call(method, path, body)
        assert answer.status_code < 500, answer.text
        if not answer.is_success:
            raise Refused(method, path, body, answer.json()["code"])
        return method, path, body, answer.json() if answer.content else None

    def somebody(self) -> str:
        return self.dice.choice(PEOPLE)

    def channel(self) -> str:
        return self.dice.choice(CHANNELS)

    def message(self, channel: str) -> str:
        return self.dice.choice(self.sent[channel][-8:] or ["nothing"])

    def device(self) -> Follower:
        return self.dice.choice(self.followers)

    # ------------------------------------------------------------ what can be done

    async def send(self) -> Any:
        channel = self.channel()
        name = f"m{next(self.numbers)}"
        body: dict[str, Any] = {"id": name, "channel_id": channel, "sender_id": self.somebody(), "text": name}
        if self.dice.random() < 0.3:
            body["mentions"] = [self.dice.choice(["bob", "carol", "@channel", "@here"])]
        if self.dice.random() < 0.1:
            body["silent"] = True
        result = await self.call("POST", "/v1/messages", body)
        self.sent[channel].append(name)
        return result

    async def reply(self) -> Any:
        channel = self.channel()
        name = f"r{next(self.numbers)}"
        body: dict[str, Any] = {"id": name, "channel_id": channel, "sender_id": self.somebody(), "text": name}
        body |= {"thread_id": self.message(channel), "also_to_channel": self.dice.random() < 0.3}
        if self.dice.random() < 0.3:
            body["mentions"] = [self.dice.choice(PEOPLE)]
        result = await self.call("POST", "/v1/messages", body)
        if body["also_to_channel"]:
            self.sent[channel].append(name)
        return result

    async def edit(self) -> Any:
        channel = self.channel()
        change: dict[str, Any] = {"mentions": self.dice.choice([[], ["bob"], ["@channel"]])}
        if self.dice.random() < 0.5:
            change["text"] = f"edited {next(self.numbers)}"
        return await self.call("PATCH", f"/v1/channels/{channel}/messages/{self.message(channel)}", change)

    async def delete(self) -> Any:
        channel = self.channel()
        return await self.call("DELETE", f"/v1/channels/{channel}/messages/{self.message(channel)}")

    def target(self, channel: str) -> dict[str, Any]:
        return self.dice.choice(
            [
                {},
                {"up_to": self.message(channel)},
                {"up_to_seq": self.dice.randrange(1, 30)},
                {"messages": [self.message(channel), self.message(channel)]},
            ]
        )

    async def read(self) -> Any:
        channel = self.channel()
        path = f"/v1/users/{self.somebody()}/channels/{channel}/read"
        return await self.call("POST", path, self.target(channel))

    async def read_by_device(self) -> Any:
        channel = self.channel()
        device = self.device().device
        return str(device), await device.do("mark_read", channel_id=channel, **self.target(channel))

    async def mark_unread(self) -> Any:
        channel = self.channel()
        path = f"/v1/users/{self.somebody()}/channels/{channel}/unread"
        return await self.call("POST", path, {"from": self.message(channel)})

    async def mark_unread_by_device(self) -> Any:
        channel = self.channel()
        device = self.device().device
        return str(device), await device.do("mark_unread", channel_id=channel, **{"from": self.message(channel)})

    async def focus(self) -> Any:
        device = self.device().device
        read = self.dice.random() < 0.7
        return str(device), await device.do("channel.focus", channel_id=self.channel(), read=read)

    async def blur(self) -> Any:
        device = self.device().device
        return str(device), await device.do("channel.blur", channel_id=self.channel())

    async def read_all(self) -> Any:
        user = self.somebody()
        result = await self.call("POST", f"/v1/users/{user}/read", {"all": True})
        self.undo[user] = result[3]["undo"]
        return result

    async def take_back(self) -> Any:
        user = self.somebody()
        return await self.call("POST", f"/v1/users/{user}/read/undo", {"undo": self.undo.get(user, "none")})

    async def read_thread(self) -> Any:
        channel = self.channel()
        path = f"/v1/users/{self.somebody()}/channels/{channel}/threads/{self.message(channel)}/read"
        return await self.call("POST", path, {})

    async def follow(self) -> Any:
        channel = self.channel()
        path = f"/v1/users/{self.somebody()}/channels/{channel}/threads/{self.message(channel)}/follow"
        return await self.call(self.dice.choice(["PUT", "DELETE"]), path)

    async def prefer(self) -> Any:
        wanted = self.dice.choice(
            [
                {"muted": True},
                {"muted": False},
                {"count": "mentions"},
                {"count": "none"},
                {"count": "all"},
                {"pinned": True},
                {"archived": True},
                {"archived": False},
            ]
        )
        return await self.call("PUT", f"/v1/users/{self.somebody()}/channels/{self.channel()}/preferences", wanted)

    async def leave(self) -> Any:
        body = {"remove": [self.somebody()]}
        return await self.call("POST", f"/v1/channels/{self.dice.choice(['few', 'all'])}/members", body)

    async def join(self) -> Any:
        body = {"add": [self.somebody()], "history": self.dice.choice(["read", "unread", 2])}
        return await self.call("POST", f"/v1/channels/{self.dice.choice(['few', 'all'])}/members", body)

    async def rename(self) -> Any:
        return await self.call("PUT", f"/v1/channels/{self.channel()}", {"name": f"name {next(self.numbers)}"})

    async def archive(self) -> Any:
        return await self.call("PUT", f"/v1/channels/{self.channel()}", {"archived": self.dice.random() < 0.3})

    async def tap(self) -> Any:
        return await self.call("POST", f"/v1/users/{self.somebody()}/badge/tap")

    async def recount(self) -> Any:
        return await self.call("POST", f"/v1/users/{self.somebody()}/channels/{self.channel()}/recount")

    async def evict(self) -> None:
        await self.service.rs.evict()

    async def make_anew(self) -> Any:
        """A channel is deleted, with all that hangs on it, and made again."""
        await self.call("DELETE", "/v1/channels/few")
        self.sent["few"] = []
        return await self.call("PUT", "/v1/channels/few", {"type": "group", "members": ["alice", "bob", "carol"]})

    async def erase(self) -> Any:
        """Somebody is forgotten, and joins anew."""
        user = self.somebody()
        await self.call("DELETE", f"/v1/users/{user}")
        channel = "two" if user in {"alice", "bob"} else "few"
        return await self.call("POST", f"/v1/channels/{channel}/members", {"add": [user]})

    async def cut(self) -> Any:
        """A device loses its connection, and comes back."""
        follower = self.device()
        politely = self.dice.random() < 0.3
        async with self.turns[follower]:
            await follower.drop(politely=politely)
            await follower.come_back()
        return str(follower.device)

    async def adds_up(self) -> None:
        for follower in self.followers:
            try:
                await follower.comes_to_agree()
            except AssertionError as error:
                tail = "\n".join(self.story[-40:])
                raise AssertionError(f"{error}\nthe story was:\n{tail}") from None


class Refused(Exception):
    """The service has said no."""


@pytest.mark.parametrize("seed", [1, *long([2])])
async def test_a_day_adds_up_at_every_hour(tmp_path: Path, mode: str, seed: int) -> None:
    async with live_service(tmp_path, fanout_max_members=100 if mode == "ledger" else 1) as service:
        day = Day(service, seed)
        await day.begin()
        for _hour in range(12):
            for _ in range(12):
                await day.step()
            await day.adds_up()


@pytest.mark.parametrize("seed", [3, *long([4])])
async def test_a_day_when_all_happens_at_once_adds_up(tmp_path: Path, mode: str, seed: int) -> None:
    async with live_service(tmp_path, fanout_max_members=100 if mode == "ledger" else 1) as service:
        day = Day(service, seed)
        await day.begin()
        for _hour in range(12):
            async with asyncio.TaskGroup() as people:
                for _ in range(12):
                    people.create_task(day.step())
            await day.adds_up()
