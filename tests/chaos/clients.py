"""Clients in a storm: each acts for one user, one thing after the other, and records what it was told."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx

from tests.conftest import SERVICE_KEY, WAIT, message_path, of, segment

from .records import MarkUnread, Read, Reading, Records, Sent, Step, UserRoom, Violation, World

FANOUT = 5
"""Channels with more members are counted by timeline."""
POSTERS, PEOPLE, JOINERS = ("peter", "paul"), ("ann", "ben", "cid", "dot"), ("joe", "jim", "kim")
ROOMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "s0": ("group", ("peter", "paul", "ann", "ben")),
    "s1": ("group", ("peter", "paul", "cid", "dot", "ann")),
    "d0": ("direct", ("ann", "cid")),
    "b0": ("group", (*POSTERS, *PEOPLE)),
    "b1": ("channel", (*POSTERS, *PEOPLE)),
    "g0": ("group", ("peter", "ann", "ben")),
}
OPEN = ("g0", "b0")
"""Joiners come and go in these; one of them outgrows the limit by that."""
ATTEMPT_SECONDS = 2.5
INSIST_SECONDS = 90.0
"""So long somebody comes back with the same thing: a broker on a busy machine takes half a minute to start."""
LIMITS = httpx.Limits(max_connections=None)
GIVE_UP = 0.15
"""How often somebody does not come back when an answer is missing."""
MOST_GIVEN_UP = 3
"""In one epoch: each doubles what may be true."""


class Answer(NamedTuple):
    """What one request has come to."""

    kind: str
    """`ok`; `taken`: it will be done; `rejected`: it will not; `unknown`: perhaps."""
    status: int
    body: Any


class Wire:
    """HTTP to any of the servers, which may be down, slow or gone."""

    def __init__(self, urls: Sequence[str], records: Records) -> None:
        self._https = [httpx.AsyncClient(base_url=url, timeout=ATTEMPT_SECONDS, limits=LIMITS) for url in urls]
        self._records = records

    async def attempt(
        self, dice: random.Random, method: str, path: str, body: Any = None, *, wait: bool = False
    ) -> Answer:
        """One request to one of them."""
        headers = {"authorization": f"Bearer {SERVICE_KEY}"} | (WAIT if wait else {})
        try:
            answer = await dice.choice(self._https).request(method, path, json=body, headers=headers)
        except httpx.TransportError as error:
            self._records.count(type(error).__name__)
            return Answer("unknown", 0, None)
        self._records.count(str(answer.status_code))
        content = _content_of(answer)
        if answer.status_code in {503, 429}:
            return Answer("unknown", answer.status_code, content)
        if answer.status_code == 202:
            return Answer("taken", 202, content)
        if answer.is_success:
            return Answer("ok", answer.status_code, content)
        return Answer("rejected", answer.status_code, content)

    async def close(self) -> None:
        for http in self._https:
            await http.aclose()


def _content_of(answer: httpx.Response) -> Any:
    """JSON; whatever else came is shown as it is."""
    try:
        return answer.json() if answer.content else None
    except ValueError:
        return answer.text


@asynccontextmanager
async def wired(urls: Sequence[str], records: Records) -> AsyncIterator[Wire]:
    wire = Wire(urls, records)
    try:
        yield wire
    finally:
        await wire.close()


class Client:
    """One user. `stopping`: nothing new is begun, and nothing is given up any more."""

    def __init__(self, user: str, seed: int, wire: Wire, records: Records, stopping: asyncio.Event) -> None:
        self.user = user
        self.dice = random.Random(f"{user} {seed}")
        self.wire = wire
        self.records = records
        self.stopping = stopping
        self._numbers = 0

    async def run(self) -> None:
        """Act until told to stop."""
        try:
            while not self.stopping.is_set():
                await self.act()
                await asyncio.sleep(self.dice.uniform(0.01, 0.06))
        except Violation as violation:
            self.records.violations.append(f"{self.user}: {violation}")

    async def act(self) -> None:
        """Something that this kind of client does."""
        raise NotImplementedError

    async def insist(
        self, method: str, path: str, body: Any = None, *, wait: bool = False, may_give_up: bool = False
    ) -> tuple[Answer | None, int]:
        """The answer that comes in the end, and how many attempts have got none. None: it was given up."""
        end, unanswered = time.monotonic() + INSIST_SECONDS, 0
        while True:
            answer = await self.wire.attempt(self.dice, method, path, body, wait=wait)
            if answer.kind != "unknown":
                return answer, unanswered
            unanswered += 1
            if may_give_up and not self.stopping.is_set() and self.dice.random() < GIVE_UP:
                return None, unanswered
            if time.monotonic() > end:
                raise Violation(f"{method} {path} {body}: no answer for {INSIST_SECONDS:.0f} s, last {answer}")
            await asyncio.sleep(self.dice.uniform(0.05, 0.25))

    def new_id(self) -> str:
        self._numbers += 1
        return f"{self.user}-{self._numbers}"

    def must(self, answer: Answer, what: object) -> Any:
        """It has to be done or taken."""
        if answer.kind == "rejected":
            raise Violation(f"{what} was refused: {answer.status} {answer.body}")
        return answer.body

    # ------------------------------------------------------------ reading

    async def look(self, channel: str) -> Any:
        """What is unread; where it is exact, the pointer is one that can be."""
        answer, _ = await self.insist("GET", f"{of(self.user, channel)}/unread")
        assert answer is not None
        row = self.must(answer, f"a look at {channel}")
        if row["exact"]:
            last = row["last_read"]
            self.records.readings[self.user, channel].seen(last["seq"], last["epoch"], row)
        return row

    async def meet(self, channel: str) -> Any:
        """Learn where the pointer stands after a join."""
        end = time.monotonic() + INSIST_SECONDS
        while True:
            answer, _ = await self.insist("GET", f"{of(self.user, channel)}/unread")
            assert answer is not None
            row = self.must(answer, f"a first look at {channel}")
            if row["exact"]:
                self._meet(channel, row["last_read"]["seq"], row["last_read"]["epoch"])
                return row
            if time.monotonic() > end:
                raise Violation(f"the pointer in {channel} has not been exact for {INSIST_SECONDS:.0f} s: {row}")
            await asyncio.sleep(0.05)

    def _meet(self, channel: str, seq: int, epoch: int) -> None:
        known = self.records.readings.get((self.user, channel))
        if known is None:
            self.records.readings[self.user, channel] = Reading(epoch, {World(seq)})
        else:
            known.joined(seq, epoch)

    async def read(self, channel: str) -> None:
        known = self.records.known(channel)
        kind = self.dice.choice(["all", "up_to", "up_to_seq", "messages", "messages"]) if known else "all"
        target: dict[str, Any] = {}
        if kind == "all":
            step = Read(self.records.highest(channel), everything=True)
        elif kind == "messages":
            some = self.dice.sample(known, min(len(known), self.dice.randint(1, 3)))
            step, target = Read(apart=tuple(one.seq or 0 for one in some)), {"messages": [one.id for one in some]}
        else:
            one = self.dice.choice(known[-8:])
            step = Read(one.seq or 0)
            target = {"up_to": one.id} if kind == "up_to" else {"up_to_seq": one.seq}
        await self._move(channel, "read", step, target)

    async def mark_unread(self, channel: str) -> None:
        known = self.records.known(channel)
        if known:
            one = self.dice.choice(known[-12:])
            await self._move(channel, "unread", MarkUnread(one.seq or 0), {"from": one.id})

    async def _move(self, channel: str, verb: str, step: Step, target: dict[str, Any]) -> None:
        reading = self.records.readings[self.user, channel]
        body = {**target, "epoch": reading.epoch}
        reading.tell(f"tries {step}")
        may_give_up = len(reading.given_up) < MOST_GIVEN_UP
        path = f"{of(self.user, channel)}/{verb}"
        answer, unanswered = await self.insist("POST", path, body, may_give_up=may_give_up)
        if answer is None:
            reading.give_up(step)
        elif answer.kind == "rejected":
            if answer.status == 500 or answer.body.get("code") != "message_deleted":
                raise Violation(f"{verb} {channel} {body} was refused: {answer.status} {answer.body}")
            if unanswered:  # it was deleted meanwhile: before an attempt that got no answer, or after it
                reading.give_up(step)
        else:
            last = answer.body["last_read"]
            reading.answered(step, last["seq"], last["epoch"], (verb, channel, body, answer.body))
            if unanswered and isinstance(step, Read) and step.everything and last["epoch"] == body["epoch"]:
                reading.give_up(step)  # an attempt that is still under way leads to what is there then


class Poster(Client):
    """Sends and deletes, and does not wait for what becomes of it."""

    async def act(self) -> None:
        if self.dice.random() < 0.15:
            await self._delete()
        else:
            await self._send()

    async def _send(self) -> None:
        mine = [channel for channel, (_, members) in ROOMS.items() if self.user in members]
        batch = [self._message(self.dice.choice(mine)) for _ in range(self.dice.choice([1, 1, 1, 2, 5]))]
        for one in batch:
            key = (one["channel_id"], one["id"])
            self.records.sent[key] = Sent(one["channel_id"], one["id"], self.user)
        wait = self.dice.random() < 0.3
        answer, _ = await self.insist("POST", "/v1/messages", {"messages": batch}, wait=wait, may_give_up=True)
        if answer is None:
            return
        for one, result in zip(batch, self.must(answer, batch)["results"], strict=True):
            note_sent(self.records, one["channel_id"], result)

    def _message(self, channel: str) -> dict[str, Any]:
        named = [self.dice.choice(PEOPLE)] if self.dice.random() < 0.1 else []
        return {
            "channel_id": channel,
            "sender_id": self.user,
            "id": self.new_id(),
            "text": "hello",
            "mentions": named,
        }

    async def _delete(self) -> None:
        mine = [one for one in self.records.sent.values() if one.sender == self.user and one.acknowledged]
        if not mine:
            return
        one = self.dice.choice(mine[-20:])
        one.delete_tried = True
        answer, _ = await self.insist("DELETE", message_path(one.channel, one.id), may_give_up=True)
        if answer is not None:
            self.must(answer, f"delete {one}")
            one.delete_acknowledged = True


class Person(Client):
    """Writes, reads, marks unread, looks and taps."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.channels = [channel for channel, (_, members) in ROOMS.items() if self.user in members]

    async def act(self) -> None:
        channel = self.dice.choice(self.channels)
        what = self.dice.choices([self._send, self.read, self.mark_unread, self.look, self._tap], [20, 40, 20, 15, 2])
        await what[0](channel)

    async def _send(self, channel: str) -> None:
        """Comes back until its place is known: then it has taken effect, and what is read by it is read."""
        name, reading = self.new_id(), self.records.readings[self.user, channel]
        self.records.sent[channel, name] = Sent(channel, name, self.user)
        reading.tell(f"sends {name}")
        body = {"channel_id": channel, "sender_id": self.user, "id": name, "text": "hello"}
        end = time.monotonic() + INSIST_SECONDS
        while True:
            answer, _ = await self.insist("POST", "/v1/messages", body, wait=True)
            assert answer is not None
            [result] = self.must(answer, body)["results"]
            note_sent(self.records, channel, result)
            if result["seq"] is not None:
                reading.own_message(result["seq"])
                return
            if time.monotonic() > end:
                raise Violation(f"{name} has had no effect for {INSIST_SECONDS:.0f} s")

    async def _tap(self, _channel: str) -> None:
        self.records.tapped.add(self.user)
        answer, _ = await self.insist("POST", f"/v1/users/{segment(self.user)}/badge/tap", may_give_up=True)
        if answer is not None:
            self.must(answer, "a tap")


class Joiner(Client):
    """Comes, reads, and perhaps goes again."""

    async def act(self) -> None:
        channel = self.dice.choice(OPEN)
        user_room = self.records.user_rooms.setdefault((self.user, channel), UserRoom())
        if not user_room.inside and not user_room.loose:
            await self._change(channel, user_room, "add")
        elif user_room.inside and self.dice.random() < 0.08 and not user_room.loose:
            await self._change(channel, user_room, "remove")
        elif user_room.inside:
            what = self.dice.choices([self.read, self.mark_unread, self.look], [5, 2, 2])
            await what[0](channel)

    async def _change(self, channel: str, user_room: UserRoom, verb: str) -> None:
        history = self.dice.choice(["read", "unread", 3])
        body: dict[str, Any] = {verb: [self.user]} | ({"history": history} if verb == "add" else {})
        at_least = self.records.highest(channel) if history == "read" else 0
        user_room.inside, user_room.certain = verb == "add", False
        end = time.monotonic() + INSIST_SECONDS
        while True:
            answer, unanswered = await self.insist("POST", f"/v1/channels/{channel}/members", body)
            assert answer is not None
            user_room.loose |= unanswered > 0
            self.must(answer, body)
            if answer.kind == "ok":
                break
            if time.monotonic() > end:
                raise Violation(f"{body} in {channel} has had no effect for {INSIST_SECONDS:.0f} s")
        user_room.certain = True
        if verb == "add":
            row = await self.meet(channel)
            if row["last_read"]["seq"] < at_least:
                raise Violation(f"joined with {body} and read up to {row['last_read']}, though {at_least} was known")


def note_sent(records: Records, channel: str, result: Any) -> None:
    """What was told of a message."""
    one = records.sent[channel, result["id"]]
    if result["status"] == "rejected":
        raise Violation(f"message {one} was rejected: {result}")
    one.acknowledged = True
    if result["seq"] is not None:
        if one.seq not in {None, result["seq"]}:
            raise Violation(f"message {one} has another place now: {result}")
        one.seq = result["seq"]


def clients_of(seed: int, wire: Wire, records: Records, stopping: asyncio.Event) -> list[Client]:
    """Everybody."""
    return [
        *(Poster(user, seed, wire, records, stopping) for user in POSTERS),
        *(Person(user, seed, wire, records, stopping) for user in PEOPLE),
        *(Joiner(user, seed, wire, records, stopping) for user in JOINERS),
    ]


async def furnish(clients: Sequence[Client]) -> None:
    """Channels and their members are there, and everybody knows where their pointers stand."""
    backend = clients[0]
    for channel, (kind, members) in ROOMS.items():
        answer = None
        while answer is None or answer.kind != "ok":
            answer, _ = await backend.insist("PUT", f"/v1/channels/{channel}", {"type": kind, "members": members})
            assert answer is not None
            backend.must(answer, channel)
    for client in clients:
        for channel, (_, members) in ROOMS.items():
            if client.user in members and isinstance(client, Person):
                await client.meet(channel)
