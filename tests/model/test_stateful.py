"""The service beside a naive chat: whatever happens, in whatever order, both answer the same."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from readstate.api import (
    ChangeMembers,
    ChannelRead,
    MarkUnread,
    MessageEdit,
    PutChannel,
    PutPreferences,
    ReadAll,
    ReadTarget,
    UserRead,
)

from .comparing import CHANNELS, USERS, attempt
from .conftest import stateful_settings
from .naive_people import NaivePeople
from .rules_at_once import AtOnceRules
from .rules_of_people import PeopleRules
from .strategies import (
    COMMON_IDS,
    Fields,
    counts,
    drafts,
    histories,
    mention_lists,
    nth_newest,
    rooms,
    some_users,
    targets,
    texts,
    user_rooms,
    users,
)


class ReadstateBesideANaiveChat(PeopleRules, AtOnceRules):
    """Everything that can happen to a chat."""

    def __init__(self) -> None:
        super().__init__()
        self.past_reads: list[tuple[str, str, Fields, int, int]] = []
        self.undo_tokens: list[tuple[str, str, int]] = []

    @initialize(
        fanout=st.sampled_from([2, 3, 100]),
        cap=st.sampled_from([10_000, 10_000, 6]),
        seen=st.sampled_from([100, 100, 2]),
        badge=st.sampled_from(["precomputed", "on_the_fly"]),
        groups=st.lists(st.lists(users, min_size=2, max_size=4, unique=True), min_size=2, max_size=4),
        said=st.lists(st.tuples(user_rooms, st.integers(1, 5)), max_size=4),
    )
    def open(
        self, fanout: int, cap: int, seen: int, badge: str, groups: list[list[str]], said: list[tuple[int, int]]
    ) -> None:
        limits = {"fanout_max_members": fanout, "unread_cap": cap, "receipts_max_members": seen}
        self.options = {**limits, "badge_mode": badge}
        self.naive = NaivePeople(self.clock, **limits)
        self.start()
        for channel, members in zip(CHANNELS, groups, strict=False):
            self._put_channel(channel, {"type": "group", "members": tuple(members)})
        for user_room, count in said:
            self.send_a_run(user_room, count)

    # ------------------------------------------------------------ channels and members

    @rule(
        channel=st.sampled_from(CHANNELS),
        members=some_users,
        fields=st.sampled_from(
            [{}, {}, {"archived": True}, {"archived": False}, {"type": "channel"}, {"type": "direct"}]
        ),
    )
    def put_channel(self, channel: str, members: tuple[str, ...], fields: Fields) -> None:
        self._put_channel(channel, {"type": "group", "members": members, **fields})

    def _put_channel(self, channel: str, fields: Fields) -> None:
        self.both(
            self.service.channels.put(channel, PutChannel(**fields)),
            lambda: self.naive.put_channel(channel, **fields),
        )

    @rule(room=rooms)
    def delete_channel(self, room: int) -> None:
        """Epochs of its former life say nothing about the next."""
        channel = self.room(room)
        self.both(self.service.channels.delete(channel), lambda: self.naive.delete_channel(channel))
        self.epochs = {pair: known for pair, known in self.epochs.items() if pair[1] != channel}
        self.past_reads = [read for read in self.past_reads if read[1] != channel]

    @rule(room=rooms, add=some_users, remove=some_users, history=histories)
    def change_members(self, room: int, add: tuple[str, ...], remove: tuple[str, ...], history: str | int) -> None:
        self._change_members(self.room(room), add, remove, history)

    @rule(room=rooms, user=users, history=histories)
    def join(self, room: int, user: str, history: str | int) -> None:
        self._change_members(self.room(room), (user,), (), history)

    @rule(user_room=user_rooms)
    def leave(self, user_room: int) -> None:
        user, channel = self.user_room(user_room)
        self._change_members(channel, (), (user,), "read")

    def _change_members(self, channel: str, add: tuple[str, ...], remove: tuple[str, ...], history: str | int) -> None:
        change = ChangeMembers(add=add, remove=remove, history=history)  # type: ignore[arg-type]
        answers = self.both(
            self.service.channels.change_members(channel, change),
            lambda: self.naive.change_members(channel, add, remove, history),
        )
        if answers is not None:
            real, expected = answers
            assert (real.added, real.removed, real.member_count) == expected

    # ------------------------------------------------------------ messages

    @rule(draft=drafts())
    def send(self, draft: Fields) -> None:
        self._send([draft])

    @rule(user_room=user_rooms, count=st.integers(2, 8), mentions=mention_lists)
    def send_a_run(self, user_room: int, count: int, mentions: tuple[str, ...] = ()) -> None:
        self._send([{"user_room": user_room, "mentions": mentions}] * count)

    @rule(batch=st.lists(drafts(), min_size=2, max_size=5))
    def send_a_batch(self, batch: list[Fields]) -> None:
        self._send(batch)

    @rule(user_room=user_rooms, back=nth_newest, times=st.integers(1, 3))
    def send_again(self, user_room: int, back: int, times: int) -> None:
        again = {"user_room": user_room, "id": self.pick(self.user_room(user_room)[1], back)}
        self._send([again | {"text": "again", "mentions": ("@channel",)}] * times)

    @rule(room=rooms, back=nth_newest, text=texts)
    def edit_the_text(self, room: int, back: int, text: str | None) -> None:
        self._edit(self.room(room), back, {"text": text})

    @rule(room=rooms, back=nth_newest, mentions=mention_lists)
    def edit_the_mentions(self, room: int, back: int, mentions: tuple[str, ...]) -> None:
        self._edit(self.room(room), back, {"mentions": mentions})

    def _edit(self, channel: str, back: int, fields: Fields) -> None:
        message = self.pick(channel, back)
        self.both(
            self.service.messages.edit(channel, message, MessageEdit(**fields)),
            lambda: self.naive.edit(channel, message, **fields),
        )

    @rule(room=rooms, back=nth_newest)
    def delete(self, room: int, back: int) -> None:
        channel = self.room(room)
        self._delete(channel, self.pick(channel, back))

    @rule(room=rooms, message=st.sampled_from(COMMON_IDS))
    def delete_what_may_come_later(self, room: int, message: str) -> None:
        self._delete(self.room(room), message)

    def _delete(self, channel: str, message: str) -> None:
        self.both(self.service.messages.delete(channel, message), lambda: self.naive.delete(channel, message))

    # ------------------------------------------------------------ reading

    @rule(user_room=user_rooms, what=targets())
    def read(self, user_room: int, what: Fields) -> None:
        user, channel = self.user_room(user_room)
        aimed = self.aim(channel, what)
        self._read(user, channel, aimed, aimed)

    @rule(user_room=user_rooms, backs=st.lists(nth_newest, min_size=1, max_size=3))
    def read_one_by_one(self, user_room: int, backs: list[int]) -> None:
        self.read(user_room, {"form": "messages", "backs": backs, "shift": 0})

    @rule(user_room=user_rooms, what=targets())
    def read_as_clients_do(self, user_room: int, what: Fields) -> None:
        """With the epoch that the client last saw."""
        user, channel = self.user_room(user_room)
        naive_epoch = self.naive.reading(user, channel).epoch
        epoch = self.epochs.get((user, channel), {}).get(naive_epoch)
        if epoch is not None:
            self.past_reads.append((user, channel, self.aim(channel, what), epoch, naive_epoch))
            self.read_late_or_again(0)

    @precondition(lambda self: self.past_reads)
    @rule(back=st.integers(0, 20))
    def read_late_or_again(self, back: int) -> None:
        user, channel, aimed, epoch, naive_epoch = self.past_reads[-1 - back % len(self.past_reads)]
        self._read(user, channel, aimed | {"epoch": epoch}, aimed | {"epoch": naive_epoch})

    def _read(self, user: str, channel: str, real: Fields, naive: Fields) -> None:
        answers = self.both(
            self.service.reads.mark_read(user, channel, ReadTarget(**real)),
            lambda: self.naive.mark_read(user, channel, **naive),
        )
        self._check_result(user, channel, answers)

    def _check_result(self, user: str, channel: str, answers: tuple[Any, Any] | None) -> None:
        if answers is not None:
            result, changed = answers
            row = self.naive.row(user, channel)
            assert result.changed == changed
            assert (result.last_read.id, result.last_read.seq) == row.last_read[:2]
            if not self.naive.may_be_capped(user, channel):
                assert (result.unread, result.label) == (row.unread, row.label)

    @rule(reads=st.lists(st.tuples(user_rooms, targets()), min_size=1, max_size=5))
    def read_many(self, reads: list[tuple[int, Fields]]) -> None:
        self.sound = False
        aimed = [
            (*self.user_room(user_room), self.aim(self.user_room(user_room)[1], target)) for user_room, target in reads
        ]
        requests = [UserRead(user_id=user, channel_id=channel, **target) for user, channel, target in aimed]
        outcomes = self.run(self.service.reads.mark_many(requests))
        for (user, channel, target), outcome in zip(aimed, outcomes, strict=True):
            changed, code = attempt(self._reading_naively(user, channel, target))
            if code is None:
                assert (outcome.status, outcome.changed) == ("ok", changed)
            else:
                assert (outcome.status, outcome.code) == ("rejected", code)

    @rule(user_room=user_rooms, back=nth_newest)
    def mark_unread(self, user_room: int, back: int) -> None:
        user, channel = self.user_room(user_room)
        message = self.pick(channel, back)
        answers = self.both(
            self.service.reads.mark_unread(user, channel, MarkUnread(from_=message)),
            lambda: self.naive.mark_unread(user, channel, message),
        )
        self._check_result(user, channel, answers)

    @rule(user_room=user_rooms, what=targets(), back=nth_newest)
    def mark_unread_and_have_a_read_come_late(self, user_room: int, what: Fields, back: int) -> None:
        self.read_as_clients_do(user_room, what)
        self.mark_unread(user_room, back)
        if self.past_reads:
            self.read_late_or_again(0)

    @rule(user_room=user_rooms, back=nth_newest, again=st.integers(1, 5))
    def mark_unread_and_have_the_messages_repeated(self, user_room: int, back: int, again: int) -> None:
        """A repeated send doesn't read again, even if it is the user's own."""
        channel = self.user_room(user_room)[1]
        self.mark_unread(user_room, back)
        self._send([{"user_room": user_room, "id": self.pick(channel, n)} for n in range(again)])

    @precondition(lambda self: self.past_reads)
    @rule(back=st.integers(0, 20), message_back=nth_newest)
    def mark_unread_with_an_epoch(self, back: int, message_back: int) -> None:
        user, channel, _, epoch, naive_epoch = self.past_reads[-1 - back % len(self.past_reads)]
        message = self.pick(channel, message_back)
        answers = self.both(
            self.service.reads.mark_unread(user, channel, MarkUnread(from_=message, epoch=epoch)),
            lambda: self.naive.mark_unread(user, channel, message, naive_epoch),
        )
        self._check_result(user, channel, answers)

    @rule(user=users, time=st.none() | st.tuples(rooms, nth_newest, st.sampled_from([0, -1, 1])))
    def read_everything(self, user: str, time: tuple[int, int, int] | None) -> None:
        aimed: Fields = {}
        if time is not None:
            room, back, shift = time
            aimed = self.aim(self.room(room), {"form": "up_to_time", "backs": [back], "shift": shift})
        self._read_all(user, ReadAll(all=True, **aimed), lambda: self.naive.mark_all(user, **aimed))

    @rule(items=st.lists(st.tuples(user_rooms, targets()), min_size=1, max_size=3))
    def read_some_channels(self, items: list[tuple[int, Fields]]) -> None:
        user = self.user_room(items[0][0])[0]
        mine = [c.id for c in self.naive.channels_of(user)] or CHANNELS
        picked = [(mine[user_room % len(mine)], what) for user_room, what in items]
        aimed: list[Fields] = [{"channel_id": c, **self.aim(c, what)} for c, what in picked]
        request = ReadAll(items=tuple(ChannelRead(**item) for item in aimed))
        self._read_all(user, request, lambda: self.naive.mark_all(user, items=aimed))

    def _read_all(self, user: str, request: ReadAll, naive: Callable[[], tuple[int, int]]) -> None:
        answers = self.both(self.service.reads.mark_all(user, request), naive)
        if answers is not None:
            real, (changed, number) = answers
            assert real.changed == changed
            self.undo_tokens.append((user, real.undo, number))

    @precondition(lambda self: self.undo_tokens)
    @rule(back=st.integers(0, 3), by=st.integers(0, 9))
    def undo(self, back: int, by: int) -> None:
        owner, token, number = self.undo_tokens[-1 - back % len(self.undo_tokens)]
        user = owner if by < 9 else USERS[number % len(USERS)]
        answers = self.both(self.service.reads.undo(user, token), lambda: self.naive.undo(user, number))
        if answers is not None:
            assert answers[0].changed == answers[1]

    @rule(user_room=user_rooms, writer=user_rooms, since=st.lists(st.integers(0, 2), max_size=2))
    def read_everything_and_take_it_back(self, user_room: int, writer: int, since: list[int]) -> None:
        """Perhaps with new messages in between, of which some are read one by one."""
        self.read_everything(self.user_room(user_room)[0], None)
        self.send_a_run(writer, 3)
        if since:
            self.read_one_by_one(user_room, since)
        self.undo(0, 0)

    # ------------------------------------------------------------ everything else

    @rule(
        user_room=user_rooms,
        muted=st.sampled_from([None, True, False, -1, 500, 61_007]),
        count=counts,
    )
    def prefer(self, user_room: int, muted: bool | int | None, count: str | None) -> None:
        user, channel = self.user_room(user_room)
        fields: Fields = {} if count is None else {"count": count}
        if muted is not None:
            fields["muted"] = muted if isinstance(muted, bool) else self.clock() + muted
        answers = self.both(
            self.service.preferences.put(user, channel, PutPreferences(**fields)),
            lambda: self.naive.put_preferences(user, channel, **fields),
        )
        if answers is not None:
            assert answers[0].count == self.naive.wants(user, channel).count
            assert answers[0].muted == self.naive.is_muted(user, channel)

    @rule(passed=st.sampled_from([1, 7, 501, 61_007, 700_001]))
    def time_passes(self, passed: int) -> None:
        self.clock.now += passed

    @rule(warm=st.none() | some_users)
    def memory_is_short(self, warm: tuple[str, ...] | None) -> None:
        """From now on, before every step all is forgotten but these users; or nothing is."""
        self.warm = None if warm is None else list(warm)
        self.run(self.service.evict())

    @rule()
    def the_service_restarts(self) -> None:
        self.restart()

    @rule(user=users)
    def a_device_syncs(self, user: str) -> None:
        pages = self.pages(user, only_unread=False)
        self.synced[user] = (pages[0].sync, {row.channel_id: row for row in self.naive.rows(user)})

    @rule(user_room=user_rooms)
    def recount(self, user_room: int) -> None:
        user, channel = self.user_room(user_room)
        answers = self.both(self.service.explain.recount(user, channel), lambda: self.naive.row(user, channel).unread)
        if answers is not None and len(self.naive.unread_messages(user, channel)) <= self.naive.unread_cap:
            assert answers[0].after == answers[1]
            assert self.run(self.service.unread.of_channel(user, channel)).exact


TestReadstateBesideANaiveChat = ReadstateBesideANaiveChat.TestCase
TestReadstateBesideANaiveChat.settings = stateful_settings()
