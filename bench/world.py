"""Who and what the benchmarks are about: users, channels and messages with ids as real products have them."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from .load import BenchmarkError, Wire, encode

SENDER = "usr_0000sendr"
"""Writes everything and is a member of nothing, so that no pointer moves by a send."""

Target = Literal["up_to_seq", "up_to"]


def user_id(number: int) -> str:
    """`usr_` and 8 characters."""
    return f"usr_{number:08x}"


def channel_id(number: int) -> str:
    """`chn_` and 8 characters."""
    return f"chn_{number:08x}"


def message_id(channel: int, seq: int) -> str:
    """`msg_` and a ULID that follows from the place of the message."""
    return f"msg_01KA{channel:010d}{seq:012d}"


def put_channel(wire: Wire, channel: int, members: Sequence[str]) -> None:
    """Make a channel with these members."""
    wire.call("PUT", f"/v1/channels/{channel_id(channel)}", msgspec.json.encode({"type": "group"}))
    for start in range(0, len(members), 1000):
        body = msgspec.json.encode({"add": members[start : start + 1000]})
        wire.call("POST", f"/v1/channels/{channel_id(channel)}/members", body)


def wake(wire: Wire, users: Sequence[str]) -> None:
    """Ask for the totals of these users, so that they are in the hot store."""
    for start in range(0, len(users), 1000):
        wire.call("POST", "/v1/unread/batch", msgspec.json.encode({"users": users[start : start + 1000]}))


def send(wire: Wire, places: Sequence[tuple[int, int]]) -> None:
    """Send a message for each (channel, seq), which must be the next seq of its channel."""
    for start in range(0, len(places), 1000):
        part = places[start : start + 1000]
        answer = wire.call("POST", "/v1/messages", message_batch(part))
        if answer.count(b'"accepted"') != len(part):
            raise BenchmarkError(f"not every message was accepted: {answer[:500]!r}")


def message_batch(places: Sequence[tuple[int, int]], senders: Sequence[str] = (SENDER,)) -> bytes:
    """The body of a request that sends a message for each (channel, seq); several people write in turns."""
    messages = [
        {
            "id": message_id(channel, seq),
            "channel_id": channel_id(channel),
            "sender_id": senders[seq % len(senders)],
            "text": "See you at noon?",
            "outside": True,
        }
        for channel, seq in places
    ]
    return msgspec.json.encode({"messages": messages})


@dataclass
class Town:
    """People who are in small and in large channels alike, and what they have read."""

    users: int = 2_000
    small: int = 100
    """Channels of 100 members: counted by ledger."""
    large: int = 10
    """Channels of 1,000 members: counted by timeline."""
    head: int = 0
    """The newest seq of every channel."""
    pairs: list[tuple[int, int]] = field(default_factory=list)
    """(user, channel), in no order."""

    def __post_init__(self) -> None:
        for channel in range(self.small + self.large):
            self.pairs += [(user, channel) for user in self.members(channel)]
        random.Random(7).shuffle(self.pairs)

    def members(self, channel: int) -> list[int]:
        """The users of a channel."""
        size = 100 if channel < self.small else 1_000
        return [(channel * 37 + place * (self.users // size)) % self.users for place in range(size)]

    def build(self, wire: Wire) -> None:
        """Make the channels; everyone has joined, nothing is said."""
        for channel in range(self.small + self.large):
            put_channel(wire, channel, [user_id(user) for user in self.members(channel)])

    def talk(self, wires: Sequence[Wire], messages: int) -> None:
        """So many new messages in every channel, on each of these servers."""
        channels = range(self.small + self.large)
        places = [(channel, self.head + step + 1) for step in range(messages) for channel in channels]
        for wire in wires:
            send(wire, places)
        self.head += messages


class Readers:
    """Connections that read on behalf of everyone; each owns its users' pointers, so none is overtaken."""

    def __init__(self, town: Town, connections: int, size: int) -> None:
        self._size = size
        share = len(town.pairs) // connections // size * size
        self._blocks = [
            [town.pairs[at : at + size] for at in range(start, start + share, size)]
            for start in range(0, share * connections, share)
        ]
        self._pointers = [[0] * len(blocks) for blocks in self._blocks]

    def requests(self, key: str, steps: int, target: Target) -> list[list[bytes]]:
        """For each connection: requests that move each of its pointers forward by one, so many times."""
        return [list(self._of_connection(index, key, steps, target)) for index in range(len(self._blocks))]

    def _of_connection(self, index: int, key: str, steps: int, target: Target) -> Iterator[bytes]:
        encode_read = self._single if self._size == 1 else self._batch
        for step in range(1, steps + 1):
            for block, pointer in zip(self._blocks[index], self._pointers[index], strict=True):
                yield encode_read(block, pointer + step, target, key)

    @staticmethod
    def _batch(block: Sequence[tuple[int, int]], seq: int, target: Target, key: str) -> bytes:
        reads = [
            {"user_id": user_id(user), "channel_id": channel_id(channel), target: _value(target, channel, seq)}
            for user, channel in block
        ]
        return encode("POST", "/v1/reads", msgspec.json.encode({"reads": reads}), key)

    @staticmethod
    def _single(block: Sequence[tuple[int, int]], seq: int, target: Target, key: str) -> bytes:
        user, channel = block[0]
        body = msgspec.json.encode({target: _value(target, channel, seq)})
        return encode("POST", f"/v1/users/{user_id(user)}/channels/{channel_id(channel)}/read", body, key)

    def acknowledge(self, answered: Sequence[int]) -> None:
        """Note how many requests of each connection were answered."""
        for pointers, number in zip(self._pointers, answered, strict=True):
            for place in range(len(pointers)):
                pointers[place] += (number - place + len(pointers) - 1) // len(pointers)

    def expected(self) -> dict[str, dict[str, int]]:
        """Where every pointer must be: by user, then by channel."""
        pointers: dict[str, dict[str, int]] = {}
        for blocks, seqs in zip(self._blocks, self._pointers, strict=True):
            for block, seq in zip(blocks, seqs, strict=True):
                for user, channel in block:
                    pointers.setdefault(user_id(user), {})[channel_id(channel)] = seq
        return pointers


def _value(target: Target, channel: int, seq: int) -> int | str:
    return seq if target == "up_to_seq" else message_id(channel, seq)


def check_pointers(wire: Wire, expected: dict[str, dict[str, int]]) -> int:
    """Ask for every pointer; BenchmarkError if one is not where it was acknowledged. Returns how many."""
    for user, pointers in expected.items():
        answer = msgspec.json.decode(wire.call("GET", f"/v1/users/{user}/unread?only_unread=false&limit=1000"))
        found = {row["channel_id"]: row["last_read"]["seq"] for row in answer["channels"]}
        if any(found.get(channel) != seq for channel, seq in pointers.items()):
            raise BenchmarkError(f"{user}: acknowledged {pointers}, found {found}")
    return sum(map(len, expected.values()))
