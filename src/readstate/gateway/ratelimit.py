"""Rate limits: a token bucket for each principal."""

import time
from collections.abc import Callable

_SWEEP_FROM = 1_024
_ROUNDING = 1e-9


class RateLimiter:
    """Lets each key take `rate` a second on average, and a second's worth at once.

    Keeps one number per key: the moment at which its bucket is full again. A key whose moment has
    passed is the same as an unknown one, so such keys are dropped, and memory holds no more than
    about twice the keys of the last second.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = 1 / rate
        self._slack = (max(1.0, rate) - 1) * self._interval + _ROUNDING
        self._clock = clock
        self._full_at: dict[str, float] = {}
        self._sweep_at = _SWEEP_FROM

    def take(self, key: str) -> float:
        """Take one; 0 when it was there, else the seconds until it will be."""
        now = self._clock()
        full_at = max(self._full_at.get(key, now), now)
        wait = full_at - now - self._slack
        if wait > 0:
            return wait
        self._full_at[key] = full_at + self._interval
        if len(self._full_at) >= self._sweep_at:
            self._sweep(now)
        return 0.0

    def _sweep(self, now: float) -> None:
        self._full_at = {key: at for key, at in self._full_at.items() if at > now}
        self._sweep_at = max(_SWEEP_FROM, 2 * len(self._full_at))

    def __len__(self) -> int:
        return len(self._full_at)
