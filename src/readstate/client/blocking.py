"""The same calls for programs without an event loop: a thread runs the async client."""

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx

from .calls import Client
from .retries import Retries

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    call: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["SyncClient", P], T]:
    """The call of the async client, but it returns when it is done."""

    @functools.wraps(call)
    def run(self: "SyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run(call(self.client, *args, **kwargs))

    return run


def _each(
    call: Callable[Concatenate[Client, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate["SyncClient", P], Iterator[T]]:
    """The pieces of the async client's answer, one at a time."""

    @functools.wraps(call)
    def run(self: "SyncClient", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        pieces = call(self.client, *args, **kwargs)
        nothing_left = object()
        try:
            while (piece := self.run(_next(pieces, nothing_left))) is not nothing_left:
                yield piece  # type: ignore[misc]
        finally:
            if not self._loop.is_closed():
                self.run(pieces.aclose())

    return run


async def _next(pieces: AsyncGenerator[T, None], nothing_left: object) -> T | object:
    return await anext(pieces, nothing_left)


class SyncClient:
    """Every call of the service, each returning when it is done. Use it with `with`, or close it.

    Threads may share it: each call waits for its own answer.
    """

    def __init__(
        self,
        base_url: str,
        key: str | None,
        *,
        retries: Retries | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.client = Client(base_url, key, retries=retries, transport=transport)
        """The async client that does the work, in the loop of this one's thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="readstate-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work of the async client and wait for it; an interrupted wait cancels the work."""
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("this client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Close the connections and end the thread; calls of other threads that are under way are cancelled."""
        if self._loop.is_closed():
            return
        self.run(self._finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _finish(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self.client.aclose()

    put_channel = _blocking(Client.put_channel)
    get_channel = _blocking(Client.get_channel)
    delete_channel = _blocking(Client.delete_channel)
    change_members = _blocking(Client.change_members)
    members = _blocking(Client.members)
    send = _blocking(Client.send)
    send_many = _blocking(Client.send_many)
    edit_message = _blocking(Client.edit_message)
    delete_message = _blocking(Client.delete_message)
    seen = _blocking(Client.seen)
    receipts = _blocking(Client.receipts)
    read = _blocking(Client.read)
    mark_unread = _blocking(Client.mark_unread)
    read_many = _blocking(Client.read_many)
    read_all = _blocking(Client.read_all)
    undo = _blocking(Client.undo)
    unread = _blocking(Client.unread)
    sync = _blocking(Client.sync)
    sync_pages = _each(Client.sync_pages)
    unread_messages = _blocking(Client.unread_messages)
    totals = _blocking(Client.totals)
    explain = _blocking(Client.explain)
    recount = _blocking(Client.recount)
    inbox = _blocking(Client.inbox)
    badge = _blocking(Client.badge)
    tap = _blocking(Client.tap)
    threads = _blocking(Client.threads)
    follow = _blocking(Client.follow)
    unfollow = _blocking(Client.unfollow)
    read_thread = _blocking(Client.read_thread)
    get_preferences = _blocking(Client.get_preferences)
    put_preferences = _blocking(Client.put_preferences)
    get_user_preferences = _blocking(Client.get_user_preferences)
    put_user_preferences = _blocking(Client.put_user_preferences)
    presence = _blocking(Client.presence)
    put_presence = _blocking(Client.put_presence)
    export = _each(Client.export)
    import_lines = _blocking(Client.import_lines)
    erase_user = _blocking(Client.erase_user)
    ready = _blocking(Client.ready)
