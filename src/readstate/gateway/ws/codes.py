"""Close codes of a live connection."""

from readstate.domain.errors import ReadstateError

NOT_AUTHENTICATED = 4401
TOKEN_EXPIRED = 4403
TOO_SLOW = 4408
TOO_MANY_DEVICES = 4409
TOO_MANY_FRAMES = 4429
TOO_LARGE = 1009
RESTARTING = 1012
TRY_AGAIN = 1013

LOST = frozenset({1005, 1006, 1011, TRY_AGAIN, TOO_SLOW, TOKEN_EXPIRED})
"""Close codes without a proper goodbye: the last frames may not have arrived."""
COUNTED = LOST | {1000, 1001, TOO_LARGE, RESTARTING, NOT_AUTHENTICATED, TOO_MANY_DEVICES, TOO_MANY_FRAMES}
"""Close codes with their own label in the metrics. A device may close with any other code."""


class Closed(Exception):
    """Close the connection with a code; with an error, after a frame that tells it."""

    def __init__(self, code: int, reason: str, error: ReadstateError | None = None) -> None:
        self.code = code
        self.reason = reason
        self.error = error
