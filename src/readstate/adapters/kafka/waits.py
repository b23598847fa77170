"""Requests that wait for the outcomes of their events (`Prefer: wait`)."""

import asyncio
import itertools
import time
from collections.abc import Sequence

from readstate.domain.announcements import Announcement, Outcome
from readstate.domain.errors import of_code
from readstate.domain.facts import Effect


class Wait:
    """One waiting request, with an effect per event; None: not known yet."""

    def __init__(self, refs: Sequence[str]) -> None:
        self.refs = refs
        self.effects: list[Effect | None] = [None] * len(refs)
        self.left = len(refs)
        self.done = asyncio.Event()


class Waits:
    """All waiting requests of this process.

    References start at the current time in ns: outcomes for an earlier process of the same instance may still arrive.
    """

    def __init__(self, instance_id: str) -> None:
        self._instance_id = instance_id
        self._numbers = itertools.count(time.time_ns())
        self._waiting: dict[str, tuple[Wait, int]] = {}

    def open(self, events: int) -> Wait:
        """Create references for this many events and expect their outcomes until `close`."""
        wait = Wait([f"{self._instance_id}:{number}" for number in itertools.islice(self._numbers, events)])
        self._waiting |= {ref: (wait, index) for index, ref in enumerate(wait.refs)}
        return wait

    def close(self, wait: Wait) -> None:
        for ref in wait.refs:
            self._waiting.pop(ref, None)

    def on_announcements(self, announcements: Sequence[Announcement]) -> None:
        for announcement in announcements:
            if isinstance(announcement, Outcome) and (found := self._waiting.pop(announcement.ref, None)):
                wait, index = found
                wait.effects[index] = effect_of(announcement)
                wait.left -= 1
                if not wait.left:
                    wait.done.set()

    def give_up(self) -> None:
        """Release every request with the effects known so far."""
        for wait, _ in list(self._waiting.values()):
            wait.done.set()


def effect_of(outcome: Outcome) -> Effect:
    """The effect as far as a waiting request needs it."""
    error = None if outcome.code is None else of_code(outcome.code, outcome.detail, outcome.field)
    return Effect(
        outcome.message, outcome.channel, outcome.duplicate, error, added=outcome.added, removed=outcome.removed
    )
