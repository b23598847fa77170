"""The data of `readstate bench`: channels, users, the counts that must result, and the report."""

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from readstate import api
from readstate.api import UserRead


class PhaseResult(Struct, frozen=True):
    """Latencies are those of answered requests."""

    name: str
    requests: int
    done: int
    seconds: float
    per_second: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    busy: float
    """CPU share of this process. Near 1 it is the limit, not the service."""
    refused: dict[str, int]
    """Requests that got 429 or 503, by code. They were repeated."""


class WrongCount(Struct, frozen=True):
    user_id: str
    channel_id: str
    expected: int
    unread: int | None
    """None: the user's sync lacks the channel."""
    reason: str | None = None


class Remaining(Struct):
    """Channels and users of a run that are not removed yet."""

    channels: int
    users: int


class Report(Struct, kw_only=True):
    prefix: str
    users: int
    channels: int
    members: int
    connections: int
    batch: int
    phases: list[PhaseResult] = []
    counted_after: float = 0.0
    """Seconds from the answer to the last message until all had their seqs."""
    checked_users: int = 0
    checked_counts: int = 0
    wrong: list[WrongCount] = []
    left: Remaining


class Dataset:
    """Channels and users of one run, under a prefix of its own, and the counts that must result."""

    def __init__(self, prefix: str, users: int, channels: int, members: int) -> None:
        self.prefix = prefix
        self.members = members
        self.channels = [f"{prefix}-c{number}" for number in range(channels)]
        self.readers = [f"{prefix}-u{number}" for number in range(users)]
        self.writers = {channel: f"{prefix}-w{number}" for number, channel in enumerate(self.channels)}
        self.readers_of = {
            channel: [self.readers[(number * (members - 1) + index) % users] for index in range(members - 1)]
            for number, channel in enumerate(self.channels)
        }
        self.user_rooms = [(user, channel) for channel, readers in self.readers_of.items() for user in readers]
        self.sent = Counter[str]()
        """Messages in each channel. Nobody else writes there, so this is also the last seq."""
        self.read = dict.fromkeys(self.user_rooms, 0)
        """The seq up to which each reader has read each channel."""
        self.remaining = Remaining(0, 0)

    def mark_created(self) -> None:
        """From now on channels and users may exist in the service."""
        self.remaining.channels, self.remaining.users = len(self.channels), len(self.readers) + len(self.writers)

    def note_read(self, read: UserRead) -> None:
        user_room = str(read.user_id), str(read.channel_id)
        self.read[user_room] = max(self.read[user_room], read.up_to_seq or 0)

    def expected(self, users: Iterable[str]) -> dict[str, dict[str, int]]:
        """The unread counts of these users by channel: what the writer sent, without what the user read."""
        found: dict[str, dict[str, int]] = {user: {} for user in users}
        for (user, channel), seq in self.read.items():
            if user in found:
                found[user][channel] = self.sent[channel] - seq
        return found


def differences(user: str, expected: dict[str, int], found: Iterable[api.Unread]) -> list[WrongCount]:
    """The wrong counts of a user. A capped one is a lower bound."""
    rows = {row.channel_id: row for row in found}
    wrong = [WrongCount(user, name, 0, row.unread) for name, row in rows.items() if name not in expected]
    for channel, number in expected.items():
        row = rows.get(channel)
        if row is None:
            wrong.append(WrongCount(user, channel, number, None))
        elif not (row.unread <= number if row.reason == "capped" else row.exact and row.unread == number):
            wrong.append(WrongCount(user, channel, number, row.unread, row.reason or None))
    return wrong
