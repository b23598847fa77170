"""Requests that wait for what becomes of their events."""

import asyncio
import itertools
import time
from collections.abc import Sequence

from readstate.domain.announcements import Announcement, Outcome
from readstate.domain.errors import of_code
from readstate.domain.facts import Effect


class Wait:
    """Of one request: an effect for each of its events, or None as long as it is not known."""

    def __init__(self, refs: Sequence[str]) -> None:
        self.refs = refs
        self.effects: list[Effect | None] = [None] * len(refs)
        self.left = len(refs)
        self.done = asyncio.Event()


class Waits:
    """All that wait in this process. References are unlike those of its earlier life: those are still on their way."""

    def __init__(self, instance_id: str) -> None:
        self._instance_id = instance_id
        self._numbers = itertools.count(time.time_ns())
        self._waiting: dict[str, tuple[Wait, int]] = {}

    def open(self, events: int) -> Wait:
        """Give references to so many events, and expect their outcomes until it is closed."""
        wait = Wait([f"{self._instance_id}:{number}" for number in itertools.islice(self._numbers, events)])
        self._waiting |= {ref: (wait, index) for index, ref in enumerate(wait.refs)}
        return wait

    def close(self, wait: Wait) -> None:
        """Expect nothing more."""
        for ref in wait.refs:
            self._waiting.pop(ref, None)

    def on_announcements(self, announcements: Sequence[Announcement]) -> None:
        """Take the outcomes among them that somebody waits for here."""
        for announcement in announcements:
            if isinstance(announcement, Outcome) and (found := self._waiting.pop(announcement.ref, None)):
                wait, index = found
                wait.effects[index] = effect_of(announcement)
                wait.left -= 1
                if not wait.left:
                    wait.done.set()

    def give_up(self) -> None:
        """Let everybody go with what is known."""
        for wait, _ in list(self._waiting.values()):
            wait.done.set()


def effect_of(outcome: Outcome) -> Effect:
    """What became of an event, as far as whoever waits has to know."""
    error = None if outcome.code is None else of_code(outcome.code, outcome.detail, outcome.field)
    return Effect(
        outcome.message, outcome.channel, outcome.duplicate, error, added=outcome.added, removed=outcome.removed
    )
