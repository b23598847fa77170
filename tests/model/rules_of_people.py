"""What users do beside reading and writing: threads, devices, taps, pins, archives, private receipts."""

from hypothesis import strategies as st
from hypothesis.stateful import rule

from readstate.api import PutPreferences, PutPresence, PutUserPreferences, ThreadRead

from .picking import Picking
from .strategies import Fields, nth_newest, user_rooms, users

devices = st.sampled_from(["phone", "tab:{let}"])
likings: st.SearchStrategy[Fields] = st.sampled_from(
    [
        {"pinned": True},
        {"pinned": False},
        {"archived": True},
        {"archived": True},
        {"archived": False},
        {"receipts": "private"},
        {"receipts": "public"},
    ]
)


class PeopleRules(Picking):
    """Rules about what users see of each other."""

    @rule(user_room=user_rooms, back=nth_newest, count=st.integers(1, 3), whom=st.none() | users)
    def reply(self, user_room: int, back: int, count: int, whom: str | None) -> None:
        root = self.root(self.user_room(user_room)[1], back)
        mentions = () if whom is None else (whom,)
        self._send([{"user_room": user_room, "thread_id": root, "text": "a reply", "mentions": mentions}] * count)

    @rule(user_room=user_rooms, repliers=st.lists(users, min_size=1, max_size=3), whom=st.none() | users)
    def start_a_thread(self, user_room: int, repliers: list[str], whom: str | None) -> None:
        """The root and its first replies in one batch."""
        root = f"root {self.sent}"
        mentions = () if whom is None else (whom,)
        reply = {"user_room": user_room, "thread_id": root, "mentions": mentions, "outside": True}
        self._send([{"user_room": user_room, "id": root}, *(reply | {"sender_id": user} for user in repliers)])

    @rule(user_room=user_rooms, back=nth_newest, on=st.booleans(), exact=st.booleans())
    def follow(self, user_room: int, back: int, on: bool, exact: bool) -> None:
        user, channel = self.user_room(user_room)
        root = self.pick(channel, back) if exact else self.root(channel, back)
        self.both(
            self.service.threads.follow(user, channel, root, on=on),
            lambda: self.naive.follow(user, channel, root, on),
        )

    @rule(user_room=user_rooms, back=nth_newest, up_to=st.none() | nth_newest)
    def read_a_thread(self, user_room: int, back: int, up_to: int | None) -> None:
        user, channel = self.user_room(user_room)
        root = self.root(channel, back)
        reply = None if up_to is None else self.pick(channel, up_to)
        answers = self.both(
            self.service.threads.read(user, channel, root, ThreadRead(up_to=reply)),
            lambda: self.naive.read_thread(user, channel, root, reply),
        )
        if answers is not None:
            assert answers[0].changed == answers[1]

    @rule(user=users, device=devices, online=st.booleans(), ttl=st.sampled_from([1, 60, 3600]))
    def a_device_comes_or_goes(self, user: str, device: str, online: bool, ttl: int) -> None:
        self.both(
            self.service.presence.put(user, PutPresence(device=device, online=online, ttl=ttl)),
            lambda: self.naive.connect(user, device, online, ttl),
        )

    @rule(user=users, times=st.integers(1, 2))
    def tap(self, user: str, times: int) -> None:
        for _ in range(times):
            senders = self.naive.badge(user)
            answers = self.both(self.service.badge.tap(user), lambda: self.naive.tap(user))
            assert answers is not None
            real, expected = answers
            shown = {one.sender_id: {(m.channel_id, m.id, m.text) for m in one.messages} for one in real.by_sender}
            assert shown == expected
            assert (real.senders, real.tapped_at) == (senders, self.naive.taps[user])

    @rule(user_room=user_rooms, fields=likings)
    def like(self, user_room: int, fields: Fields) -> None:
        user, channel = self.user_room(user_room)
        answers = self.both(
            self.service.preferences.put(user, channel, PutPreferences(**fields)),
            lambda: self.naive.put_preferences(user, channel, **fields),
        )
        if answers is not None:
            real, wanted = answers[0], self.naive.wants(user, channel)
            assert (real.pinned, real.receipts) == (wanted.pinned, wanted.receipts)
            assert real.archived == self.naive.is_archived(user, channel)

    @rule(user=users, private=st.booleans())
    def keep_receipts_private_everywhere(self, user: str, private: bool) -> None:
        wanted = PutUserPreferences(receipts="private" if private else "public")
        change = self.naive.private.add if private else self.naive.private.discard
        self.both(self.service.preferences.put_user(user, wanted), lambda: change(user))
