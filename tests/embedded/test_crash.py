"""Killed at random moments under load, again and again: everything acknowledged is there, once."""

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Chat, of
from tests.effort import LONG, long
from tests.servers import Server

CHANNELS = ("small", "large")
READERS = ("rita", "ron", "rosa")
WRITERS = ("wanda", "will", "walt", "wes")
ARCHIVIST = "archivist"
"""A member that neither writes nor reads: its unread messages are all messages."""
EVERYONE = (*READERS, *WRITERS, ARCHIVIST)
Message = tuple[str, str]


class Witness:
    """Everything that was asked of the service, and what of it was acknowledged."""

    def __init__(self) -> None:
        self.seqs: dict[Message, int] = {}
        """Acknowledged messages."""
        self.doubtful: dict[Message, dict[str, Any]] = {}
        """Messages whose acknowledgement never came."""
        self.deleted: set[Message] = set()
        self.maybe_deleted: set[Message] = set()
        self.pointers: defaultdict[tuple[str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
        """The furthest (epoch, seq) that was acknowledged to a user in a channel."""
        self.apart: defaultdict[tuple[str, str, int], set[str]] = defaultdict(set)
        """Messages acknowledged as read one by one, by user, channel and epoch."""
        self.acknowledged = 0

    def accepted(self, message: dict[str, Any], result: dict[str, Any]) -> None:
        assert result["status"] in {"accepted", "duplicate"}, result
        key = (message["channel_id"], result["id"])
        assert self.seqs.setdefault(key, result["seq"]) == result["seq"], "a message has one place for ever"
        self.doubtful.pop(key, None)

    def stands_at(self, user: str, channel: str, last_read: dict[str, Any]) -> None:
        key = (user, channel)
        self.pointers[key] = max(self.pointers[key], (last_read["epoch"], last_read["seq"]))

    def known_in(self, channel: str) -> list[str]:
        return [name for place, name in self.seqs if place == channel]


class Load:
    """Writers and readers that go on until the service dies under them."""

    def __init__(self, chat: Chat, witness: Witness, chance: random.Random, lap: int) -> None:
        self.chat, self.witness, self.chance, self.lap = chat, witness, chance, lap

    async def run_until_killed(self, server: Server) -> None:
        """Lets everybody go on for a random time and number of answers, then kills the service."""
        before = self.witness.acknowledged
        work = [self._forever(self.write(name)) for name in WRITERS]
        work += [self._forever(self.read(name)) for name in READERS for _ in range(2)]
        work.append(self._forever(self.delete()))
        tasks = [asyncio.create_task(step) for step in work]
        enough = before + self.chance.randrange(20, 300)
        while self.witness.acknowledged < enough:
            done, _ = await asyncio.wait(tasks, timeout=0.01, return_when=asyncio.FIRST_COMPLETED)
            for failed in done:
                failed.result()
        await asyncio.wait(tasks, timeout=self.chance.uniform(0, 0.05))
        server.kill()
        await asyncio.gather(*tasks)

    async def _forever(self, steps: AsyncIterator[None]) -> None:
        try:
            async for _ in steps:
                self.witness.acknowledged += 1
        except httpx.TransportError:
            pass  # the service is dead, and whether it has done the last thing nobody knows

    async def write(self, sender: str) -> AsyncIterator[None]:
        number = 0
        while True:
            channel = self.chance.choice(CHANNELS)
            batch: list[dict[str, Any]] = []
            for _ in range(self.chance.choice([1, 1, 1, 2, 5])):
                number += 1
                name = f"{sender}-{self.lap}-{number}"
                mentions = self.chance.choice([[], [self.chance.choice(READERS)], ["@channel"]])
                batch.append({"channel_id": channel, "sender_id": sender, "id": name, "mentions": mentions})
            batch += self.chance.sample(batch, self.chance.choice([0, 0, 1]))
            self.witness.doubtful |= {(channel, message["id"]): message for message in batch}
            results = await self.chat.post_all(batch)
            for message, result in zip(batch, results, strict=True):
                self.witness.accepted(message, result)
            yield

    async def delete(self) -> AsyncIterator[None]:
        while True:
            channel = self.chance.choice(CHANNELS)
            if known := self.witness.known_in(channel):
                gone = (channel, self.chance.choice(known))
                self.witness.maybe_deleted.add(gone)
                await self.chat.delete(gone[1], channel)
                self.witness.deleted.add(gone)
            else:
                await self.chat.channel(channel)
            yield

    async def read(self, user: str) -> AsyncIterator[None]:
        forms: list[Callable[[str, str], Awaitable[None]]] = [
            self._read_all,
            self._read_up_to,
            self._read_to_seq,
            self._read_apart,
            self._mark_unread,
        ]
        while True:
            [form] = self.chance.choices(forms, weights=[1, 3, 3, 4, 1])
            await form(user, self.chance.choice(CHANNELS))
            yield

    async def _read_all(self, user: str, channel: str) -> None:
        self._stands(user, channel, await self.chat.read(user, channel))

    async def _read_up_to(self, user: str, channel: str) -> None:
        if known := self.witness.known_in(channel):
            result = await self.chat.read(user, channel, up_to=self.chance.choice(known[-20:]))
            self._stands(user, channel, result)

    async def _read_to_seq(self, user: str, channel: str) -> None:
        seq = self.chance.randrange(len(self.witness.seqs) + 1)
        self._stands(user, channel, await self.chat.read(user, channel, up_to_seq=seq))

    async def _read_apart(self, user: str, channel: str) -> None:
        if known := self.witness.known_in(channel):
            some = self.chance.sample(known[-10:], min(2, len(known[-10:])))
            result = await self.chat.read(user, channel, messages=some)
            self._stands(user, channel, result)
            self.witness.apart[user, channel, result["last_read"]["epoch"]].update(some)

    async def _mark_unread(self, user: str, channel: str) -> None:
        known = [n for n in self.witness.known_in(channel)[-10:] if (channel, n) not in self.witness.maybe_deleted]
        if known:
            answer = await self.chat.call("POST", f"{of(user, channel)}/unread", {"from": self.chance.choice(known)})
            if answer.status_code != 409:  # deleted by then
                assert answer.is_success, answer.text
                self._stands(user, channel, answer.json())

    def _stands(self, user: str, channel: str, result: dict[str, Any]) -> None:
        self.witness.stands_at(user, channel, result["last_read"])


@asynccontextmanager
async def talking_to(server: Server) -> AsyncIterator[Chat]:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
        yield Chat(http, server.service_key)


@pytest.mark.parametrize("seed", [1, *long([2])])
async def test_nothing_acknowledged_is_lost_or_doubled_by_kill_9(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    witness = Witness()
    server = Server(tmp_path / "data", fanout_max_members=len(EVERYONE))
    try:
        server.start()
        async with talking_to(server) as chat:
            await chat.open_channel(*EVERYONE, channel="small")
            await chat.open_channel(*EVERYONE, "guest", channel="large")
        for lap in range(5 if LONG else 3):
            async with talking_to(server) as chat:
                await Load(chat, witness, chance, lap).run_until_killed(server)
            server.start()
            async with talking_to(server) as chat:
                await check_all(chat, witness)
                await retry_what_is_doubtful(chat, witness)
                for channel in CHANNELS:
                    await check_messages(chat, witness, channel)
        assert server.stop() == 0
        server.start()
        async with talking_to(server) as chat:
            await check_all(chat, witness)
    finally:
        server.close()


async def retry_what_is_doubtful(chat: Chat, witness: Witness) -> None:
    """As a producer would: sends again what was not acknowledged, twice for good measure."""
    for message in list(witness.doubtful.values()):
        first = await chat.post_all([message])
        again = await chat.post_all([message])
        assert again[0]["status"] == "duplicate"
        witness.accepted(message, first[0])
        witness.accepted(message, again[0])
    assert not witness.doubtful


async def check_all(chat: Chat, witness: Witness) -> None:
    """What stands after a restart agrees with everything that was acknowledged before."""
    assert (await chat.explain(ARCHIVIST, "small"))["mode"] == "ledger"
    assert (await chat.explain(ARCHIVIST, "large"))["mode"] == "timeline"
    for channel in CHANNELS:
        await check_messages(chat, witness, channel)
        for user in EVERYONE:
            await check_reader(chat, witness, user, channel)
    for user in EVERYONE:
        rows = await chat.sync(user, only_unread="false")
        assert rows["totals"]["unread"] == sum(row["unread"] for row in rows["channels"])


async def check_messages(chat: Chat, witness: Witness, channel: str) -> None:
    shown = await chat.all_waiting(ARCHIVIST, channel)
    seqs = {message["id"]: message["seq"] for message in shown}
    assert len(seqs) == len(shown), "no message twice"
    known = {name: seq for (place, name), seq in witness.seqs.items() if place == channel}
    deleted = {name for place, name in witness.deleted if place == channel}
    maybe = {name for place, name in witness.maybe_deleted if place == channel}
    doubtful = {name for place, name in witness.doubtful if place == channel}
    assert seqs.keys() <= known.keys() | doubtful, "nothing that nobody sent"
    assert not seqs.keys() & deleted, "what was deleted stays deleted"
    assert known.keys() - maybe <= seqs.keys(), "everything acknowledged is there"
    assert all(known.get(name, seq) == seq for name, seq in seqs.items()), "in its place"
    places = {known[name] for name in maybe} | set(seqs.values())
    assert len(places) == len(maybe | seqs.keys()), "every seq is unique"
    why = await chat.explain(ARCHIVIST, channel)
    assert places == set(range(1, why["latest_seq"] + 1)), "and without gaps"
    assert why["unread"] == len(shown)
    assert why["minus"]["deleted"] == why["latest_seq"] - len(shown)


async def check_reader(chat: Chat, witness: Witness, user: str, channel: str) -> None:
    why = await chat.explain(user, channel)
    assert why["agrees"], why
    now = why["pointer"]
    assert (now["epoch"], now["seq"]) >= witness.pointers[user, channel], "no acknowledged read is lost"
    unread = {message["id"] for message in await chat.all_waiting(user, channel)}
    assert not unread & witness.apart[user, channel, now["epoch"]], "nor one by one"
    assert len(unread) == why["unread"]
