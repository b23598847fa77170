"""Rate limits: one token bucket per principal."""

import time
from collections.abc import Callable

from readstate import telemetry
from readstate.domain.errors import TooManyDevices
from readstate.gateway.auth.authenticator import Principal
from readstate.gateway.http.problems import TooOften
from readstate.settings import Settings

BURST = 4
"""A burst may take this many seconds' worth of tokens."""

_SWEEP_FROM = 1_024
_ROUNDING = 1e-9


class RateLimiter:
    """Lets each key take `rate` tokens a second on average, and `burst` seconds' worth at once.

    Keeps one number per key: the time at which its bucket is full again. Once that time has passed, the key equals an
    unknown one and is dropped, so memory holds at most about twice the keys of the last `burst` seconds.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic, *, burst: float = BURST) -> None:
        self._interval = 1 / rate
        self._slack = (max(1.0, burst * rate) - 1) * self._interval + _ROUNDING
        self._clock = clock
        self._full_at: dict[str, float] = {}
        self._sweep_at = _SWEEP_FROM

    def take(self, key: str) -> float:
        """Take a token. Returns 0, or the seconds until one is available."""
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


class UserLimits:
    """The rate limits of one process. Requests, frames and new connections of a user share one bucket."""

    def __init__(self, settings: Settings) -> None:
        self._users = RateLimiter(settings.rate_limit) if settings.rate_limit else None
        self._services = RateLimiter(settings.service_rate_limit) if settings.service_rate_limit else None
        self._max_devices = settings.max_devices
        self._devices: dict[str, int] = {}

    def take(self, principal: Principal) -> None:
        """Take a token from the principal's bucket, or raise TooOften."""
        limiter = self._services if principal.user is None else self._users
        if limiter is not None and (wait := limiter.take(principal.bucket)):
            telemetry.RATE_LIMITED.labels("service" if principal.user is None else "user").inc()
            raise TooOften(wait)

    def connected(self, user: str) -> None:
        """Count a live connection of the user; TooManyDevices if it exceeds the limit."""
        count = self._devices.get(user, 0)
        if self._max_devices and count >= self._max_devices:
            raise TooManyDevices(f"{count} devices of this user are connected, the most that may be at once.")
        self._devices[user] = count + 1

    def disconnected(self, user: str) -> None:
        """Uncount a live connection. Does nothing for an empty user, whose connection was not counted."""
        count = self._devices.pop(user, 0)
        if count > 1:
            self._devices[user] = count - 1
