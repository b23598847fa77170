"""The servers behind one address: a single one, or the masters of a Cluster.

Calls are scripts whose keys lie in one slot. They go to the master of that slot, many in one round trip, and are
repeated when a server moved a slot, failed over, restarted or did not answer: so they must be safe to repeat.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any, NamedTuple, Protocol

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import TimeoutError as NoAnswer

from readstate.domain.errors import ConfigurationError, HotStoreUnavailable
from readstate.tasks import cancel

from .address import Address, server_name
from .keys import SLOTS
from .pool import NO_CONNECTION, FairPool
from .scripts import Script

OUTDATED = "OUTDATED"
"""How a script refuses a caller that has missed a newer generation."""
MAX_CONNECTIONS = 32
CONNECT_SECONDS = 1.0
ANSWER_SECONDS = 3.0
FIRST_WAIT, LONGEST_WAIT = 0.01, 0.5
LATE_SECONDS = 2.0
"""So long a call is under way at most, if a late copy of it would do harm; a server that is slower refuses it."""


class Guard(Protocol):
    """Says which generation calls are made in, and looks at new connections."""

    number: int
    """Every script gets it as its first argument, as it stands when the script is sent."""

    @property
    def trusted(self) -> bool:
        """False: look at the servers before the next call."""

    def deadline(self, seconds: float) -> int:
        """The time in so many seconds, by the clock of the servers in ms; 0: calls need none."""

    async def admit(self, connection: AbstractConnection) -> None:
        """Raise ServerChanged if the server must be looked at first."""

    async def confirm(self) -> None:
        """Look at the servers."""


_MOVES = (MovedError, ReadOnlyError, ClusterDownError, LostConnection, NoAnswer)
"""After these the slots are asked for again."""
_PASSING = (*_MOVES, TryAgainError, BusyLoadingError, NoScriptError)


class ServerChanged(LostConnection):
    """Raised by whoever looks at new connections: the server is not the one that is known."""


class Overtaken(Exception):
    """Another generation has begun than the one that a call was meant for."""


class Call(NamedTuple):
    """A script with its keys, which lie in one slot, and its arguments."""

    slot: int
    keys: Sequence[str | bytes]
    arguments: Sequence[str | bytes | int]


class Answers(NamedTuple):
    """What the calls answered, in order."""

    values: list[Any]
    repeated: bool
    """Some call was sent twice: what it says about having changed something may be about the second time."""


class ValkeyClient:
    """Knows the servers and which of them has which slot."""

    def __init__(
        self, url: str, *, patience: float, answer_seconds: float | None = None, guard: Guard | None = None
    ) -> None:
        self._patience = patience
        self._answer_seconds = ANSWER_SECONDS if answer_seconds is None else answer_seconds
        self._guard = guard
        self._address = Address(url)
        self.is_cluster = self._address.is_cluster
        try:
            options = [parse_url(self._address.url_of(seed)) for seed in self._address.seeds]
        except ValueError as error:
            raise ConfigurationError(f"the address of the hot store is not valid: {error}") from error
        self.database = int(options[0].get("db", 0))
        """Its number on every server."""
        self._nodes: dict[str, Redis] = {}
        self._owners: list[str] = []
        self._first_slots: dict[str, int] = {}
        if not self.is_cluster:
            self._set_owners(self._address.seeds * SLOTS)
        self._refreshing: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._refreshing is not None:
            await cancel(self._refreshing)
        nodes, self._nodes = self._nodes, {}
        for node in nodes.values():
            await node.aclose(close_connection_pool=True)

    async def disconnect(self) -> None:
        """Let go of connections that nobody uses: the next ones are new."""
        for node in list(self._nodes.values()):
            await node.connection_pool.disconnect(inuse_connections=False)

    # ------------------------------------------------------------ servers

    def _node(self, address: str) -> Redis:
        node = self._nodes.get(address)
        if node is None:
            pool = FairPool.from_url(
                self._address.url_of(address),
                max_connections=MAX_CONNECTIONS,
                patience=self._patience,
                socket_connect_timeout=CONNECT_SECONDS,
                socket_timeout=self._answer_seconds,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
                **({"redis_connect_func": self._guard.admit} if self._guard else {}),
            )
            node = self._nodes[address] = Redis(connection_pool=pool)
        return node

    def owner(self, slot: int) -> Redis:
        """The server that has a slot, as far as is known."""
        return self._node(self._owners[slot])

    async def connection(self, slot: int, name: str) -> AbstractConnection:
        """A connection of one's own to the server that has a slot now. One that breaks stays broken."""
        await self.refresh()
        pool = self.owner(slot).connection_pool
        connection: AbstractConnection = pool.make_connection()  # type: ignore[no-untyped-call]
        connection.client_name = name
        try:
            with closed_is_lost():
                await connection.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    async def masters(self) -> dict[int, Redis]:
        """Every master, by the first slot that it has."""
        if not self._owners:
            await self.refresh()
        return {slot: self._node(address) for address, slot in self._first_slots.items()}

    def _set_owners(self, owners: list[str]) -> None:
        self._owners = owners
        self._first_slots = {address: owners.index(address) for address in dict.fromkeys(owners)}

    async def refresh(self) -> None:
        """Ask which server has which slot; many callers share one question."""
        if not self.is_cluster:
            return
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._ask_for_slots())
            self._refreshing.add_done_callback(self._refreshed)
        await asyncio.shield(self._refreshing)

    def _refreshed(self, task: asyncio.Task[None]) -> None:
        self._refreshing = None
        if not task.cancelled():
            task.exception()  # whoever waits gets it

    async def _ask_for_slots(self) -> None:
        known = list(dict.fromkeys([*self._first_slots, *self._address.seeds]))
        random.shuffle(known)
        failure: Exception | None = None
        for address in known:
            try:
                ranges = await ask(self._node(address), "CLUSTER", "SLOTS")
            except (RedisError, OSError) as error:
                failure = error
                continue
            owners = [""] * SLOTS
            for start, end, (host, port, *_), *_ in ranges:
                owners[start : end + 1] = [server_name((host or b"").decode(), port, address)] * (end + 1 - start)
            if "" not in owners:
                self._set_owners(owners)
                await self._let_go()
                return
            failure = ClusterDownError("not every slot has a server")
        raise failure or ClusterDownError("no server of the Cluster is known")

    async def _let_go(self) -> None:
        """Close connections to servers that have no slot any more: if one comes back, it must be looked at again."""
        for address in self._nodes.keys() - self._first_slots.keys():
            await self._nodes.pop(address).aclose(close_connection_pool=True)

    # ------------------------------------------------------------ calls

    async def run(self, script: Script, calls: Sequence[Call], generation: int | None = None) -> Answers:
        """Run a script for each call, all in one round trip a server; repeat what met a passing fault.

        With `generation` it does nothing in any other one. Raises Overtaken if there is another one; some of the calls
        may have been made then.
        """
        answers: list[Any] = [None] * len(calls)
        todo = list(range(len(calls)))
        end = monotonic() + self._patience
        wait, repeated, tries = FIRST_WAIT, False, 0
        number = 0 if self._guard is None else self._guard.number
        while todo:
            began = monotonic()
            errors = await self._try(script, calls, todo, answers, generation)
            if not errors:
                break
            todo, faults = sorted(errors), list(errors.values())
            for fault in faults:
                raise_if_lasting(fault)
            repeated = repeated or any(map(_may_have_been_sent, faults))
            if monotonic() + wait > end:
                raise HotStoreUnavailable("the hot store does not answer", reason=str(faults[0])) from faults[0]
            if self._guard is not None and any(map(_is_outdated, faults)):
                await self._guard.confirm()
            at_once = all(isinstance(fault, NoScriptError | MovedError) or _is_outdated(fault) for fault in faults)
            if tries or not at_once:
                await asyncio.sleep(wait * (0.5 + random.random() / 2))
                wait = min(2 * wait, LONGEST_WAIT)
            tries += 1
        if repeated and self._deadline(script) and self._guard is not None and self._guard.number == number:
            await asyncio.sleep(began + 1.05 * LATE_SECONDS - monotonic())  # a copy may still come and be taken
        return Answers(answers, repeated)

    def _deadline(self, script: Script) -> int:
        """When a call that is made now is too late; 0: never."""
        return self._guard.deadline(LATE_SECONDS) if script.expires and self._guard is not None else 0

    async def _try(
        self,
        script: Script,
        calls: Sequence[Call],
        todo: Sequence[int],
        answers: list[Any],
        generation: int | None,
    ) -> dict[int, Exception]:
        """Run these calls once; the errors of those that failed."""
        if self._guard is not None and not self._guard.trusted:
            await self._guard.confirm()
        if self._guard is not None and generation not in {None, self._guard.number}:
            raise Overtaken
        try:
            if not self._owners:
                await self.refresh()
            groups: dict[str, list[int]] = {}
            for index in todo:
                groups.setdefault(self._owners[calls[index].slot], []).append(index)
        except (RedisError, OSError) as error:
            return dict.fromkeys(todo, error)
        if len(groups) == 1:
            found = [await self._send(address, script, calls, part, generation) for address, part in groups.items()]
        else:
            sent = (self._send(address, script, calls, part, generation) for address, part in groups.items())
            found = await asyncio.gather(*sent)
        errors: dict[int, Exception] = {}
        for part, values in zip(groups.values(), found, strict=True):
            for index, value in zip(part, values, strict=True):
                if isinstance(value, Exception):
                    errors[index] = value
                else:
                    answers[index] = value
        if errors and self.is_cluster:
            await self._follow(script, calls, errors, answers, generation)
        return errors

    def _command(self, script: Script, call: Call, generation: int | None) -> tuple[str | bytes | int, ...]:
        if generation is None:
            generation = 0 if self._guard is None else self._guard.number
        deadline = [self._deadline(script)] if script.expires else []
        return ("EVALSHA", script.sha, len(call.keys), *call.keys, generation, *call.arguments, *deadline)

    async def _send(
        self,
        address: str,
        script: Script,
        calls: Sequence[Call],
        part: Sequence[int],
        generation: int | None,
        asking: bool = False,
    ) -> list[Any]:
        """One round trip to one server."""
        node = self._node(address)
        try:
            if len(part) == 1 and not asking:
                return [await ask(node, *self._command(script, calls[part[0]], generation))]
            pipeline = node.pipeline(transaction=False)
            for index in part:
                if asking:
                    pipeline.execute_command("ASKING")
                pipeline.execute_command(*self._command(script, calls[index], generation))
            with closed_is_lost():
                values: list[Any] = await pipeline.execute(raise_on_error=False)
            values = values[1::2] if asking else values
        except (NoScriptError, ReadOnlyError) as error:
            values = [error]
        except (RedisError, OSError) as error:
            return [error] * len(part)
        if any(isinstance(value, ReadOnlyError) for value in values):  # a name may lead to another master now
            await node.connection_pool.disconnect(inuse_connections=False)
        if any(isinstance(value, NoScriptError) for value in values):
            try:
                await ask(node, "SCRIPT", "LOAD", script.text)
            except (RedisError, OSError) as error:
                return [error if isinstance(value, NoScriptError) else value for value in values]
        return values

    async def _follow(
        self,
        script: Script,
        calls: Sequence[Call],
        errors: dict[int, Exception],
        answers: list[Any],
        generation: int | None,
    ) -> None:
        """Where a slot is on its way to another server, ask that one; where it has gone, learn where."""
        for index, error in list(errors.items()):
            if isinstance(error, AskError) and not isinstance(error, MovedError):
                address = server_name(error.host, error.port, self._owners[calls[index].slot])
                [value] = await self._send(address, script, calls, [index], generation, asking=True)
                if isinstance(value, Exception):
                    errors[index] = value
                else:
                    del errors[index]
                    answers[index] = value
        if any(isinstance(error, _MOVES) for error in errors.values()):
            with suppress(RedisError, OSError):  # the next try asks again
                await self.refresh()

    async def each(self, *command: str | bytes | int) -> list[Any]:
        """A command to every master, at once. Raises what any of them does."""
        masters = (await self.masters()).values()
        return list(await asyncio.gather(*(ask(node, *command) for node in masters)))


async def ask(node: Redis, *command: str | bytes | int) -> Any:
    """One command to one server."""
    with closed_is_lost():
        return await node.execute_command(*command)  # type: ignore[no-untyped-call]


@contextmanager
def closed_is_lost() -> Iterator[None]:
    """uvloop has an error of its own for connections that were closed a moment before something is sent."""
    try:
        yield
    except RuntimeError as error:
        raise LostConnection(str(error)) from error


def _may_have_been_sent(fault: Exception) -> bool:
    """Whether a call may be executed although it has failed; not if there was no connection to send it on."""
    if isinstance(fault, ServerChanged) or not isinstance(fault, LostConnection | NoAnswer):
        return False
    return not any(words in str(fault) for words in ("connecting to", NO_CONNECTION))


def _is_outdated(error: Exception) -> bool:
    """Whether the servers must be looked at: they have changed, or somebody else has raised the generation."""
    return isinstance(error, ServerChanged) or (isinstance(error, ResponseError) and str(error).startswith(OUTDATED))


def raise_if_lasting(error: Exception) -> None:
    """An error that no repetition helps."""
    if _is_outdated(error):
        return
    if isinstance(error, AuthenticationError) or not isinstance(error, (*_PASSING, AskError, OSError)):
        if isinstance(error, ResponseError) and str(error).startswith(("LOADING", "MASTERDOWN", "CLUSTERDOWN")):
            return
        raise HotStoreUnavailable("the hot store refuses", reason=str(error)) from error
