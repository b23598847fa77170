"""Live devices in a storm: a sync first, then only events, over cuts and comings-back to whichever server is there.

What such a device shows in the end, in peace, is what a device sees that comes for the first time.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
from websockets.exceptions import WebSocketException

from tests.conftest import Chat
from tests.live.device import Cut, Device, Frame, open_device
from tests.live.state import State, comparable, differences, fetch

from .records import Records, Violation

OWNERS = ("ann", "ben", "joe")
"""Somebody with a device is not away; of these nobody says how many wrote while they were."""
PATIENCE_SECONDS = 3.0
"""So long a device waits for an answer before it goes elsewhere; in peace it stays where it is."""
AGREE_SECONDS = 40.0
LEAVES = 0.1
"""How often a device that has nothing to complain of is gone without a word."""


class Away(Exception):
    """The service says that it can't, now."""


class Patient(Chat):
    """Tells what the service can't do now from what it does wrong."""

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        answer = await super().call(method, path, body, **options)
        if answer.status_code in {429, 503}:
            raise Away(answer.text)
        return answer


GONE = (Cut, Away, OSError, TimeoutError, WebSocketException, httpx.TransportError)


class LiveDevice:
    """A device of one user, and what it shows."""

    def __init__(self, user: str, seed: int, urls: Sequence[str], records: Records, stopping: asyncio.Event) -> None:
        self.user = user
        self._dice = random.Random(f"device of {user} {seed}")
        self._urls = urls
        self._records = records
        self._stopping = stopping
        self._state = State(user)
        self._cursor: str | None = None
        """None: it must sync first."""
        self._device: Device | None = None

    async def run(self) -> None:
        """Is there, as well as it can, until it is cancelled."""
        try:
            while True:
                with contextlib.suppress(*GONE):
                    await self._stay(self._dice.choice(self._urls))
                self._records.count("device cut")
                await asyncio.sleep(self._dice.uniform(0.05, 0.3))
        except AssertionError as error:  # also whatever it can't take
            self._records.violations.append(f"device of {self.user}: {error}")

    async def _stay(self, url: str) -> None:
        """Connects with what it knows, and returns when it has to come again."""
        if self._cursor is None:
            async with asyncio.timeout(PATIENCE_SECONDS), self._chat(url) as chat:
                self._state, _, self._cursor = await fetch(chat, self.user)
            self._records.count("device sync")
        device = await open_device(url, self.user, hello=False, on_frame=self._take, open_timeout=PATIENCE_SECONDS)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await device.hello(resume=self._cursor)
            self._device = device
            self._records.count("device back")
            while not self._state.must_sync and await self._is_content(device):
                pass
        finally:
            self._device = None
            await device.cut()
            if self._state.must_sync:
                self._cursor = None

    def _take(self, frame: Frame) -> None:
        self._state.apply(frame)
        self._cursor = frame.get("resume") or self._cursor

    async def _is_content(self, device: Device) -> bool:
        """Whether it stays: all that was announced has come, and it does not lose its way."""
        async with asyncio.timeout(None if self._stopping.is_set() else PATIENCE_SECONDS):
            await device.quiet()
        await asyncio.sleep(self._dice.uniform(0.1, 1.0))
        return self._stopping.is_set() or self._dice.random() >= LEAVES

    async def comes_to_agree(self) -> None:
        """In peace it shows what a sync made anew says."""
        end, wrong = time.monotonic() + AGREE_SECONDS, ["it is not connected"]
        while time.monotonic() < end:
            with contextlib.suppress(*GONE):
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + end - time.monotonic()):
                    wrong = await self._differences()
                if not wrong:
                    return
            await asyncio.sleep(0.1)
        heard = self._device.frames[-20:] if self._device else None
        raise Violation(f"device of {self.user} does not show what is there: {wrong}; heard {heard}")

    async def _differences(self) -> list[str]:
        device = self._device
        if device is None:
            return ["it is not connected"]
        await device.quiet()
        async with self._chat(self._dice.choice(self._urls)) as chat:
            truth, totals, _ = await fetch(chat, self.user)
        return differences(comparable(self._state.view()), comparable(truth.view() | totals))

    @asynccontextmanager
    async def _chat(self, url: str) -> AsyncIterator[Patient]:
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS) as http:
            yield Patient(http)


@asynccontextmanager
async def devices(
    seed: int, urls: Sequence[str], records: Records, stopping: asyncio.Event
) -> AsyncIterator[list[LiveDevice]]:
    """One for each of the owners, there until the block ends."""
    all_of_them = [LiveDevice(user, seed, urls, records, stopping) for user in OWNERS]
    tasks = [asyncio.create_task(device.run()) for device in all_of_them]
    try:
        yield all_of_them
    finally:
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                records.violations.append(f"a device has failed: {ended!r}")
