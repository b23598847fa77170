"""What became of a request: the effect of an event that was appended, or why one of many was refused."""

from collections.abc import Awaitable
from typing import TypeVar

from readstate.domain.errors import NotYet, ReadstateError, Unavailable
from readstate.domain.facts import Effect

T = TypeVar("T")


def done(effect: Effect | None) -> Effect:
    """Return the effect. Raises NotYet while it is unknown, or the error that refused the event."""
    if effect is None:
        raise NotYet
    if effect.error is not None:
        raise effect.error
    return effect


async def or_refusal(work: Awaitable[T]) -> T | ReadstateError:
    """The result, or the error. Raises only Unavailable: the caller can retry the whole request."""
    try:
        return await work
    except Unavailable:
        raise
    except ReadstateError as error:
        return error
