"""Connections that end, and users whose last device is gone."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from readstate.domain.errors import Unavailable
from readstate.domain.model import NO_GENERATION, Generation, Undelivered
from readstate.ports import Departure

from .calls import LEAVE, Key, PresenceCalls
from .deliveries import Deliveries, pack, parse
from .devices import Device, OwnDevices, Written
from .instances import ListedUsers


class _Ended(NamedTuple):
    """A connection that has ended."""

    user: str
    key: Key
    generation: Generation
    """The generation in which the hot store accepted the connection; 0: never."""
    sent: tuple[Undelivered, ...] = ()
    """Unproven messages that were sent on it, if it was the user's last connection here."""
    was_lost: bool = False
    """Whether the hot store lacked some of this process's state then."""
    proven: frozenset[Undelivered] = frozenset()
    """Proven messages that the hot store may still list as unproven."""


class Departures:
    def __init__(
        self,
        calls: PresenceCalls,
        own: OwnDevices,
        deliveries: Deliveries,
        users: ListedUsers,
        join: Callable[[], Awaitable[None]],
    ) -> None:
        self._calls = calls
        self._backend = calls.backend
        self._own = own
        self._deliveries = deliveries
        self._users = users
        self._join = join
        self._in_flight: Counter[str] = Counter()
        """Per user, how many disconnects are in flight."""
        self._unreported: list[_Ended] = []
        """Connections whose end could not be reported to the hot store yet."""
        self._departed: list[Departure] = []
        """Departures that the hot store has handed over and `expire` has not returned yet."""

    def users(self) -> set[str]:
        """Those of whom the hot store does not know yet that a connection has ended."""
        return {*self._in_flight, *(one.user for one in self._unreported)}

    async def disconnect(self, user: str, device: str, connection: str = "") -> Departure | None:
        sent = self._deliveries.sent_to(user)
        own = self._remove(user, (device, connection))
        ended = _Ended(
            user,
            (device, connection),
            own.generation if own is not None else NO_GENERATION,
            () if self._own.is_connected(user) else sent,
            self._own.are_lost,
            self._deliveries.proven_by(user),
        )
        self._in_flight[user] += 1
        try:
            return await self._report(ended)
        except BaseException as error:
            if connection:  # it is reported only here: retry when the hot store is back
                self._unreported.append(ended)
                if isinstance(error, Unavailable):
                    return None
            raise
        finally:
            self._in_flight[user] -= 1
            if not self._in_flight[user]:
                del self._in_flight[user]
            self._users.changed(user)

    def written_late(self, devices: Iterable[Written]) -> None:
        """These were written. Their connections may have ended meanwhile."""
        for user, key, one in devices:
            if key[1] and not self._own.has(user, key):
                self._unreported.append(_Ended(user, key, one.generation))

    async def _report(self, ended: _Ended) -> Departure | None:
        while True:
            known = await self._calls.settled([ended.user])
            number = self._calls.generation_of(ended.user, known)
            item = [self._calls.entry(ended.key), *map(pack, ended.proven)]
            [answer] = (await self._calls.decide(LEAVE, {ended.user: item}, known)).values()
            if answer[0] != b"lost":
                sent = () if ended.generation == number and not ended.was_lost else ended.sent
                return self._departure(ended.user, answer, sent)
            if await self._calls.stands(known, [ended.user]):
                # The hot store knows no device of the user in this generation. If this connection was written in an
                # earlier one, that was lost, and it was the last one. Otherwise the departure was already handed to a
                # caller, or the answer to this process was lost.
                if ended.generation not in {0, number}:
                    return self._deliveries.depart(ended.user, self._backend.clock(), ended.sent)
                return next(iter(await self._leave([ended.user])), None)

    async def expire(self, user: str | None = None) -> list[Departure]:
        if user is not None:
            return await self._leave([user])
        while self._unreported:
            ended = self._unreported[0]
            gone = await self._report(ended)
            self._unreported.remove(ended)
            self._users.changed(ended.user)
            if gone is not None:
                self._departed.append(gone)
        now = self._backend.clock()
        users = {one.user for one in self._own.overdue(now)}
        await self._expire_users(users)
        for one in self._own.overdue(now):  # a device may have been renewed meanwhile
            if one.user in users:
                self._remove(one.user, one.key)
        for instance in await self._calls.instances.over():
            await self._expire_instance(instance)
        departed, self._departed = self._departed, []
        returned = {one.user_id for one in departed}
        unstored = {user: kept for user, kept in self._deliveries.unstored.items() if user not in returned}
        return [*departed, *(Departure(user, 0, tuple(kept)) for user, kept in unstored.items())]

    async def _expire_instance(self, instance: str) -> None:
        while users := await self._users.of(instance):
            await self._expire_users(users)
            # Their unproven messages are not durable, and this process may die too.
            if unstored := [user for user in users if user in self._deliveries.unstored]:
                await self._join()
                await self._users.adopt(unstored)
            await self._users.expired(instance, users)
        await self._calls.instances.forget(instance)

    async def _expire_users(self, users: Iterable[str]) -> None:
        """The departures survive an error in a later step of `expire`."""
        gone = await self._leave(users)
        self._departed.extend(gone)

    async def _leave(self, users: Iterable[str]) -> list[Departure]:
        """Drop entries of these users that are overdue or belong to instances that are gone."""
        items = {user: [""] for user in users}
        answers = await self._calls.decide(LEAVE, items, await self._calls.settled(items))
        return [gone for user, answer in answers.items() if (gone := self._departure(user, answer)) is not None]

    def _departure(self, user: str, answer: list[bytes], sent: Iterable[Undelivered] = ()) -> Departure | None:
        """As a function has answered, with what was sent and the hot store may lack."""
        if answer[0] != b"gone":
            return None
        return self._deliveries.depart(user, int(answer[1]), [*(parse(user, one) for one in answer[2:]), *sent])

    def _remove(self, user: str, key: Key) -> Device | None:
        gone = self._own.remove(user, key)
        if not self._own.is_connected(user):
            self._deliveries.forget_sent(user)
        return gone
