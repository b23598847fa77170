"""When a call is tried again, and after how long."""

import asyncio
import random
from dataclasses import dataclass

from .errors import ApiError, Interrupted, RateLimited, RequestTimeout, Unavailable, Unreachable, by_code


@dataclass(frozen=True)
class Retries:
    """How patient a client is. A call ends with the last error when its tries or its time are used up."""

    tries: int = 6
    """How often a call is tried; 1: never again."""
    deadline: float = 30.0
    """Seconds that one call may take, with all its tries and pauses."""
    first_pause: float = 0.1
    """Most seconds before the second try. It doubles with each try; chance takes it down to as little as 0."""
    longest_pause: float = 5.0

    def pause(self, error: ApiError, left: float, *, repeatable: bool) -> float | None:
        """Seconds to wait before the next try; None if there must be none."""
        if error.tries >= self.tries or not _is_safe(error, repeatable=repeatable):
            return None
        # Clients that failed together must not come back together.
        chance = random.uniform(0, min(self.longest_pause, self.first_pause * 2 ** (error.tries - 1)))
        seconds = (error.retry_after or 0) + chance
        return seconds if seconds < left else None

    async def wait(self, seconds: float) -> None:
        """Let the time pass."""
        await asyncio.sleep(seconds)


def _is_safe(error: ApiError, *, repeatable: bool) -> bool:
    """Whether a second try cannot do a second time what the first one may have done."""
    if isinstance(error, Unreachable):
        return error.retry
    if isinstance(error, RateLimited | RequestTimeout | Unavailable):
        # Readstate says so only when nothing was changed; a proxy in front of it may not know.
        return error.code in by_code() or repeatable
    return repeatable and isinstance(error, Interrupted)
