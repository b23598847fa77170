"""The service and the naive chat side by side: doing the same to both, and comparing what they say."""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Literal, TypeVar

from hypothesis.stateful import RuleBasedStateMachine, invariant

from readstate import Readstate
from readstate.api import Explanation, Sync, Unread
from readstate.domain.errors import ReadstateError
from readstate.settings import make_settings

from .conducting import Conductor
from .naive_people import NaivePeople
from .people import compare_inbox, compare_people, compare_receipts
from .values import Channel, Refused, Row

T = TypeVar("T")
Pair = tuple[str, str]
Order = Literal["newest", "oldest", "channel"]
ORDERS: tuple[Order, ...] = ("newest", "oldest", "channel")

START = 1_700_000_000_000
USERS = ["ann", "b:{ob}", "dé🦊", "..", 'eve\'s "x"']
CHANNELS = ["c1", "{c}:2", "../🎉?a=%2F"]


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


def attempt(naive: Callable[[], T]) -> tuple[T | None, str | None]:
    """What the naive chat answers, and the code if it refuses."""
    try:
        return naive(), None
    except Refused as why:
        return None, why.code


class SideBySide(RuleBasedStateMachine):
    """A service in a directory of its own, and a naive chat; they are compared after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = tempfile.mkdtemp(prefix="readstate-model-")
        self.clock = Clock()
        self.conductor = Conductor()
        self.rs: Readstate | None = None
        self.options: dict[str, Any] = {}
        self.steps = 0
        self.naive = NaivePeople(self.clock)
        self.warm: list[str] | None = None
        """Whose state is in memory when the next step comes; None: everyone's."""
        self.sound = False
        """Whether the last step has been compared: only then the end is worth comparing."""
        self.epochs: dict[Pair, dict[int, int]] = {}
        """The service's epochs by those of the naive chat."""
        self.synced: dict[str, tuple[str, dict[str, Row]]] = {}
        """What a device of each user last saw, and its cursor."""

    async def stores(self) -> dict[str, Any]:
        """Settings that say where everything is kept; asked once."""
        return {}

    async def leave_stores(self) -> None:
        """The run is over."""

    def start(self) -> None:
        if self.rs is None:
            self.options |= self.run(self.stores())
        settings = make_settings(data_dir=self.directory, **self.options)
        self.rs = self.run(_open(Readstate.open(settings=settings, clock=self.clock)))
        self.conductor.conduct(self.rs.durable)

    def restart(self) -> None:
        """Stops the service and starts it again over the same files; devices must come back by themselves."""
        self.run(self.service.close())
        self.clock.now = self.naive.now()
        self.naive.devices.clear()
        self.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    @property
    def service(self) -> Readstate:
        assert self.rs is not None
        return self.rs

    def both(self, real: Coroutine[Any, Any, T], naive: Callable[[], Any]) -> tuple[T, Any] | None:
        """Does it to both: what each answers, or None when both refuse for the same reason."""
        self.sound = False
        expected, refused = attempt(naive)
        try:
            answer = self.run(real)
        except ReadstateError as error:
            if error.code == refused:
                return None
            raise
        assert refused is None, f"answered {answer}, expected {refused}"
        return answer, expected

    # ------------------------------------------------------------ comparing

    @invariant()
    def both_say_the_same(self) -> None:
        """One user after every step, everyone after some: looking must not be what keeps things right."""
        if self.rs is None:
            return
        self.steps += 1
        for user in USERS if self.steps % 8 == 0 else [USERS[self.steps % len(USERS)]]:
            self._compare_user(user)
            for channel in CHANNELS:
                self._compare_pair(user, channel)
        compare_receipts(self, CHANNELS[self.steps % len(CHANNELS)])
        if self.warm is not None:
            self.run(self.service.evict())
            for user in self.warm:
                self.pages(user)
        self.sound = True

    def _compare_user(self, user: str) -> None:
        unread = [row for page in self.pages(user) for row in page.channels]  # first: the user may not be loaded
        pages = self.pages(user, only_unread=False)
        rows = [row for page in pages for row in page.channels]
        expected = self.naive.rows(user)
        assert [row.channel_id for row in rows] == [row.channel_id for row in expected]
        for row, wanted in zip(rows, expected, strict=True):
            self._compare_row(user, row, wanted)
        assert unread == [row for row in rows if row.has_unread]
        self._compare_totals(user, pages, rows)
        compare_people(self, user, pages)
        compare_inbox(self, user, {row.channel_id: row for row in rows})
        if user in self.synced:
            self._compare_delta(user)

    def pages(self, user: str, **query: Any) -> list[Sync]:
        """All pages of a sync, two channels on each."""
        pages: list[Sync] = []
        cursor = None
        while not pages or cursor is not None:
            page = self.run(self.service.unread.sync(user, limit=2, cursor=cursor, **query))
            assert not pages or page.sync == pages[0].sync
            pages.append(page)
            cursor = page.cursor
        return pages

    def _compare_row(self, user: str, row: Unread, wanted: Row) -> None:
        context = f"{user} in {row.channel_id}: {row}, expected {wanted}"
        assert row.has_unread == wanted.has_unread, context
        last, latest = row.last_read, row.latest
        assert (last.id, last.seq) == wanted.last_read[:2], context
        assert last.at == wanted.last_read[2] or last.id is None, context
        seen = latest and (latest.id, latest.seq, latest.at, latest.sender_id, latest.preview)
        assert seen == wanted.latest, context
        assert row.muted == wanted.muted, context
        assert row.label == self.naive.label(row.unread), context
        first = row.first_unread and (row.first_unread.id, row.first_unread.seq, row.first_unread.at)
        if row.exact:
            assert (row.unread, row.mentions) == (wanted.unread, wanted.mentions), context
            assert first == wanted.first_unread, context
        else:
            self._compare_lower_bound(user, row, wanted, first)
        self._compare_epoch(user, row.channel_id, last.epoch)

    def _compare_lower_bound(self, user: str, row: Unread, wanted: Row, first: Any) -> None:
        context = f"{user} in {row.channel_id}: {row}, expected at most {wanted}"
        assert row.reason == "capped", context
        assert self.naive.may_be_capped(user, row.channel_id), context
        assert 0 <= row.unread <= wanted.unread, context
        assert 0 <= row.mentions <= wanted.mentions, context
        unread = self.naive.unread_messages(user, row.channel_id)
        assert first in [(m.id, m.seq, m.at) for m in unread], context

    def _compare_epoch(self, user: str, channel: str, epoch: int) -> None:
        """Epochs are opaque: the same as long as nothing starts a new one, and only growing."""
        known = self.epochs.setdefault((user, channel), {})
        now = self.naive.reading(user, channel).epoch
        assert known.setdefault(now, epoch) == epoch
        assert all(epoch > older for naive_epoch, older in known.items() if naive_epoch < now)

    def _compare_totals(self, user: str, pages: list[Sync], rows: list[Unread]) -> None:
        loud = [r for r in rows if not r.muted and not self.naive.channel(r.channel_id).archived]
        summed = (sum(r.unread for r in loud), sum(r.mentions for r in loud), sum(r.has_unread for r in loud))
        for page in pages:
            assert (page.totals.unread, page.totals.mentions, page.totals.channels) == summed
        total = self.run(self.service.unread.totals([user]))[user]
        assert (total.unread, total.mentions, total.channels) == summed
        assert total.exact == all(r.exact for r in loud)
        if all(r.exact for r in loud):
            assert summed == self.naive.totals(user)

    def _compare_delta(self, user: str) -> None:
        since, then = self.synced[user]
        now = {row.channel_id: row for row in self.naive.rows(user)}
        pages = self.pages(user, since=since)
        given = {row.channel_id: row for page in pages for row in page.channels}
        removed = {channel for page in pages for channel in page.removed}
        changed = {c for c, row in now.items() if _lasting(row) != _lasting(then.get(c))}
        assert changed <= given.keys() <= now.keys(), f"{user}: changed {changed}, given {set(given)}"
        assert then.keys() - now.keys() <= removed
        assert not removed & now.keys()
        for channel, row in given.items():
            self._compare_row(user, row, now[channel])

    def _compare_pair(self, user: str, channel: str) -> None:
        answers = self.both(self.service.unread.of_channel(user, channel), lambda: self.naive.row(user, channel))
        if answers is None:
            return
        row, wanted = answers
        self._compare_row(user, row, wanted)
        self._compare_explanation(row, self.run(self.service.explain.explain(user, channel)))

    def _compare_explanation(self, row: Unread, why: Explanation) -> None:
        assert why.agrees, why
        assert why.exact == row.exact
        user, channel = why.user_id, why.channel_id
        unread = len(self.naive.unread_messages(user, channel))
        assert why.unread == why.hot <= why.durable == unread
        assert why.unread == unread or not why.exact
        minus = why.minus.own + why.minus.deleted + why.minus.silent + why.minus.read_apart
        assert why.after_pointer == len(self.naive.after_pointer(user, channel))
        assert why.after_pointer - minus == unread
        assert (why.mode == "timeline") == self.naive.channel(channel).outgrown

    def _compare_view(self, user: str, channel: str | None) -> None:
        """The unread messages themselves, of one channel or of all."""
        mine = [c.id for c in self.naive.channels_of(user) if channel in {None, c.id}]
        expected = {(c, m.id): m.at for c in mine for m in self.naive.unread_messages(user, c)}
        for order in ORDERS:
            found = self._view(user, channel, order)
            assert sorted(found) == sorted(expected)
            if order == "channel":
                assert [c for c, _ in found] == sorted(c for c, _ in found)
            else:
                times = [expected[key] for key in found]
                assert times == sorted(times, reverse=order == "newest")

    def _view(self, user: str, channel: str | None, order: Order) -> list[Pair]:
        found: list[Pair] = []
        page = self.run(self.service.unread.messages(user, channel=channel, order=order, limit=3))
        found += [(m.channel_id, m.id) for m in page.messages]
        while page.cursor is not None:
            more = self.service.unread.messages(user, channel=channel, order=order, limit=3, cursor=page.cursor)
            page = self.run(more)
            found += [(m.channel_id, m.id) for m in page.messages]
        return found

    def teardown(self) -> None:
        try:
            if self.sound:
                self._compare_all()
                self.restart()
                self._compare_all()
        finally:
            self._stop()

    def _compare_all(self) -> None:
        for user in USERS:
            self._compare_user(user)
            for channel in CHANNELS:
                self._compare_pair(user, channel)
            for mine in [None, *(c.id for c in self.naive.channels_of(user))]:
                self._compare_view(user, mine)
        for known in self.naive.channels.values():
            self._compare_messages(known)
            compare_receipts(self, known.id)
            if known.exists:
                self._compare_channel(known)

    def _compare_channel(self, channel: Channel) -> None:
        view = self.run(self.service.channels.get(channel.id))
        assert (view.type, view.archived) == (channel.type, channel.archived)
        members = self.run(self.service.channels.members(channel.id)).members
        assert [m.user_id for m in members] == sorted(channel.members)
        assert view.member_count == len(members)
        latest = channel.latest()
        assert (view.latest and view.latest.id) == (latest and latest.id)

    def _compare_messages(self, channel: Channel) -> None:
        for message in channel.messages:
            if not message.tombstone:
                real = self.run(self.service.messages.get(channel.id, message.id))
                where = (message.seq, message.thread_seq, message.at)
                assert (real.seq, real.thread_seq, real.at) == where, f"{real}, expected {message}"
                assert (real.deleted, real.silent) == (message.deleted, message.silent)
                assert real.text == (None if message.deleted else message.text)
                assert (real.sender_id, real.sent_at) == (message.sender, message.sent_at)

    def _stop(self) -> None:
        if self.rs is not None:
            self.run(self.rs.close())
        self.run(self.leave_stores())
        self.runner.close()
        shutil.rmtree(self.directory)


def _lasting(row: Row | None) -> Row | None:
    """A row without what the passing of time alone may change."""
    return None if row is None else replace(row, muted=False)


async def _open(service: Readstate) -> Readstate:
    return await service
