"""Presence across processes: devices in the hot store, each with the lease of the process that holds its connection.

Each process remembers what it has written itself. After a loss of the hot store it writes all of it again, within a
heartbeat. So no user is declared away in a generation that is younger than `SETTLE_MS`. What only another process knew
is lost: if a channel was marked unread while a device had it open, messages in it are read at once again.

A process that dies leaves its entries behind, and a list of its users. When its lease is over, any other process
expires them. The script that removes a user's last entry returns the departure, with the unproven messages, to the
process that ran it. Unproven messages were sent to a device and may not have arrived. They stay in the hot store, and
the user stays on the list of the process that ran the script, until the durable store has them.
"""

import asyncio
import traceback
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from time import monotonic
from typing import Any, NamedTuple

import msgspec
import structlog
from msgspec import Struct

from readstate.domain.errors import ReadstateError, Unavailable
from readstate.domain.model import Undelivered
from readstate.ports import MAX_UNPROVEN, Clock, Departure, Present
from readstate.tasks import cancel

from . import Call, Generation, Script, ValkeyClient, slot_of, tag_of
from .channels import shard_of
from .groups import groups, script
from .instances import LEASE_MS, SETTLE_MS, Instances

log = structlog.get_logger()

HEARTBEAT_SECONDS = 1.0
GATHER_SECONDS = 0.02
"""Signs of life are collected for this long before the messages that they prove are removed."""
MAX_USERS = 500
"""Users in one call."""
FOCUS_MS = 3 * 3600 * 1000
"""How long the list of users who have a channel open is kept; those who still have it open are added again in time."""
FOCUS_AGAIN_SECONDS = 3600.0
OPENING_MS = 60_000
CLOSE_SECONDS = 2.0

PUT, LOOK = script("presence_state", "presence_put"), script("presence_state", "presence_look")
LEAVE, REACHED = script("presence_state", "presence_leave"), script("presence_state", "presence_reached")
BLUR, COMMAND = script("presence_state", "presence_blur"), script("presence_command")
FOCUS_READ, FOCUS_CLOSE = script("focus_read"), script("focus_close")

_encode = msgspec.msgpack.Encoder().encode
_encode_text = msgspec.json.Encoder().encode
_decode_message = msgspec.json.Decoder(tuple[int, str, str, str]).decode

Key = tuple[str, str]
"""(device, connection)."""


class _Own(Struct):
    """What this process has written about a device."""

    until: int
    reported: str
    focus: str
    said: int = 0
    """The generation in which the hot store accepted it."""


class _Left(NamedTuple):
    """A connection that has ended."""

    user: str
    key: Key
    said: int
    """The generation in which the hot store accepted the connection; 0: never."""
    sent: tuple[Undelivered, ...] = ()
    """Unproven messages that were sent on it, if it was the user's last connection here."""
    unsaid: bool = False
    """Whether the hot store lacked some of this process's state then."""
    proven: frozenset[Undelivered] = frozenset()
    """Proven messages that the hot store may still list as unproven."""


UNPROVEN, LEFT = 1, 2
"""Indexes of a user's keys: unproven messages, and those kept after the user left."""


class _Present(dict[str, bytes]):
    """Users who are online: each is `connected` or only `reported`."""

    def is_connected(self, user: str) -> bool:
        return self.get(user) == b"connected"


class ValkeyPresence:
    """Implements `HotPresence`. A user is online while a device is connected and not overdue, on a live instance."""

    def __init__(
        self,
        client: ValkeyClient,
        generation: Generation,
        *,
        prefix: str,
        clock: Clock,
        instance_id: str,
        lease_ms: int = LEASE_MS,
        settle_ms: int = SETTLE_MS,
        heartbeat: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._client = client
        self._generation = generation
        self._prefix = prefix
        self._clock = clock
        self._heartbeat = heartbeat
        self._instances = Instances(client, generation, prefix, instance_id, lease_ms, settle_ms)
        self._of = lru_cache(maxsize=100_000)(self._place)
        self._own: dict[str, dict[Key, _Own]] = {}
        self._sent: dict[str, dict[Undelivered, None]] = {}
        self._proven: dict[str, list[Undelivered]] = {}
        self._removing: dict[str, list[Undelivered]] = {}
        """Proven messages that are being removed from the hot store."""
        self._listed: set[str] = set()
        """Users on the list that this process leaves behind."""
        self._unlisted: set[str] = set()
        """Users who may have to be added to that list, or removed."""
        self._leaving: Counter[str] = Counter()
        """Per user, how many disconnects are in flight."""
        self._left: list[_Left] = []
        """Ended connections that could not be reported to the hot store yet."""
        self._departed: list[Departure] = []
        """Departures that the hot store has handed over and `expire` has not returned yet."""
        self._unnoted: dict[str, dict[Undelivered, None]] = {}
        """Unproven messages of departures, until the durable store has them."""
        self._must_say = False
        """Whether the hot store lacks some of this process's state."""
        self._wake = asyncio.Event()
        self._joining = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ who is there

    async def online(self, users: Collection[str]) -> Present:
        return _Present((user, how[0]) for user, how in (await self._ask(users, "online")).items() if how)

    async def devices(self, user: str) -> list[str]:
        return sorted({device.decode() for device in (await self._ask([user], "devices"))[user]})

    async def focused(self, channels: Collection[str]) -> Mapping[str, Sequence[str]]:
        names = list(channels)
        things = ((self._focus_slot(name), 1, name) for name in names)
        parts = list(groups(self._client, things, MAX_USERS))
        calls = [Call(slot, [self._focus_key(name) for name in some], []) for slot, some in parts]
        listed: dict[str, list[str]] = {}
        for (_, some), found in zip(parts, (await self._client.run(FOCUS_READ, calls)).values, strict=True):
            listed |= {
                name: [user.decode() for user in users] for name, users in zip(some, found, strict=True) if users
            }
        if not listed:
            return {}
        open_ = await self._ask({user for users in listed.values() for user in users}, "focus")
        answer: dict[str, list[str]] = {}
        for name, users in listed.items():
            there = [user for user in users if name.encode() in open_[user]]
            if there:
                answer[name] = there
            if len(there) < len(users):
                await self._close(name, set(users).difference(there))
        return answer

    async def _close(self, channel: str, users: Collection[str]) -> None:
        arguments = (self._clock() - OPENING_MS, _encode(list(users)))
        await self._client.run(FOCUS_CLOSE, [Call(self._focus_slot(channel), [self._focus_key(channel)], arguments)])

    async def _ask(self, users: Collection[str], what: str) -> dict[str, list[bytes]]:
        """One answer per user. An empty answer counts only if the generation still stands: it may be due to a loss."""
        found: dict[str, list[bytes]] = {}
        todo = list(users)
        while todo:
            number = await self._instances.settled()
            found |= await self._decide(LOOK, dict.fromkeys(todo, what), number)
            todo = [user for user in todo if not found[user]]
            if todo and await self._generation.check() == number:
                break
        return found

    # ------------------------------------------------------------ devices

    async def connect(self, user: str, device: str, until: int, focus: str | None, connection: str = "") -> None:
        own = self._own.setdefault(user, {})
        known, reported = own.get((device, connection)), focus or ""
        if known is not None and known.reported == reported:
            known.until = until
        else:
            known = own[device, connection] = _Own(until, reported, reported, known.said if known is not None else 0)
        await self._join()
        if connection:
            self._unlisted.add(user)
            self._wake.set()
        if reported:
            await self._open([(user, reported)])
        await self._put({user: [((device, connection), known)]})

    async def disconnect(self, user: str, device: str, connection: str = "") -> Departure | None:
        sent = self._sent.get(user, ())
        own = self._disown(user, (device, connection))
        is_last = not self._is_connected(user)
        said = own.said if own is not None else 0
        proven = frozenset([*self._proven.get(user, ()), *self._removing.get(user, ())])
        left = _Left(user, (device, connection), said, tuple(sent) if is_last else (), self._must_say, proven)
        self._leaving[user] += 1
        try:
            return await self._disconnect(left)
        except BaseException as error:
            if connection:  # it is reported only here: retry when the hot store is back
                self._left.append(left)
                if isinstance(error, Unavailable):
                    return None
            raise
        finally:
            self._leaving[user] -= 1
            if not self._leaving[user]:
                del self._leaving[user]
            self._list_anew(user)

    async def _disconnect(self, left: _Left) -> Departure | None:
        while True:
            number = await self._instances.settled()
            item = [self._entry(left.key), *map(_text, left.proven)]
            [answer] = (await self._decide(LEAVE, {left.user: item}, number)).values()
            if answer[0] != b"lost":
                gone = _departure(left.user, answer)
                if gone is None:
                    return None
                sent = () if left.said == number and not left.unsaid else left.sent
                return self._keep(left.user, gone.since, [*gone.unproven, *sent])
            if await self._generation.check() == number:
                # The hot store knows no device of the user in this generation. If this connection was written in an
                # earlier one, that was lost, and it was the last one. Otherwise the departure was already handed to a
                # caller, or the answer to this process was lost.
                if left.said not in {0, number}:
                    return self._keep(left.user, self._clock(), left.sent)
                return next(iter(await self._leave([left.user])), None)

    def _keep(self, user: str, since: int, unproven: Iterable[Undelivered]) -> Departure:
        """Remember the unproven messages of a departure until the durable store has them."""
        gone = Departure(user, since, tuple(dict.fromkeys(unproven)))
        if gone.unproven:
            self._unnoted.setdefault(user, {}).update(dict.fromkeys(gone.unproven))
            self._list_anew(user)
        return gone

    async def noted(self, noted: Sequence[Undelivered]) -> None:
        by_user: dict[str, list[Undelivered]] = {}
        for one in noted:
            by_user.setdefault(one.receiver_id, []).append(one)
        await self._take_out(LEFT, by_user)
        for one in noted:
            kept = self._unnoted.get(one.receiver_id, {})
            kept.pop(one, None)
            if not kept and self._unnoted.pop(one.receiver_id, None) is not None:
                self._list_anew(one.receiver_id)

    async def drop(self, user: str) -> None:
        self._own.pop(user, None)
        self._unnoted.pop(user, None)
        self._forget(user)
        slot, keys = self._of(user)
        await self._client.run(COMMAND, [Call(slot, [key], ["UNLINK"]) for key in keys])

    async def blur(self, user: str, channel: str) -> None:
        for one in self._own.get(user, {}).values():
            if one.focus == channel:
                one.focus = ""
        await self._run(BLUR, {user: channel})

    async def expire(self, user: str | None = None) -> list[Departure]:
        if user is not None:
            return await self._leave([user])
        while self._left:
            left = self._left[0]
            gone = await self._disconnect(left)
            self._left.remove(left)
            self._list_anew(left.user)
            if gone is not None:
                self._departed.append(gone)
        now = self._clock()
        late = {name: own for name, own in self._own.items() if any(one.until <= now for one in own.values())}
        await self._take_leave(late)
        for name, own in late.items():
            for key in [key for key, one in own.items() if one.until <= now]:
                self._disown(name, key)
        for name in await self._instances.over():
            await self._expire_instance(name)
        departed, self._departed = self._departed, []
        told = {one.user_id for one in departed}
        again = {user: kept for user, kept in self._unnoted.items() if user not in told}
        return [*departed, *(Departure(user, 0, tuple(kept)) for user, kept in again.items())]

    async def _expire_instance(self, instance: str) -> None:
        key = self._list_of(instance)
        while users := await self._command(key, "SRANDMEMBER", MAX_USERS):
            names = [user.decode() for user in users]
            await self._take_leave(names)
            await self._adopt([name for name in names if name in self._unnoted])
            await self._command(key, "SREM", *users)
        await self._command(f"{self._prefix}instances", "HDEL", instance)

    async def _adopt(self, users: Sequence[str]) -> None:
        """Put users on this process's list: their unproven messages are not durable, and this process may die too."""
        if users:
            await self._join()
            await self._command(self._list_of(self._instances.name), "SADD", *users)
            self._listed.update(users)

    async def _take_leave(self, users: Iterable[str]) -> None:
        """Like `_leave`, for `expire`: the departures survive an error in a later step."""
        gone = await self._leave(users)
        self._departed.extend(gone)

    async def _leave(self, users: Iterable[str]) -> list[Departure]:
        """Drop entries of these users that are overdue or belong to instances that are gone."""
        number = await self._instances.settled()
        answers = await self._decide(LEAVE, {user: [""] for user in users}, number)
        gone = [one for user, answer in answers.items() if (one := _departure(user, answer)) is not None]
        return [self._keep(one.user_id, one.since, one.unproven) for one in gone]

    def _disown(self, user: str, key: Key) -> _Own | None:
        own = self._own.get(user, {})
        gone = own.pop(key, None)
        if not own:
            self._own.pop(user, None)
        if not self._is_connected(user):
            self._forget(user)
        return gone

    def _is_connected(self, user: str) -> bool:
        """Whether the user has a connection to this process."""
        return any(connection for _, connection in self._own.get(user, ()))

    def _forget(self, user: str) -> None:
        """No device of this process can prove messages to this user any longer."""
        self._sent.pop(user, None)
        if user in self._listed:
            self._list_anew(user)

    def _list_anew(self, user: str) -> None:
        """Let the next flush decide whether the user is on the list that this process leaves behind."""
        self._unlisted.add(user)
        self._wake.set()

    def _is_to_be_listed(self, user: str) -> bool:
        """Whether another process must expire the user if this one dies."""
        is_leaving = user in self._leaving or any(left.user == user for left in self._left)
        return is_leaving or user in self._unnoted or self._is_connected(user)

    # ------------------------------------------------------------ delivery

    async def reached(self, noted: Sequence[Undelivered]) -> list[Undelivered]:
        todo: dict[str, list[Undelivered]] = {}
        for one in noted:
            todo.setdefault(one.receiver_id, []).append(one)
        while todo:
            number = await self._instances.settled()
            items = {user: _messages(some) for user, some in todo.items()}
            online = await self._decide(REACHED, items, number, MAX_UNPROVEN)
            todo = {user: some for user, some in todo.items() if not online[user]}
            if todo and await self._generation.check() == number:
                break
        return [one for some in todo.values() for one in some]

    async def unproven(self, user: str) -> list[Undelivered]:
        return [_undelivered(user, one) for one in await self._command(self._of(user)[1][1], "ZRANGE", 0, -1)]

    def sent(self, noted: Sequence[Undelivered]) -> None:
        for one in noted:
            if self._is_connected(one.receiver_id):
                sent = self._sent.setdefault(one.receiver_id, {})
                sent[one] = None
                if len(sent) > MAX_UNPROVEN:
                    del sent[next(iter(sent))]

    def proven(self, user: str) -> None:
        if (sent := self._sent.pop(user, None)) is not None:
            self._proven.setdefault(user, []).extend(sent)
            self._wake.set()

    # ------------------------------------------------------------ in the background

    async def _join(self) -> None:
        """Take a lease before the first device is written, and start the background task."""
        if not self._instances.name:
            async with self._joining:
                if not self._instances.name:
                    await self._instances.renew()
        if self._task is None:
            self._task = asyncio.create_task(self._run_on())

    async def _run_on(self) -> None:
        beat_at = opened_at = monotonic()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, beat_at + self._heartbeat - monotonic())):
                    await self._wake.wait()
            try:
                if monotonic() >= beat_at + self._heartbeat:
                    beat_at = monotonic()
                    await self._beat()
                if monotonic() >= opened_at + FOCUS_AGAIN_SECONDS:
                    opened_at = monotonic()
                    await self._open(self._opened())
                if self._wake.is_set():
                    await asyncio.sleep(GATHER_SECONDS)
                    self._wake.clear()
                await self._flush()
            except ReadstateError as error:
                log.debug("presence is not told yet", action="presence", reason=error.explained)
                await asyncio.sleep(GATHER_SECONDS)
            except Exception:
                log.error("presence could not be told", action="presence", traceback=traceback.format_exc())
                await asyncio.sleep(self._heartbeat)

    async def _beat(self) -> None:
        """Renew the lease. If it was lost, write everything again."""
        await self._generation.check()
        if not await self._instances.renew():
            self._must_say = True
        if self._must_say:
            self._listed.clear()
            self._unlisted.update(self._own, self._unnoted)
            await self._open(self._opened())
            await self._put({user: list(own.items()) for user, own in self._own.items()})
            await self._decide(REACHED, {user: _messages(sent) for user, sent in self._sent.items()}, 0, MAX_UNPROVEN)
            self._must_say = False
        if self._listed:
            await self._command(self._list_of(self._instances.name), "PEXPIRE", FOCUS_MS)

    async def _flush(self) -> None:
        """Update the list of users, and remove proven messages from the hot store."""
        key = self._list_of(self._instances.name)
        changed, self._unlisted = self._unlisted, set()
        there = {user for user in changed if self._is_to_be_listed(user)}
        try:
            for command, users in (("SADD", there), ("SREM", changed - there)):
                for some in _chunks(list(users)):
                    await self._command(key, command, *some)
        except BaseException:
            self._unlisted |= changed
            raise
        self._listed = (self._listed | there) - (changed - there)
        proven = self._removing = self._proven
        self._proven = {}
        try:
            await self._take_out(UNPROVEN, proven)
        except BaseException:
            self._proven = {user: proven.get(user, []) + self._proven.get(user, []) for user in proven | self._proven}
            raise
        finally:
            self._removing = {}

    async def _take_out(self, family: int, messages: Mapping[str, Sequence[Undelivered]]) -> None:
        """Remove messages from one of the users' keys, `UNPROVEN` or `LEFT`."""
        calls = []
        for user, some in messages.items():
            slot, keys = self._of(user)
            calls += [Call(slot, [keys[family]], ["ZREM", *map(_text, part)]) for part in _chunks(some)]
        for part in _chunks(calls):
            await self._client.run(COMMAND, part)

    async def close(self) -> None:
        """Stop. Other processes expire the devices that are still connected here, at once."""
        if self._task is not None:
            await cancel(self._task)
            with suppress(ReadstateError, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._flush()
                    await self._instances.leave()

    # ------------------------------------------------------------ calls

    async def _put(self, devices: Mapping[str, Sequence[tuple[Key, _Own]]]) -> None:
        items = {
            user: [(self._entry(key), one.until, one.reported, one.focus) for key, one in some]
            for user, some in devices.items()
        }
        await self._run(PUT, items)
        for user, some in devices.items():
            for key, one in some:
                one.said = self._generation.number
                if key[1] and key not in self._own.get(user, ()):  # it ended meanwhile
                    self._left.append(_Left(user, key, one.said))

    def _entry(self, key: Key) -> str:
        return _encode_text((self._instances.name if key[1] else "", *key)).decode()

    def _opened(self) -> list[tuple[str, str]]:
        """(user, channel) for each channel that a device of this process has open."""
        return [(user, one.focus) for user, own in self._own.items() for one in own.values() if one.focus]

    async def _open(self, opened: Sequence[tuple[str, str]]) -> None:
        """Add users to the lists of the channels that they have open. Runs before `_put`: no list lacks a user."""
        calls = []
        for user, channel in opened:
            slot, key = self._focus_slot(channel), self._focus_key(channel)
            calls.append(Call(slot, [key], ["ZADD", self._clock(), user]))
            calls.append(Call(slot, [key], ["PEXPIRE", FOCUS_MS]))
        for some in _chunks(calls):
            await self._client.run(COMMAND, some)

    async def _decide(self, script: Script, items: Mapping[str, Any], number: int, *more: int) -> dict[str, Any]:
        """Run a script until it answers for every user: it needs to know of each instance involved whether it lives.

        In a generation other than `number` (0: any), the script answers that nothing is known.
        """
        found: dict[str, Any] = {}
        todo = dict(items)
        while todo:
            parts = await self._run(script, todo, number, *more)
            unknown = {name.decode() for _, (_, names) in parts for name in names}
            for users, (answers, _) in parts:
                found |= {user: answer for user, answer in zip(users, answers, strict=True) if answer is not None}
            todo = {user: item for user, item in todo.items() if user not in found}
            if unknown:
                await self._instances.learn(unknown)
        return found

    async def _run(
        self, script: Script, items: Mapping[str, Any], number: int = 0, *more: int
    ) -> list[tuple[list[str], Any]]:
        """Run a script for many users. Returns the users of each call, and its answer."""
        things = ((self._of(user)[0], 1, user) for user in items)
        parts = list(groups(self._client, things, MAX_USERS))
        head = (self._clock(), _encode(list(self._instances.live)), _encode(list(self._instances.gone)))
        calls = []
        for slot, users in parts:
            keys = [key for user in users for key in self._of(user)[1][: 3 if script is LEAVE else 2]]
            calls.append(Call(slot, keys, [*head, number, _encode([items[user] for user in users]), *more]))
        values = (await self._client.run(script, calls)).values
        return [(users, value) for (_, users), value in zip(parts, values, strict=True)]

    async def _command(self, key: str, *command: str | bytes | int) -> Any:
        return (await self._client.run(COMMAND, [Call(slot_of(key), [key], command)])).values[0]

    def _place(self, user: str) -> tuple[int, tuple[str, str, str]]:
        """The user's slot, and the keys of devices, of unproven messages, and of those kept after the user left."""
        devices, unproven, left = (f"{self._prefix}{name}:{tag_of(user)}" for name in ("presence", "unproven", "left"))
        return slot_of(devices), (devices, unproven, left)

    def _list_of(self, instance: str) -> str:
        return f"{self._prefix}connected:{tag_of(instance)}"

    def _focus_key(self, channel: str) -> str:
        return f"{self._prefix}focus:{{{shard_of(channel)}}}:{channel}"

    def _focus_slot(self, channel: str) -> int:
        return slot_of(self._focus_key(channel))


def _chunks(things: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (things[start : start + MAX_USERS] for start in range(0, len(things), MAX_USERS))


def _text(one: Undelivered) -> str:
    return _encode_text((one.accepted_at, one.sender_id, one.channel_id, one.message_id)).decode()


def _messages(noted: Iterable[Undelivered]) -> list[int | str]:
    return [word for one in noted for word in (one.accepted_at, _text(one))]


def _undelivered(user: str, text: bytes) -> Undelivered:
    accepted_at, sender, channel, message = _decode_message(text)
    return Undelivered(user, accepted_at, sender, channel, message)


def _departure(user: str, answer: Sequence[bytes]) -> Departure | None:
    if answer[0] != b"gone":
        return None
    return Departure(user, int(answer[1]), tuple(_undelivered(user, one) for one in answer[2:]))
