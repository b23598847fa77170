"""The servers behind one address: a single server, or the masters of a Cluster.

A call is a function whose keys are in one slot. Calls go to the master of that slot, many in one round trip. They are
retried when a slot moved or a server failed over, restarted or did not answer, so they must be idempotent.
"""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import TimeoutError as NoAnswer

from readstate.domain.errors import ConfigurationError, HotStoreUnavailable
from readstate.domain.model import NO_GENERATION
from readstate.domain.model import Generation as GenerationNumber
from readstate.domain.slots import SLOTS, SlotGenerations
from readstate.tasks import cancel, retrieve_exception
from readstate.timings import ValkeyTimings

from .address import Address, server_name
from .commands import Word, ask, exchange
from .functions import Function, is_lacking, load
from .pool import NO_CONNECTION, FairPool

if TYPE_CHECKING:
    from .generation import Generation

OUTDATED = "OUTDATED"
"""The error with which a function refuses a caller that has missed a newer generation."""
MAX_CONNECTIONS = 32


_MOVES = (MovedError, ReadOnlyError, ClusterDownError, LostConnection, NoAnswer)
"""Faults after which the slot map is fetched again."""
_ASKING = ("ASKING",)
_PASSING = (*_MOVES, TryAgainError, BusyLoadingError)


class ServerChanged(LostConnection):
    """A new connection leads to a server that was not confirmed."""


OVERTAKEN = object()
"""The answer to a call whose slot was lost since the generation that the call was meant for."""


class Call(NamedTuple):
    """The keys of one function call, which are in one slot, and its arguments."""

    slot: int
    keys: Sequence[str | bytes]
    arguments: Sequence[Word]


class _Batch(NamedTuple):
    function: Function
    calls: Sequence[Call]
    generation: GenerationNumber | None
    """Calls for slots with a higher number are not sent; None: all are, with the number of that time."""


class Answers(NamedTuple):
    """The answers, in the order of the calls."""

    values: list[Any]
    repeated: bool
    """A call was sent more than once: what it says about its changes may describe the second time."""


class ValkeyClient:
    """Knows the servers and which of them owns which slot."""

    def __init__(self, url: str, timings: ValkeyTimings, guard: "Generation | None" = None) -> None:
        self._timings = timings
        self._guard = guard
        """Provides the generation of calls, and checks new connections."""
        self._address = Address(url)
        self.is_cluster = self._address.is_cluster
        try:
            options = [parse_url(self._address.url_of(seed)) for seed in self._address.seeds]
        except ValueError as error:
            raise ConfigurationError(f"the address of the hot store is not valid: {error}") from error
        self.database = int(options[0].get("db", 0))
        """The number of the database, the same on every server."""
        self._nodes: dict[str, Redis] = {}
        self.owners: Sequence[str] = ()
        """The address of each slot's owner: as of the last refresh, or as the guard has confirmed it."""
        self.first_slots: dict[str, int] = {}
        """By address, the first slot that each master owns."""
        if not self.is_cluster:
            self._set_owners(self._address.seeds * SLOTS)
        self._refreshing: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self._refreshing is not None:
            await cancel(self._refreshing)
        nodes, self._nodes = self._nodes, {}
        for node in nodes.values():
            await _retire(node)

    async def disconnect(self) -> None:
        """Close idle connections: the next ones are new."""
        for node in list(self._nodes.values()):
            await node.connection_pool.disconnect(inuse_connections=False)

    # ------------------------------------------------------------ servers

    def node(self, address: str) -> Redis:
        node = self._nodes.get(address)
        if node is None:
            pool = FairPool.from_url(
                self._address.url_of(address),
                max_connections=MAX_CONNECTIONS,
                patience=self._timings.patience,
                socket_connect_timeout=self._timings.connect,
                socket_timeout=self._timings.answer,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
                **({"redis_connect_func": self._guard.admit} if self._guard else {}),
            )
            node = self._nodes[address] = Redis(connection_pool=pool)
        return node

    def owner(self, slot: int) -> Redis:
        return self.node(self.owners[slot])

    async def masters(self) -> dict[int, Redis]:
        """All masters, by the first slot that each owns."""
        if self._guard is not None:
            if not self._guard.owners:
                await self._guard.confirm()
            await self._take(self._guard.owners)
        elif not self.owners:
            await self.refresh()
        return {slot: self.node(address) for address, slot in self.first_slots.items()}

    def _set_owners(self, owners: Sequence[str]) -> None:
        self.owners = owners
        self.first_slots = {address: owners.index(address) for address in dict.fromkeys(owners)}

    async def refresh(self) -> None:
        """Fetch the slot map. Concurrent callers share one request."""
        if not self.is_cluster:
            return
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._ask_for_slots())
            self._refreshing.add_done_callback(self._refreshed)
        await asyncio.shield(self._refreshing)

    def _refreshed(self, task: asyncio.Task[None]) -> None:
        self._refreshing = None
        retrieve_exception(task)

    async def _ask_for_slots(self) -> None:
        known = list(dict.fromkeys([*self.first_slots, *self._address.seeds]))
        random.shuffle(known)
        failure: Exception | None = None
        for address in known:
            try:
                ranges = await ask(self.node(address), "CLUSTER", "SLOTS")
            except (RedisError, OSError) as error:
                failure = error
                continue
            owners = [""] * SLOTS
            for start, end, (host, port, *_), *_ in ranges:
                owners[start : end + 1] = [server_name((host or b"").decode(), port, address)] * (end + 1 - start)
            if "" not in owners:
                await self._learn(owners)
                return
            failure = ClusterDownError("not every slot has a server")
        raise failure or ClusterDownError("no server of the Cluster is known")

    async def _learn(self, owners: list[str]) -> None:
        """Take a slot map. If there is a guard, it looks first whether slots that have moved were lost."""
        if self._guard is None:
            await self._take(owners)
        elif owners != self._guard.owners:
            self._guard.suspect()

    async def _take(self, owners: Sequence[str]) -> None:
        self._set_owners(owners)
        for unused in self._nodes.keys() - self.first_slots.keys():
            # If a server returns, it must be checked again.
            await _retire(self._nodes.pop(unused))

    # ------------------------------------------------------------ calls

    async def run(
        self, function: Function, calls: Sequence[Call], generation: GenerationNumber | None = None
    ) -> Answers:
        """Run a function for each call, in one round trip per server; retry calls after transient faults.

        With `generation`, the highest number of some time: the answer to calls for slots that were lost since is
        OVERTAKEN. They may have run before the loss.
        """
        batch = _Batch(function, calls, generation)
        answers: list[Any] = [None] * len(calls)
        todo = list(range(len(calls)))
        end = monotonic() + self._timings.patience
        wait, repeated, tries = self._timings.first_retry, False, 0
        slots = None if self._guard is None else self._guard.slots
        while todo:
            began = monotonic()
            errors = await self._try(batch, todo, answers)
            if not errors:
                break
            todo, faults = sorted(errors), list(errors.values())
            for fault in faults:
                raise_if_lasting(fault)
            repeated = repeated or any(map(_may_have_been_sent, faults))
            if monotonic() + wait > end:
                raise HotStoreUnavailable("the hot store does not answer", reason=str(faults[0])) from faults[0]
            if self._guard is not None and any(map(_is_outdated, faults)):
                await self._guard.confirm({calls[index].slot for index in todo})
            at_once = all(isinstance(fault, MovedError) or is_lacking(fault) or _is_outdated(fault) for fault in faults)
            if tries or not at_once:
                await asyncio.sleep(wait * (0.5 + random.random() / 2))
                wait = min(2 * wait, self._timings.longest_retry)
            tries += 1
        if repeated and self._deadline(function) and not self._are_all_lost(calls, slots):
            await asyncio.sleep(began + 1.05 * self._timings.late - monotonic())  # until then a copy may still run
        return Answers(answers, repeated)

    def _are_all_lost(self, calls: Sequence[Call], before: SlotGenerations | None) -> bool:
        """Whether all slots of these calls got new numbers: a late copy with an old one does nothing."""
        now = None if self._guard is None else self._guard.slots
        if before is None or now is None or now is before:
            return False
        return all(before.of(one.slot) != now.of(one.slot) for one in calls)

    def _deadline(self, function: Function) -> int:
        """The deadline of a call that is sent now; 0: none."""
        return self._guard.deadline(self._timings.late) if function.expires and self._guard is not None else 0

    async def _guarded(self, batch: _Batch, todo: Sequence[int], answers: list[Any]) -> Sequence[int]:
        """Returns the calls to send: only to servers that are confirmed, and only for slots that were not lost."""
        guard = self._guard
        if guard is None:
            return todo
        if not guard.trusted:
            await guard.confirm({batch.calls[index].slot for index in todo})
        if self.owners is not guard.owners:
            await self._take(guard.owners)
        if batch.generation is None or guard.number <= batch.generation:
            return todo
        overtaken = {index for index in todo if guard.of(batch.calls[index].slot) > batch.generation}
        for index in overtaken:
            answers[index] = OVERTAKEN
        return [index for index in todo if index not in overtaken]

    async def _try(self, batch: _Batch, todo: Sequence[int], answers: list[Any]) -> dict[int, Exception]:
        """Run these calls once. Returns the errors of those that failed."""
        todo = await self._guarded(batch, todo, answers)
        try:
            if not self.owners:
                await self.refresh()
            groups: dict[str, list[int]] = {}
            for index in todo:
                groups.setdefault(self.owners[batch.calls[index].slot], []).append(index)
        except (RedisError, OSError) as error:
            return dict.fromkeys(todo, error)
        if len(groups) == 1:
            found = [await self._send(address, batch, part) for address, part in groups.items()]
        else:
            sent = (self._send(address, batch, part) for address, part in groups.items())
            found = await asyncio.gather(*sent)
        errors: dict[int, Exception] = {}
        for part, values in zip(groups.values(), found, strict=True):
            for index, value in zip(part, values, strict=True):
                if isinstance(value, Exception):
                    errors[index] = value
                else:
                    answers[index] = value
        if errors and self.is_cluster:
            await self._follow(batch, errors, answers)
        return errors

    def _command(self, batch: _Batch, index: int) -> tuple[Word, ...]:
        function, call = batch.function, batch.calls[index]
        generation = NO_GENERATION if self._guard is None else self._guard.of(call.slot)
        deadline = [self._deadline(function)] if function.expires else []
        return ("FCALL", function.name, len(call.keys), *call.keys, generation, *call.arguments, *deadline)

    async def _send(self, address: str, batch: _Batch, part: Sequence[int], asking: bool = False) -> list[Any]:
        """One round trip to one server."""
        node = self.node(address)
        try:
            commands = [self._command(batch, index) for index in part]
            if asking:
                commands = [words for command in commands for words in (_ASKING, command)]
            values = await exchange(node, commands)
            values = values[1::2] if asking else values
        except (RedisError, OSError) as error:
            values = [error] * len(part)
        if any(isinstance(value, ReadOnlyError) for value in values):  # the name may lead to another master now
            await node.connection_pool.disconnect(inuse_connections=False)
        if any(isinstance(value, ResponseError) and is_lacking(value) for value in values):
            try:
                await load(node)
            except (RedisError, OSError) as error:
                return [error if isinstance(value, Exception) and is_lacking(value) else value for value in values]
        return values

    async def _follow(self, batch: _Batch, errors: dict[int, Exception], answers: list[Any]) -> None:
        """Retry at the new server of a slot that is migrating; refresh the slot map if a slot has moved."""
        for index, error in list(errors.items()):
            if isinstance(error, AskError) and not isinstance(error, MovedError):
                address = server_name(error.host, error.port, self.owners[batch.calls[index].slot])
                [value] = await self._send(address, batch, [index], asking=True)
                if isinstance(value, Exception):
                    errors[index] = value
                else:
                    del errors[index]
                    answers[index] = value
        if any(isinstance(error, _MOVES) for error in errors.values()):
            with suppress(RedisError, OSError):  # the next attempt refreshes again
                await self.refresh()


async def _retire(node: Redis) -> None:
    pool: FairPool = node.connection_pool  # type: ignore[assignment]
    await pool.retire()


def _may_have_been_sent(fault: Exception) -> bool:
    """Whether a failed call may still run. It cannot if there was no connection to send it on."""
    if isinstance(fault, ServerChanged) or not isinstance(fault, LostConnection | NoAnswer):
        return False
    return not any(words in str(fault) for words in ("connecting to", NO_CONNECTION))


def _is_outdated(error: Exception) -> bool:
    """Whether to confirm the servers: one has changed, the generation was raised, or the call arrived too late."""
    return isinstance(error, ServerChanged) or (isinstance(error, ResponseError) and str(error).startswith(OUTDATED))


def raise_if_lasting(error: Exception) -> None:
    """Raises HotStoreUnavailable for an error that a retry cannot fix."""
    if _is_outdated(error) or is_lacking(error):
        return
    if isinstance(error, AuthenticationError) or not isinstance(error, (*_PASSING, AskError, OSError)):
        if isinstance(error, ResponseError) and str(error).startswith(("LOADING", "MASTERDOWN", "CLUSTERDOWN")):
            return
        raise HotStoreUnavailable("the hot store refuses", reason=str(error)) from error
