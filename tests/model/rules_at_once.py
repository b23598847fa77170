"""Things that happen at once, in an order that the test decides."""

from collections.abc import Callable, Coroutine
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from readstate.api import ChangeMembers, MarkUnread, NewMessage, PutPreferences, ReadTarget
from readstate.domain.errors import ReadstateError

from .comparing import CHANNELS, USERS, attempt
from .picking import Picking
from .strategies import Fields, counts, nth_newest, orders, rooms, targets, things_to_do, user_rooms, users

Operation = tuple[Coroutine[Any, Any, Any], Callable[[], Any]]


class AtOnceRules(Picking):
    """Whatever happens at once ends as if it had happened one after the other."""

    @rule(user_room=user_rooms, times=st.integers(2, 4), order=orders)
    def send_the_same_from_many_places_at_once(self, user_room: int, times: int, order: list[int]) -> None:
        draft = self._complete({"user_room": user_room})
        sends = [self.service.messages.send([NewMessage(**draft)]) for _ in range(times)]
        self.sound = False
        results = self.run(self.conductor.at_once(sends, order))
        statuses = sorted(result.status for [result] in results)
        assert statuses == sorted(self._send_naively(draft).status for _ in range(times))

    @rule(room=rooms, reads=st.lists(st.tuples(users, targets(forms=())), min_size=2, max_size=6), order=orders)
    def read_from_many_places_at_once(self, room: int, reads: list[tuple[str, Fields]], order: list[int]) -> None:
        """Reads merge: in whatever order they land, the end is the same."""
        channel = self.room(room)
        aimed = [(user, self.aim(channel, target)) for user, target in reads]
        self._at_once([self._reading(user, channel, target) for user, target in aimed], order)

    @rule(work=st.tuples(*[st.tuples(things_to_do, users, nth_newest) for _ in CHANNELS]), order=orders)
    def different_things_in_different_channels_at_once(
        self, work: list[tuple[str, str, int]], order: list[int]
    ) -> None:
        """Channels don't disturb each other, even though a user's state spans them all."""
        zipped = zip(CHANNELS, work, strict=True)
        self._at_once([self._thing_to_do(what, user, channel, n) for channel, (what, user, n) in zipped], order)

    @rule(room=rooms, back=nth_newest, deleted=nth_newest, count=counts, order=orders, shift=st.integers(0, 4))
    def different_users_in_one_channel_at_once(
        self, room: int, back: int, deleted: int, count: str | None, order: list[int], shift: int
    ) -> None:
        """One writes, one marks unread, one prefers, others read, something is deleted: nobody is in the way."""
        channel = self.room(room)
        writer, rewinder, *readers = USERS[shift:] + USERS[:shift]
        work = [self._thing_to_do("send", writer, channel, back), self._preferring(readers[0], channel, count)]
        work += [self._reading(reader, channel, {"up_to": self.pick(channel, back)}) for reader in readers]
        work += [self._reading(reader, channel, {"messages": (self.pick(channel, deleted),)}) for reader in readers]
        work.append(self._thing_to_do("mark unread", rewinder, channel, back))
        if self.pick(channel, deleted) != self.pick(channel, back):
            work.append(self._thing_to_do("delete", writer, channel, deleted))
        self._at_once(work, order)

    def _at_once(self, operations: list[Operation], order: list[int]) -> None:
        """All of them, while everyone looks and memory is lost; what is refused is refused for the same reason."""
        self.sound = False
        looks = [look(user) for user in USERS for look in self.looks()]
        losses = [self.service.evict(), self.service.evict()]
        work = [real for real, _ in operations]
        answers = self.run(self.conductor.at_once([*work, *looks, *losses], order))
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, ReadstateError):
                raise answer
        for (_, naive), answer in zip(operations, answers, strict=False):
            assert getattr(answer, "code", None) == attempt(naive)[1], answer

    def _thing_to_do(self, what: str, user: str, channel: str, n: int) -> Operation:
        match what:
            case "send":
                self.sent += 1
                draft: Fields = {"channel_id": channel, "sender_id": user, "outside": n % 2 == 1}
                draft["mentions"] = ("@channel",) if n % 3 else tuple(USERS)
                batch = [draft | {"id": f"at once {self.sent}-{i}"} for i in range(1 + n % 3)]
                messages = [NewMessage(**each) for each in batch]
                return self.service.messages.send(messages), lambda: [self._send_naively(d) for d in batch]
            case "mark unread":
                message = self.pick(channel, n)
                real = self.service.reads.mark_unread(user, channel, MarkUnread(from_=message))
                return real, lambda: self.naive.mark_unread(user, channel, message)
            case "delete":
                message = self.pick(channel, n)
                delete = self.service.messages.delete(channel, message)
                return delete, lambda: self.naive.delete(channel, message)
            case "join":
                change = self.service.channels.change_members(channel, ChangeMembers(add=(user,), history=n))
                return change, lambda: self.naive.change_members(channel, [user], history=n)
            case "leave":
                change = self.service.channels.change_members(channel, ChangeMembers(remove=(user,)))
                return change, lambda: self.naive.change_members(channel, remove=[user])
            case "reply":
                self.sent += 1
                root = self.root(channel, n)
                answer: Fields = {"channel_id": channel, "sender_id": user, "thread_id": root, "outside": True}
                answer |= {"id": f"at once {self.sent}", "mentions": tuple(USERS[n % 5 :])}
                return self.service.messages.send([NewMessage(**answer)]), lambda: self._send_naively(answer)
            case "follow":
                root = self.root(channel, n)
                return (
                    self.service.threads.follow(user, channel, root, on=n % 2 == 0),
                    lambda: self.naive.follow(user, channel, root, n % 2 == 0),
                )
            case "prefer":
                return self._preferring(user, channel, "mentions" if n % 2 else "none")
        return self._reading(user, channel, {"up_to": self.pick(channel, n)})

    def _preferring(self, user: str, channel: str, count: str | None) -> Operation:
        wanted = PutPreferences() if count is None else PutPreferences(count=count)  # type: ignore[arg-type]
        real = self.service.preferences.put(user, channel, wanted)
        return real, lambda: self.naive.put_preferences(user, channel, count=count)

    def _reading(self, user: str, channel: str, target: Fields) -> Operation:
        real = self.service.reads.mark_read(user, channel, ReadTarget(**target))
        return real, self._reading_naively(user, channel, target)

    def _reading_naively(self, user: str, channel: str, target: Fields) -> Callable[[], bool]:
        return lambda: self.naive.mark_read(user, channel, **target)

    def looks(self) -> list[Callable[[str], Coroutine[Any, Any, Any]]]:
        """What a user may ask for at any moment."""
        service = self.service
        return [service.unread.sync, service.badge.get, service.inbox.page, service.threads.panel]
