"""Ending tasks."""

import asyncio
from typing import Any

AGAIN_SECONDS = 1.0


async def cancel(task: "asyncio.Task[Any]") -> None:
    """Cancel a task and wait until it has ended. If it ends with an error, asyncio logs it."""
    while not task.done():
        task.cancel()  # repeated: some libraries swallow the first
        await asyncio.wait([task], timeout=AGAIN_SECONDS)


def retrieve_exception(task: "asyncio.Future[Any]") -> None:
    """A done callback that marks the failure of a task as retrieved, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()
