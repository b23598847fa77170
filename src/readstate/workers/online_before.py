"""Asks who is online before a transaction, so that no lock is held while another server is asked.

Whom a message goes to is known for sure only inside the transaction. So the receivers of earlier messages are asked
about, and those whom the events name. If the transaction finds others, for example members who have joined since, or
if the answer has become too old, it is rolled back, all are asked about, and it is repeated. A decision is taken only
in a transaction that commits, so it is still taken once.
"""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from readstate.domain.events import Delivery, EditEvent, MessageEvent
from readstate.domain.facts import Effect, named_by_id
from readstate.domain.hot_updates import FanOut
from readstate.domain.rooms import thread_room
from readstate.ports import Online, Presence, Present

T = TypeVar("T")

MOST_SECONDS = 1.0
"""The age of an answer when a decision relies on it. Doubles each time that is exceeded: a slow database may go on."""
MOST_ROOMS = 2_000
"""Rooms of which the receivers are remembered."""


class NotAskedAbout(Exception):
    def __init__(self, users: Collection[str]) -> None:
        super().__init__(f"{len(users)} users were not asked about")
        self.users = users


class AskedTooLongAgo(NotAskedAbout):
    pass


@dataclass(eq=False, repr=False)
class OnlineBefore:
    _presence: Presence
    _clock: Callable[[], float] = time.monotonic
    _receivers: OrderedDict[str, tuple[str, ...]] = field(default_factory=OrderedDict)
    """By room, whom its last message went to. It may be out of date: then a transaction is repeated."""

    async def during(self, deliveries: Sequence[Delivery], transaction: Callable[[Online], Awaitable[T]]) -> T:
        if self._presence.is_local:
            return await transaction(self._presence.online)
        users = self._expected(deliveries)
        most_seconds = MOST_SECONDS
        while True:
            at, present = self._clock(), await self._presence.online(users)
            try:
                return await transaction(self._only(users, present, at + most_seconds))
            except NotAskedAbout as error:
                users |= set(error.users)
                if isinstance(error, AskedTooLongAgo):
                    most_seconds *= 2

    def learn(self, effects: Sequence[Effect]) -> None:
        """Remember whom these messages went to."""
        for effect in effects:
            for update in effect.user_updates:
                if isinstance(update, FanOut):
                    self._receivers[update.channel_id] = update.users
                    self._receivers.move_to_end(update.channel_id)
        while len(self._receivers) > MOST_ROOMS:
            self._receivers.popitem(last=False)

    def _expected(self, deliveries: Sequence[Delivery]) -> set[str]:
        users: set[str] = set()
        rooms: set[str] = set()
        for event in (one.event for one in deliveries):
            if isinstance(event, MessageEvent | EditEvent):
                rooms.add(event.channel_id)
            if isinstance(event, MessageEvent):
                users |= named_by_id(event.mentions)
                if event.thread_id is not None:
                    rooms.add(thread_room(event.channel_id, event.thread_id))
                    users.add(event.sender_id)
        return users.union(*(self._receivers.get(room, ()) for room in rooms))

    def _only(self, known: Collection[str], present: Present, until: float) -> Online:
        """Answers about known users; ends the transaction if another one matters, or if it is too late."""

        async def online(users: Collection[str]) -> Present:
            if self._clock() > until:
                raise AskedTooLongAgo(users)
            if missing := set(users).difference(known):
                raise NotAskedAbout(missing)
            return present

        return online
