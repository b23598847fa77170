"""Messages that were sent to connected devices and are not proven to have arrived."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from readstate.adapters.valkey import Call
from readstate.adapters.valkey.functions import Function
from readstate.adapters.valkey.groups import chunks
from readstate.domain.model import Undelivered
from readstate.ports import MAX_UNPROVEN, Departure

from .calls import PresenceCalls, encode_text
from .devices import OwnDevices
from .instances import MAX_USERS, ListedUsers

REACHED = Function("presence_reached")

UNPROVEN, LEFT = 1, 2
"""Indexes of a user's keys: unproven messages, and those kept after the user left."""

_decode_message = msgspec.json.Decoder(tuple[int, str, str, str]).decode


class Deliveries:
    def __init__(self, calls: PresenceCalls, own: OwnDevices, users: ListedUsers) -> None:
        self._calls = calls
        self._own = own
        self._users = users
        self._sent: dict[str, dict[Undelivered, None]] = {}
        """By user, what was sent to a device of this process. Its next sign of life proves the delivery."""
        self._proven: dict[str, list[Undelivered]] = {}
        self._removing: dict[str, list[Undelivered]] = {}
        """Proven messages that are being removed from the hot store."""
        self.unstored: dict[str, dict[Undelivered, None]] = {}
        """Unproven messages of departures, until the durable store has them."""

    async def reached(self, noted: Sequence[Undelivered]) -> list[Undelivered]:
        by_user = _by_user(noted)
        items = {user: _pack(some) for user, some in by_user.items()}
        online = await self._calls.answers(REACHED, items, MAX_UNPROVEN)
        return [one for user, some in by_user.items() if not online[user] for one in some]

    async def unproven(self, user: str) -> list[Undelivered]:
        found = await self._calls.backend.command(self._calls.keys_of(user)[1][UNPROVEN], "ZRANGE", 0, -1)
        return [parse(user, one) for one in found]

    def sent(self, noted: Sequence[Undelivered]) -> None:
        for one in noted:
            if self._own.is_connected(one.receiver_id):
                sent = self._sent.setdefault(one.receiver_id, {})
                sent[one] = None
                if len(sent) > MAX_UNPROVEN:
                    del sent[next(iter(sent))]

    def proven(self, user: str) -> None:
        if (sent := self._sent.pop(user, None)) is not None:
            self._proven.setdefault(user, []).extend(sent)
            self._users.wake.set()

    def sent_to(self, user: str) -> tuple[Undelivered, ...]:
        return tuple(self._sent.get(user, ()))

    def proven_by(self, user: str) -> frozenset[Undelivered]:
        """Proven messages that the hot store may still list as unproven."""
        return frozenset([*self._proven.get(user, ()), *self._removing.get(user, ())])

    def forget_sent(self, user: str) -> None:
        """No device of this process can prove messages to this user any longer."""
        self._sent.pop(user, None)
        if user in self._users.listed:
            self._users.changed(user)

    def drop(self, user: str) -> None:
        self.unstored.pop(user, None)
        self.forget_sent(user)

    def depart(self, user: str, since: int, unproven: Iterable[Undelivered]) -> Departure:
        """Keep the unproven messages of a departure until the durable store has them."""
        gone = Departure(user, since, tuple(dict.fromkeys(unproven)))
        if gone.unproven:
            self.unstored.setdefault(user, {}).update(dict.fromkeys(gone.unproven))
            self._users.changed(user)
        return gone

    async def noted(self, noted: Sequence[Undelivered]) -> None:
        await self._remove(LEFT, _by_user(noted))
        for one in noted:
            kept = self.unstored.get(one.receiver_id, {})
            kept.pop(one, None)
            if not kept and self.unstored.pop(one.receiver_id, None) is not None:
                self._users.changed(one.receiver_id)

    async def write_all(self) -> None:
        """Write again what was sent: the hot store has lost it."""
        await self._calls.decide(REACHED, {user: _pack(sent) for user, sent in self._sent.items()}, None, MAX_UNPROVEN)

    async def flush(self) -> None:
        """Remove proven messages from the hot store."""
        proven = self._removing = self._proven
        self._proven = {}
        try:
            await self._remove(UNPROVEN, proven)
        except BaseException:
            self._proven = {user: proven.get(user, []) + self._proven.get(user, []) for user in proven | self._proven}
            raise
        finally:
            self._removing = {}

    async def _remove(self, family: int, messages: Mapping[str, Sequence[Undelivered]]) -> None:
        """Remove messages from one of the users' keys, `UNPROVEN` or `LEFT`."""
        commands = []
        for user, some in messages.items():
            slot, keys = self._calls.keys_of(user)
            commands += [Call(slot, [keys[family]], ["ZREM", *map(pack, part)]) for part in chunks(some, MAX_USERS)]
        await self._calls.commands(commands)


def _by_user(noted: Iterable[Undelivered]) -> dict[str, list[Undelivered]]:
    users: dict[str, list[Undelivered]] = {}
    for one in noted:
        users.setdefault(one.receiver_id, []).append(one)
    return users


def pack(one: Undelivered) -> str:
    return encode_text((one.accepted_at, one.sender_id, one.channel_id, one.message_id)).decode()


def _pack(noted: Iterable[Undelivered]) -> list[int | str]:
    return [word for one in noted for word in (one.accepted_at, pack(one))]


def parse(user: str, packed: bytes) -> Undelivered:
    accepted_at, sender, channel, message = _decode_message(packed)
    return Undelivered(user, accepted_at, sender, channel, message)
