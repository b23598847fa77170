"""Connections to where the bus lives: one server, or the node of a Cluster that has the slot of its channels.

Not the client's own publish and subscribe: that one connects again silently, and here the break itself is news.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio.connection import Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import RedisError, ResponseError

from ..errors import ConfigurationError

ANSWER_SECONDS = 1.0
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
CLUSTER = "+cluster"

Address = tuple[str, int]
BROKEN = (RedisError, OSError, TimeoutError)
"""What a line raises that breaks, or can't be had."""


async def pause(failures: int) -> None:
    """Wait longer the more often in a row it has failed; not all instances alike."""
    await asyncio.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures, 10)) * random.uniform(0.5, 1))


class Line:
    """One connection. Commands and what is read from it are bytes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def ask(self, *commands: Sequence[str | bytes]) -> list[Any]:
        """The answers to commands that are sent together; the first refusal is raised when all have come."""
        await self.say(*commands)
        answers = [await self._answer() for _ in commands]
        for answer in answers:
            if isinstance(answer, ResponseError):
                raise answer
        return answers

    async def subscribe(self, command: str, channels: Sequence[str]) -> None:
        """Return when what is said on all of them comes. One command: nothing comes between its answers."""
        await self.say((command, *channels))
        for _ in channels:
            await self._connection.read_response()

    async def say(self, *commands: Sequence[str | bytes]) -> None:
        """Send commands and wait for nothing."""
        await self._connection.send_packed_command(self._connection.pack_commands(commands), check_health=False)

    async def read(self, seconds: float) -> Any:
        """What comes next; None if nothing does."""
        return await self._connection.read_response(timeout=seconds)

    async def _answer(self) -> Any:
        try:
            return await self._connection.read_response()
        except ResponseError as error:
            return error


class Lines:
    """Where lines lead."""

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        self._clustered = scheme.endswith(CLUSTER)
        urls = _one_by_one(rest) if self._clustered else [rest]
        try:
            options: list[dict[str, Any]] = [dict(parse_url(f"{scheme.removesuffix(CLUSTER)}://{one}")) for one in urls]
        except ValueError as error:
            raise ConfigurationError(f"the URL of the hot store is none: {error}") from error
        self._options = options[0]
        self._seeds: list[Address] = [_address(one) for one in options]
        self._nodes: list[Address] = list(self._seeds)
        self.database = int(self._options.get("db", 0))

    @property
    def clustered(self) -> bool:
        """Whether channels have slots."""
        return self._clustered

    @asynccontextmanager
    async def open(self, channel: str, name: str) -> AsyncIterator[Line]:
        """A line to the server that has the channel now; it is closed at the end, and for good when it breaks."""
        address = await self._owner(key_slot(channel.encode()), name) if self._clustered else self._seeds[0]
        connection = await self._connect(address, name)
        try:
            yield Line(connection)
        finally:
            await connection.disconnect(nowait=True)

    async def _owner(self, slot: int, name: str) -> Address:
        """The node that has the slot, as any node says that can be reached."""
        fault: BaseException = ConnectionError("no node of the Cluster has the slot")
        for address in random.sample(self._nodes, len(self._nodes)):
            try:
                connection = await self._connect(address, name)
            except BROKEN as error:
                fault = error
                continue
            try:
                [slots] = await Line(connection).ask(("CLUSTER", "SLOTS"))
            except BROKEN as error:
                fault = error
                continue
            finally:
                await connection.disconnect(nowait=True)
            if (owner := self._learn(slots, slot, address)) is not None:
                return owner
        raise fault

    def _learn(self, slots: Iterable[Any], slot: int, asked: Address) -> Address | None:
        """Take in which nodes there are; the one that has the slot."""
        owner = None
        nodes: dict[Address, None] = {}
        for first, last, *there in slots:
            addresses = [((host or b"").decode() or asked[0], int(port)) for host, port, *_ in there]
            nodes.update(dict.fromkeys(addresses))
            if first <= slot <= last and addresses:
                owner = addresses[0]
        self._nodes = list({**nodes, **dict.fromkeys(self._seeds)})
        return owner

    async def _connect(self, address: Address, name: str) -> Connection:
        options = self._options | {
            **({} if "path" in self._options else {"host": address[0], "port": address[1]}),
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "socket_connect_timeout": ANSWER_SECONDS,
            "socket_timeout": ANSWER_SECONDS,
            "client_name": name,
        }
        kind: type[Connection] = options.pop("connection_class", Connection)
        connection = kind(**options)
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection


def _one_by_one(rest: str) -> list[str]:
    """The nodes of a Cluster's URL, each as a URL's rest of its own: the user, the path and the query are shared."""
    before, at, after = rest.rpartition("@")
    cut = min((after.index(mark) for mark in "/?" if mark in after), default=len(after))
    return [before + at + host + after[cut:] for host in after[:cut].split(",")]


def _address(options: dict[str, Any]) -> Address:
    return options.get("host", "localhost"), options.get("port", 6379)
