"""A Valkey to be measured: on one core, with what it has used of it, and a line to it that costs little."""

import contextlib
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hiredis

from readstate.adapters.valkey import DurableCounter
from readstate.adapters.valkey.hot import ExclusiveHot, HotOptions
from readstate.domain.model import NO_POSITION, Generation
from readstate.domain.slots import LostRange, SlotRange, renewed
from readstate.stack import Valkey
from readstate.timings import ValkeyTimings

from .allocator import allocator, jemalloc
from .load import HOST, PATIENCE, BenchmarkError
from .servers import on_cores

PART = 1_000
"""Commands in one write."""


class Line:
    """One blocking connection: commands are encoded by hand, answers are taken apart by hiredis."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()

    def ask(self, commands: Iterable[bytes]) -> list[Any]:
        """Send encoded commands, many in one write; their answers in order."""
        answers: list[Any] = []
        part: list[bytes] = []
        for command in commands:
            part.append(command)
            if len(part) == PART:
                self._exchange(part, answers)
                part = []
        if part:
            self._exchange(part, answers)
        return answers

    def _exchange(self, part: list[bytes], answers: list[Any]) -> None:
        self._socket.sendall(b"".join(part))
        wanted = len(answers) + len(part)
        while len(answers) < wanted:
            self._reader.feed(self._socket.recv(1 << 18))
            while (answer := self._reader.gets()) is not False:
                if isinstance(answer, hiredis.ReplyError):
                    raise BenchmarkError(f"Valkey refuses: {answer}")
                answers.append(answer)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def command(*words: bytes) -> bytes:
    """One command as it goes over the wire."""
    return b"*%d\r\n%s" % (len(words), b"".join([b"$%d\r\n%s\r\n" % (len(word), word) for word in words]))


class Measured:
    """A server, and what it has used."""

    def __init__(self, server: Valkey) -> None:
        self.server = server
        self.line = Line(server.port)

    @property
    def url(self) -> str:
        """Where clients find it."""
        return self.server.url

    @property
    def version(self) -> str:
        """As it says itself, with its allocator."""
        return f"Valkey {self.server.record.version} (allocator: {allocator(self.server)})"

    def cpu(self) -> float:
        """Seconds of processor time that it has used, all its threads together."""
        told = self._info("cpu")
        return float(told["used_cpu_user"]) + float(told["used_cpu_sys"])

    def memory(self) -> int:
        """Bytes that it has allocated, less what it keeps for connections.

        Large values are given back in the background, also by DEL: what is still on its way would be counted.
        """
        end = time.monotonic() + PATIENCE
        while int((told := self._info("memory"))["lazyfree_pending_objects"]):
            if time.monotonic() > end:
                raise BenchmarkError("Valkey does not give memory back")
            time.sleep(0.01)
        return int(told["used_memory"]) - int(told["mem_clients_normal"])

    def calls(self, name: str) -> int:
        """How often a command was called since its statistics were reset, also by functions."""
        told = self._info("commandstats").get(f"cmdstat_{name}", "calls=0,")
        return int(told.removeprefix("calls=").partition(",")[0])

    def empty(self) -> None:
        """Forget everything."""
        self.line.ask([command(b"FLUSHALL", b"SYNC")])

    def _info(self, section: str) -> dict[str, str]:
        text = self.line.ask([command(b"INFO", section.encode())])[0].decode()
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


@contextlib.contextmanager
def valkey(directory: Path, cores: set[int] | None = None) -> Iterator[Measured]:
    """A server that keeps nothing on disk, on these cores only; gone after this."""
    server = Valkey(directory / "valkey", preload=jemalloc())
    with on_cores(cores):
        server.start()
    try:
        measured = Measured(server)
        yield measured
        measured.line.close()
    finally:
        server.wipe()


class _Slots:
    """The table of slots, in memory in place of the durable one."""

    def __init__(self) -> None:
        self._ranges: list[SlotRange] = []

    async def slots(self) -> list[SlotRange]:
        return self._ranges

    async def renew_slots(
        self, seen: Sequence[SlotRange], lost: Sequence[LostRange], above: int, now: int, every: int
    ) -> list[SlotRange] | None:
        highest = max([above, *(one.number for one in self._ranges)])
        self._ranges = renewed(self._ranges, lost, Generation(highest + 1))
        return self._ranges


async def hot_state(url: str, prefix: str = "", replica_url: str = "") -> ExclusiveHot:
    """Readstate's hot state there, without a durable store; with a write replica, if one is named."""
    options = HotOptions(url=url, prefix=prefix, unread_cap=10_000, ledger_ttl=2_592_000, replica_url=replica_url)
    counter = DurableCounter(1, _Slots())
    hot = ExclusiveHot(options, counter, lambda: time.time_ns() // 1_000_000, ValkeyTimings(), position=NO_POSITION)
    await hot.clear()
    return hot
