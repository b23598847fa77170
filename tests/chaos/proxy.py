"""A network on loopback that can be cut: connections to a server go through here."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from readstate.stack.ports import HOST

T = TypeVar("T")
CHUNK = 65_536


class Network:
    """The loop in which all proxies of a process run, in a thread of its own: nothing else holds it up."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="network", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Does something in the loop and waits for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def proxy(self, port: Callable[[], int]) -> "Proxy":
        """A new port that leads to another one, which may be known later."""
        proxy = Proxy(self, port)
        self.run(proxy.listen())
        return proxy


class Proxy:
    """One way to one server. It can be cut (connections break, new ones are refused) and stalled (nothing arrives)."""

    def __init__(self, network: Network, target: Callable[[], int]) -> None:
        self._network = network
        self._target = target
        self._socket = socket.create_server((HOST, 0))
        self._is_cut = False
        self._flows: asyncio.Event | None = None
        self._delay = 0.0
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def cut(self) -> None:
        """Breaks every connection and takes no new one."""
        self._network.run(self._set(is_cut=True))

    def stall(self) -> None:
        """Holds back all that is under way, and all that comes."""
        self._network.run(self._set(flows=False))

    def delay(self, seconds: float) -> None:
        """Lets everything arrive so much later."""
        self._network.run(self._set(delay=seconds))

    def heal(self) -> None:
        """As if nothing had been. What was held back arrives."""
        self._network.run(self._set())

    # ------------------------------------------------------------ in the loop

    async def listen(self) -> None:
        """Begins."""
        self._flows = asyncio.Event()
        self._flows.set()
        await asyncio.start_server(self._connect, sock=self._socket)

    async def _set(self, is_cut: bool = False, flows: bool = True, delay: float = 0.0) -> None:
        assert self._flows is not None
        self._is_cut, self._delay = is_cut, delay
        if flows:
            self._flows.set()
        else:
            self._flows.clear()
        if is_cut:
            for writer in self._open:
                writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            there, here = await asyncio.open_connection(HOST, self._target())
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, here}
        self._open |= ends
        try:
            await asyncio.gather(self._pump(reader, here), self._pump(there, writer))
        finally:
            self._open -= ends
            for end in ends:
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """What comes here goes there; when one side ends, so does the other."""
        assert self._flows is not None
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._flows.wait()
                if self._delay:
                    await asyncio.sleep(self._delay)
                writer.write(data)
                await writer.drain()
        writer.close()
