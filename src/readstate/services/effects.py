"""Checks the effects of events that were appended to a channel's order."""

from readstate.domain.errors import NotYet
from readstate.domain.facts import Effect


def done(effect: Effect | None) -> Effect:
    """Return the effect. Raises NotYet while it is unknown, or the error that refused the event."""
    if effect is None:
        raise NotYet
    if effect.error is not None:
        raise effect.error
    return effect
