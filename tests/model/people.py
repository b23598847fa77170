"""Comparing what users see of each other: threads, badge, presence, receipts and the inbox."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, Protocol, TypeVar

from readstate import Readstate
from readstate.api import Conversation, Sync, Threads, ThreadView, Unread

from .naive_people import NaivePeople
from .values import Channel, Thread

T = TypeVar("T")
ORDERS: tuple[Literal["recent", "unread_first"], ...] = ("recent", "unread_first")
FILTERS: tuple[Literal["all", "unread", "archived"], ...] = ("all", "unread", "archived")


class Sides(Protocol):
    """The service and the naive chat."""

    naive: NaivePeople

    @property
    def service(self) -> Readstate:
        """The service."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the service answers."""

    def both(self, real: Coroutine[Any, Any, T], naive: Callable[[], Any]) -> tuple[T, Any] | None:
        """What both answer, or None when both refuse for the same reason."""


def compare_people(sides: Sides, user: str, pages: Sequence[Sync]) -> None:
    """Threads, badge and presence of one user, in every answer that has them."""
    total = sides.run(sides.service.unread.totals([user]))[user]
    expected = sides.naive.badge(user)
    badge = sides.run(sides.service.badge.get(user))
    assert (badge.senders, total.badge) == (expected, expected), user
    assert badge.label == sides.naive.label(expected)
    assert badge.since == sides.naive.taps.get(user)
    present = sides.run(sides.service.presence.get(user))
    assert present.devices == sides.naive.connected(user)
    assert present.online == bool(present.devices)
    threads = _compare_threads(sides, user)
    assert total.threads == threads.unread
    assert all(page.threads == threads for page in pages)


def _compare_threads(sides: Sides, user: str) -> Any:
    followed = sides.naive.followed(user)
    everything = _panel(sides, user)
    assert [(t.channel_id, t.thread_id) for t in everything] == [(t.channel_id, t.root) for t in followed], user
    for real, thread in zip(everything, followed, strict=True):
        _compare_thread(sides, user, real, thread)
    assert _panel(sides, user, filter="unread") == [t for t in everything if t.unread]
    for channel in {t.channel_id for t in followed}:
        assert _panel(sides, user, channel=channel) == [t for t in everything if t.channel_id == channel]
    totals = sides.run(sides.service.threads.panel(user)).totals
    unread = [t.unread for t in everything if t.unread]
    assert (totals.unread, totals.threads) == (sum(unread), len(unread))
    return totals


def _panel(sides: Sides, user: str, **query: Any) -> list[ThreadView]:
    """All pages, two threads on each."""
    found: list[ThreadView] = []
    cursor: str | None = None
    while True:
        page: Threads = sides.run(sides.service.threads.panel(user, limit=2, cursor=cursor, **query))
        found += page.threads
        cursor = page.cursor
        if cursor is None:
            return found


def _compare_thread(sides: Sides, user: str, real: ThreadView, thread: Thread) -> None:
    context = f"{user}: {real}, expected {thread}"
    unread = len(sides.naive.unread_replies(user, thread))
    exact = user not in thread.overfull
    assert real.unread == unread if exact else 0 <= real.unread <= unread, context
    assert real.label == sides.naive.label(real.unread), context
    assert real.last_read.seq == thread.read_up_to.get(user, 0), context
    newest = sides.naive.latest_reply(thread)
    latest = real.latest and (real.latest.id, real.latest.seq, real.latest.at, real.latest.preview)
    assert latest == (newest and (newest.id, newest.thread_seq, newest.at, newest.preview)), context


def compare_receipts(sides: Sides, channel: str) -> None:
    """Who has seen each message of a channel, and how far everyone is."""
    answers = sides.both(sides.service.receipts.of_channel(channel), lambda: sides.naive.receipts(channel))
    if answers is None:
        return
    real, expected = answers
    assert {r.user_id: r.last_read_seq for r in real.receipts} == expected, channel
    for message in sides.naive.channel(channel).messages[-6:]:
        _compare_seen(sides, sides.naive.channel(channel), message.id)


def _compare_seen(sides: Sides, channel: Channel, message: str) -> None:
    seen = sides.both(sides.service.receipts.seen(channel.id, message), lambda: sides.naive.seen(channel.id, message))
    if seen is None:
        return
    real, (readers, others) = seen
    context = f"{message} in {channel.id}: {real}, expected {readers}"
    assert (real.count, real.of) == (len(readers), others), context
    if len(channel.members) > sides.naive.receipts_max_members:
        assert real.users is None, context
    else:
        assert {reader.user_id for reader in real.users or []} == readers, context


def compare_inbox(sides: Sides, user: str, counts: dict[str, Unread]) -> None:
    """Every order and filter, page by page; the counts are those of the sync."""
    for order in ORDERS:
        for which in FILTERS:
            expected = sides.naive.inbox(user, order, which)
            rows = _inbox(sides, user, order=order, filter=which)
            context = f"inbox of {user}, {order}, {which}"
            assert [row.channel_id for row in rows] == [row.channel_id for row in expected], context
            for row in rows:
                _compare_conversation(sides, user, row, counts[row.channel_id])


def _inbox(sides: Sides, user: str, **query: Any) -> list[Conversation]:
    found: list[Conversation] = []
    cursor: str | None = None
    sync: str | None = None
    while True:
        page = sides.run(sides.service.inbox.page(user, limit=2, cursor=cursor, **query))
        assert sync in {None, page.sync}
        found += page.conversations
        cursor, sync = page.cursor, page.sync
        if cursor is None:
            return found


def _compare_conversation(sides: Sides, user: str, row: Conversation, count: Unread) -> None:
    channel = sides.naive.channel(row.channel_id)
    assert (row.unread, row.label, row.has_unread) == (count.unread, count.label, count.has_unread), row
    assert (row.mentions, row.muted, row.last_message) == (count.mentions, count.muted, count.latest), row
    assert (row.type, row.pinned) == (channel.type, sides.naive.wants(user, row.channel_id).pinned), row
    if channel.type == "direct" and not channel.outgrown:
        others = channel.members - {user}
        assert row.peer_id == (next(iter(others)) if len(others) == 1 else None), row
