"""The same machine with few rules: what users see of each other, met often enough to meet in every combination."""

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from readstate.api import ChangeMembers, MarkUnread, PutChannel, ReadTarget

from .comparing import CHANNELS, USERS
from .conftest import stateful_settings
from .naive_people import NaivePeople
from .rules_of_people import PeopleRules
from .strategies import histories, nth_newest, rooms, user_rooms, users


class PeopleBesideANaiveChat(PeopleRules):
    """Threads, badges, receipts and inboxes, and as little else as they need."""

    @initialize(badge=st.sampled_from(["precomputed", "on_the_fly"]), fanout=st.sampled_from([3, 100]))
    def open(self, badge: str, fanout: int) -> None:
        self.options = {"badge_mode": badge, "fanout_max_members": fanout, "receipts_max_members": 4}
        self.naive = NaivePeople(self.clock, fanout_max_members=fanout, receipts_max_members=4)
        self.start()
        for channel, members, type_ in zip(CHANNELS, (3, 2, 4), ("group", "direct", "channel"), strict=True):
            self._put_channel(channel, tuple(USERS[:members]), type_)

    def _put_channel(self, channel: str, members: tuple[str, ...], type_: str) -> None:
        self.both(
            self.service.channels.put(channel, PutChannel(type=type_, members=members)),  # type: ignore[arg-type]
            lambda: self.naive.put_channel(channel, members, type_),
        )

    @rule(user_room=user_rooms, count=st.integers(1, 3))
    def say(self, user_room: int, count: int) -> None:
        self._send([{"user_room": user_room, "text": "something"}] * count)

    @rule(user_room=user_rooms, follower=user_rooms, replier=users)
    def follow_what_was_just_said_and_have_it_answered(self, user_room: int, follower: int, replier: str) -> None:
        self._send([{"user_room": user_room}])
        self.follow(follower, 0, on=True, exact=True)
        self._send([{"user_room": user_room, "sender_id": replier, "thread_id": f"msg {self.sent}", "outside": True}])

    @rule(room=rooms, back=nth_newest)
    def delete(self, room: int, back: int) -> None:
        channel = self.room(room)
        message = self.pick(channel, back)
        self.both(self.service.messages.delete(channel, message), lambda: self.naive.delete(channel, message))

    @rule(room=rooms, user=users, history=histories)
    def join(self, room: int, user: str, history: str | int) -> None:
        channel = self.room(room)
        change = ChangeMembers(add=(user,), history=history)  # type: ignore[arg-type]
        self.both(
            self.service.channels.change_members(channel, change),
            lambda: self.naive.change_members(channel, (user,), history=history),
        )

    @rule(user_room=user_rooms)
    def leave(self, user_room: int) -> None:
        user, channel = self.user_room(user_room)
        self.both(
            self.service.channels.change_members(channel, ChangeMembers(remove=(user,))),
            lambda: self.naive.change_members(channel, remove=(user,)),
        )

    @rule(user_room=user_rooms, back=st.none() | nth_newest, apart=st.booleans())
    def read(self, user_room: int, back: int | None, apart: bool) -> None:
        user, channel = self.user_room(user_room)
        target = {"form": "messages" if apart else "up_to", "backs": [back or 0], "shift": 0}
        aimed = {} if back is None else self.aim(channel, target)
        self.both(
            self.service.reads.mark_read(user, channel, ReadTarget(**aimed)),
            lambda: self.naive.mark_read(user, channel, **aimed),
        )

    @rule(user_room=user_rooms, back=nth_newest)
    def mark_unread(self, user_room: int, back: int) -> None:
        user, channel = self.user_room(user_room)
        message = self.pick(channel, back)
        self.both(
            self.service.reads.mark_unread(user, channel, MarkUnread(from_=message)),
            lambda: self.naive.mark_unread(user, channel, message),
        )

    @rule(user_room=user_rooms, muted=st.booleans())
    def mute(self, user_room: int, muted: bool) -> None:
        self.like(user_room, {"muted": muted})

    @rule(room=rooms)
    def delete_a_channel_and_make_it_again(self, room: int) -> None:
        channel = self.room(room)
        self.both(self.service.channels.delete(channel), lambda: self.naive.delete_channel(channel))
        self.epochs = {pair: known for pair, known in self.epochs.items() if pair[1] != channel}
        self._put_channel(channel, tuple(USERS[:3]), "group")

    @rule(user=users)
    def a_device_syncs(self, user: str) -> None:
        pages = self.pages(user, only_unread=False)
        self.synced[user] = (pages[0].sync, {row.channel_id: row for row in self.naive.rows(user)})

    @rule(passed=st.sampled_from([1, 1_001, 61_007]))
    def time_passes(self, passed: int) -> None:
        self.clock.now += passed

    @rule(restart=st.booleans())
    def memory_is_lost(self, restart: bool) -> None:
        if restart:
            self.restart()
        else:
            self.run(self.service.evict())


TestPeopleBesideANaiveChat = PeopleBesideANaiveChat.TestCase
TestPeopleBesideANaiveChat.settings = stateful_settings()
