"""Tasks that must end."""

import asyncio
from typing import Any


async def cancel(task: "asyncio.Task[Any]") -> None:
    """Tell a task to end and wait until it has. Tells it again: some libraries swallow the first time."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=1)
