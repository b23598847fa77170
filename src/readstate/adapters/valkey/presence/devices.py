"""Who is online, on which devices, and with which channel open."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from readstate.adapters.valkey import Call, slot_of
from readstate.adapters.valkey.commands import encode
from readstate.adapters.valkey.functions import Function
from readstate.adapters.valkey.groups import run_for_each
from readstate.adapters.valkey.keys import shard_of
from readstate.domain.model import NO_GENERATION, Generation
from readstate.ports import Present

from .calls import Key, PresenceCalls
from .instances import MAX_USERS

PUT, READ = Function("presence_put"), Function("presence_read")
BLUR = Function("presence_blur")
FOCUS_READ, FOCUS_CLOSE = Function("focus_read"), Function("focus_close")


class Device(Struct):
    """What this process has written about a device."""

    until: int
    reported: str
    """The channel that the device has open."""
    focus: str
    """The channel whose messages are read at once: `reported`, unless the user has marked it unread since."""
    generation: Generation = NO_GENERATION
    """The generation in which the hot store accepted it; 0: not yet."""


class Written(NamedTuple):
    user: str
    key: Key
    device: Device


class OwnDevices:
    """The devices that this process has written, in its memory."""

    def __init__(self) -> None:
        self._users: dict[str, dict[Key, Device]] = {}
        self.are_lost = False
        """Whether the hot store lacks some of them, or what was sent to them."""

    def put(self, user: str, key: Key, until: int, channel: str) -> Written:
        devices = self._users.setdefault(user, {})
        known = devices.get(key)
        if known is not None and known.reported == channel:
            known.until = until
        else:
            known = devices[key] = Device(
                until, channel, channel, known.generation if known is not None else NO_GENERATION
            )
        return Written(user, key, known)

    def remove(self, user: str, key: Key) -> Device | None:
        devices = self._users.get(user, {})
        gone = devices.pop(key, None)
        if not devices:
            self._users.pop(user, None)
        return gone

    def drop(self, user: str) -> None:
        self._users.pop(user, None)

    def has(self, user: str, key: Key) -> bool:
        return key in self._users.get(user, ())

    def is_connected(self, user: str) -> bool:
        """Whether the user has a connection to this process."""
        return any(connection for _, connection in self._users.get(user, ()))

    def blur(self, user: str, channel: str) -> None:
        for device in self._users.get(user, {}).values():
            if device.focus == channel:
                device.focus = ""

    def __iter__(self) -> Iterator[Written]:
        return (Written(user, key, one) for user, devices in self._users.items() for key, one in devices.items())

    def overdue(self, now: int) -> list[Written]:
        return [one for one in self if one.device.until <= now]


class _Present(dict[str, bytes]):
    """Users who are online: each is `connected` or only `reported`."""

    def is_connected(self, user: str) -> bool:
        return self.get(user) == b"connected"


class Devices:
    """A user is online while a device is connected and not overdue, on a live instance."""

    def __init__(self, calls: PresenceCalls, own: OwnDevices) -> None:
        self._calls = calls
        self._backend = calls.backend
        self._own = own

    async def online(self, users: Collection[str]) -> Present:
        return _Present((user, how[0]) for user, how in (await self._read(users, "online")).items() if how)

    async def devices(self, user: str) -> list[str]:
        return sorted({device.decode() for device in (await self._read([user], "devices"))[user]})

    async def focused(self, channels: Collection[str]) -> Mapping[str, Sequence[str]]:
        listed = await self._listed(channels)
        if not listed:
            return {}
        focus = await self._read({user for users in listed.values() for user in users}, "focus")
        answer: dict[str, list[str]] = {}
        for channel, users in listed.items():
            there = [user for user in users if channel.encode() in focus[user]]
            if there:
                answer[channel] = there
            if len(there) < len(users):
                opened_before = self._backend.clock() - self._backend.timings.focus_grace_ms
                absent = encode(list(set(users).difference(there)))
                await self._backend.one(FOCUS_CLOSE, [self._focus_key(channel)], opened_before, absent)
        return answer

    async def _listed(self, channels: Collection[str]) -> dict[str, list[str]]:
        """By channel, the users who opened it. They may have left it since."""
        things = ((slot_of(self._focus_key(channel)), 1, channel) for channel in channels)
        found = await run_for_each(
            self._backend.client, FOCUS_READ, things, MAX_USERS, lambda some: ([*map(self._focus_key, some)], [])
        )
        return {channel: [user.decode() for user in users] for channel, users in found if users}

    async def _read(self, users: Collection[str], what: str) -> dict[str, list[bytes]]:
        return await self._calls.answers(READ, dict.fromkeys(users, what))

    async def blur(self, user: str, channel: str) -> None:
        self._own.blur(user, channel)
        await self._calls.run(BLUR, {user: channel})

    async def write(self, devices: Sequence[Written]) -> None:
        items: dict[str, list[tuple[str, int, str, str]]] = {}
        for user, key, one in devices:
            items.setdefault(user, []).append((self._calls.entry(key), one.until, one.reported, one.focus))
        await self._calls.run(PUT, items)
        for user, _, one in devices:
            one.generation = self._calls.generation_of(user)

    async def open(self, devices: Sequence[Written]) -> None:
        """Add users to the lists of the channels that they have open. Runs before `write`: no list lacks a user."""
        commands = []
        for user, _, one in devices:
            if one.focus:
                key = self._focus_key(one.focus)
                commands.append(Call(slot_of(key), [key], ["ZADD", self._backend.clock(), user]))
                commands.append(Call(slot_of(key), [key], ["PEXPIRE", self._backend.timings.focus_ms]))
        await self._calls.commands(commands)

    def _focus_key(self, channel: str) -> str:
        return f"{self._backend.prefix}focus:{{{shard_of(channel)}}}:{channel}"
