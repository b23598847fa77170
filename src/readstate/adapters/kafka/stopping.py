"""A stop that does not wait for brokers.

Calls of librdkafka block, some of them for a minute while no broker answers (a commit), and can't be interrupted. So
they run in daemon threads, which do not hold up the end of the process, and a stop has a deadline for all waits.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from queue import SimpleQueue
from typing import TypeVar

from readstate.tasks import retrieve_exception
from readstate.timings import KafkaTimings

T = TypeVar("T")


class StopDeadline:
    """Bounds all waits for Kafka from the moment when a stop begins: what Kafka has not answered by then is given up.

    A wait that begins during the stop has `timings.attempt` at least: a healthy broker answers by then.
    """

    def __init__(self, timings: KafkaTimings) -> None:
        self._timings = timings
        self._at: float | None = None
        self._waits: set[asyncio.Timeout] = set()

    def begin(self) -> None:
        """The process stops. Later calls change nothing."""
        if self._at is not None:
            return
        self._at = asyncio.get_running_loop().time() + self._timings.stop
        for wait in self._waits:
            if not wait.expired() and ((end := wait.when()) is None or end > self._at):
                wait.reschedule(self._at)

    @property
    def begun(self) -> bool:
        return self._at is not None

    def left(self, seconds: float = float("inf")) -> float:
        """How long a wait of at most `seconds` that begins now may last."""
        if self._at is None:
            return seconds
        return min(seconds, max(self._timings.attempt, self._at - asyncio.get_running_loop().time()))

    @contextlib.asynccontextmanager
    async def timeout(self, seconds: float = float("inf")) -> AsyncIterator[None]:
        """Like `asyncio.timeout`; ends sooner if a stop begins."""
        left = self.left(seconds)
        async with asyncio.timeout(None if left == float("inf") else left) as wait:
            self._waits.add(wait)
            try:
                yield
            finally:
                self._waits.discard(wait)


class DaemonThread:
    """Runs blocking calls one after another. `stop` ends it after the calls it was given, and does not wait."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.stopped = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def run(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """A call whose future is cancelled before its turn is left out."""
        if self.stopped:
            raise RuntimeError("the thread is stopped")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        answer.add_done_callback(retrieve_exception)  # the caller may have given up

        def call() -> None:
            if answer.cancelled():
                return
            try:
                result = work()
            except BaseException as error:
                report(_fail, error)
            else:
                report(_succeed, result)

        def report(how: Callable[..., None], what: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits for the answer
                loop.call_soon_threadsafe(how, answer, what)

        self._calls.put(call)
        return answer

    def stop(self) -> None:
        self.stopped = True
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # what it holds on to may be a client, which the caller wants to be gone


def in_daemon_thread(work: Callable[[], T]) -> "asyncio.Future[T]":
    """Like `asyncio.to_thread`, whose threads the end of the process waits for."""
    thread = DaemonThread("kafka-call")
    try:
        return thread.run(work)
    finally:
        thread.stop()


def _succeed(answer: "asyncio.Future[T]", result: T) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: "asyncio.Future[T]", error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
