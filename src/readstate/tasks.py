"""Ending tasks."""

import asyncio
from typing import Any

AGAIN_SECONDS = 1.0


async def cancel(task: "asyncio.Task[Any]") -> None:
    """Tell a task to end, until it has. Should it end by an error, asyncio logs that."""
    while not task.done():
        task.cancel()  # again: some libraries swallow the first
        await asyncio.wait([task], timeout=AGAIN_SECONDS)
