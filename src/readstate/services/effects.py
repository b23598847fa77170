"""What became of an event that was put into a channel's order."""

from readstate.domain.errors import NotYet
from readstate.domain.facts import Effect


def done(effect: Effect | None) -> Effect:
    """The effect, if it is there and is no refusal."""
    if effect is None:
        raise NotYet
    if effect.error is not None:
        raise effect.error
    return effect
