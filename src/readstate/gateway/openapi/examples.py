"""Examples of every request and answer, as values of the structs themselves, so that they can't be wrong."""

from collections.abc import Iterator
from typing import Any

from msgspec import NODEFAULT, Struct, json, structs, to_builtins

from readstate.api import (
    AllRead,
    Badge,
    ChangeMembers,
    ChannelRead,
    ChannelView,
    Conversation,
    Erased,
    Explanation,
    FromSender,
    ImportReport,
    Inbox,
    LastRead,
    MarkUnread,
    MembersChanged,
    MembersPage,
    MemberView,
    MessageEdit,
    MessageView,
    Minus,
    NewMessage,
    Place,
    PreferencesView,
    PresenceView,
    PutChannel,
    PutPreferences,
    PutPresence,
    PutUserPreferences,
    ReadAll,
    Reader,
    ReadOutcome,
    ReadResult,
    ReadTarget,
    Receipt,
    Receipts,
    Recount,
    Refused,
    Request,
    Seen,
    SendResult,
    Sync,
    Tap,
    ThreadRead,
    Threads,
    ThreadTotals,
    ThreadView,
    Totals,
    Undone,
    Unread,
    UnreadMessages,
    UserPreferencesView,
    UserRead,
    UserTotals,
)
from readstate.domain.model import Latest
from readstate.gateway.http.answers import (
    DeletedChannel,
    DeletedMessage,
    Following,
    Health,
    Readiness,
    ReadOutcomes,
    SendResults,
    TotalsByUser,
)
from readstate.gateway.http.decoding import Messages, Nothing, Reads, TapBadge, Undo, Users
from readstate.gateway.http.problems import Problem
from readstate.transfer.records import (
    ChannelLine,
    FollowLine,
    Header,
    LastReadLine,
    LatestLine,
    MemberLine,
    MessageLine,
    PointerLine,
    PreferencesLine,
    ThreadLine,
    UserLine,
)

_NOW = 1_769_851_800_000
_BEFORE = _NOW - 60_000

_LATEST = Latest("msg_42", 42, _NOW, "alice", "Lunch at one?")
_REPLY = Latest("msg_43", 3, _NOW, "carol", "Count me in")
_POINTER = LastRead("msg_39", 39, _BEFORE, 0)
_AT_THE_END = LastRead("msg_42", 42, _NOW, 0)
_MESSAGE = MessageView(
    id="msg_42",
    channel_id="general",
    seq=42,
    sender_id="alice",
    at=_NOW,
    sent_at=None,
    text="Lunch at one?",
    preview="Lunch at one?",
    thread_id=None,
    thread_seq=None,
    mentions=("bob",),
    silent=False,
    deleted=False,
)
_NEW = NewMessage(id="msg_42", channel_id="general", sender_id="alice", text="Lunch at one?", mentions=("bob",))
_UNREAD = Unread(
    channel_id="general",
    unread=3,
    label="3",
    has_unread=True,
    exact=True,
    mentions=1,
    first_unread=Place("msg_40", 40, _BEFORE + 1000),
    last_read=_POINTER,
    latest=_LATEST,
    muted=False,
)
_CONVERSATION = Conversation(
    channel_id="general",
    type="group",
    name="General",
    avatar=None,
    peer_id=None,
    last_message=_LATEST,
    unread=3,
    label="3",
    has_unread=True,
    mentions=1,
    muted=False,
    pinned=False,
)
_THREAD = ThreadView("msg_42", "general", 1, "1", _REPLY, LastRead("msg_41", 2, _BEFORE, 0))
_PREFERENCES = PreferencesView(
    muted=True, muted_until=_NOW + 3_600_000, count="all", receipts="public", pinned=False, archived=False
)
_EXPLANATION = Explanation(
    channel_id="general",
    user_id="bob",
    unread=3,
    exact=True,
    mode="ledger",
    pointer=_POINTER,
    joined_seq=0,
    latest_seq=44,
    after_pointer=5,
    minus=Minus(own=0, deleted=1, silent=1, read_apart=0),
    hot=3,
    durable=3,
    agrees=True,
    answered_by="hot",
)
_SYNC = "kwIqBQ"

_RECORDS: tuple[Struct, ...] = (
    Header(version=1),
    ChannelLine(channel_id="general", kind="group", name="General", last_seq=41, last_id="msg_41", last_at=_BEFORE),
    ThreadLine(channel_id="general", thread_id="msg_42"),
    MessageLine(channel_id="general", id="msg_42", seq=42, at=_NOW, sender_id="alice", text="Lunch at one?"),
    MessageLine(channel_id="general", id="msg_43", at=_NOW + 1000, sender_id="carol", thread_id="msg_42"),
    MemberLine(
        channel_id="general",
        user_id="bob",
        preferences=PreferencesLine(pinned=True),
        last_read=LastReadLine(seq=41),
    ),
    FollowLine(channel_id="general", thread_id="msg_42", user_id="bob"),
    PointerLine(channel_id="general", user_id="weather-bot", last_read=LastReadLine(seq=40)),
    UserLine(user_id="bob", receipts="private"),
)
_VALUES: tuple[Struct, ...] = (
    *_RECORDS,
    LatestLine(id="msg_41", at=_BEFORE, sender_id="carol", preview="Good morning"),
    # requests
    PutChannel(type="group", name="General", members=("alice", "bob")),
    ChangeMembers(add=("carol",), history=10),
    _NEW,
    Messages((_NEW,)),
    MessageEdit(text="Lunch at two?"),
    ReadTarget(up_to="msg_42", epoch=0),
    ChannelRead(channel_id="general", up_to="msg_42"),
    UserRead(user_id="bob", channel_id="general", up_to_seq=42),
    Reads((UserRead(user_id="bob", channel_id="general", up_to_seq=42),)),
    ReadAll(all=True),
    Undo("4f0c2b9e"),
    TapBadge(),
    MarkUnread(from_="msg_40"),
    Users(("alice", "bob")),
    PutPreferences(muted="2026-01-31T10:30:00Z", pinned=True),
    PutUserPreferences(receipts="private"),
    ThreadRead(up_to="msg_43"),
    PutPresence(device="phone", online=True, focus="general", ttl=60),
    Nothing(),
    # answers
    ChannelView("general", "group", "General", None, archived=False, member_count=3, latest=_LATEST),
    DeletedChannel("general"),
    MembersChanged(added=1, removed=0, member_count=3),
    MembersPage([MemberView("alice", 0, _BEFORE), MemberView("bob", 0, _BEFORE)], None),
    SendResults([SendResult("msg_42", 42, None, "accepted")]),
    _MESSAGE,
    DeletedMessage("msg_42", "general"),
    ReadResult(_AT_THE_END, 0, "", changed=True),
    ReadOutcomes([ReadOutcome("ok", changed=True)]),
    AllRead(changed=7, undo="4f0c2b9e"),
    Undone(changed=7),
    _UNREAD,
    Sync(Totals(3, 1, 1), ThreadTotals(1, 1), [_UNREAD], [], None, _SYNC),
    UnreadMessages([_MESSAGE], None),
    TotalsByUser({"bob": UserTotals(3, 1, 1, 1, 4, exact=True)}),
    Inbox([_CONVERSATION], None, _SYNC),
    Badge(senders=4, label="4", since=_BEFORE),
    Tap(senders=1, tapped_at=_NOW, by_sender=[FromSender("alice", [_MESSAGE])]),
    Threads(ThreadTotals(1, 1), [_THREAD], None),
    Following("msg_42", "general", following=True),
    Seen(count=1, of=2, users=[Reader("bob", _NOW)]),
    Receipts([Receipt("bob", 42, _NOW, "msg_42")]),
    PresenceView(online=True, last_seen=_NOW, devices=["phone"]),
    _PREFERENCES,
    UserPreferencesView("private"),
    _EXPLANATION,
    Recount(before=4, after=3),
    ImportReport(accepted=2, refused=[Refused(3, "there is no channel 'general'")], next_line=4),
    Erased(channels=2, threads=1, receipts=3, badge=4),
    Health(),
    Readiness({"database": "ok"}),
    Problem(
        title="Not Found",
        status=404,
        code="channel_not_found",
        detail="there is no channel 'general'",
        field="channel_id",
        retry=False,
    ),
)


def _inside(value: Any) -> Iterator[Struct]:
    """A struct, and those that it is made of."""
    if isinstance(value, Struct):
        yield value
        for name in value.__struct_fields__:
            yield from _inside(getattr(value, name))
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _inside(item)


EXAMPLES: dict[type[Struct], Struct] = {type(part): part for value in _VALUES for part in _inside(value)} | {
    type(value): value for value in _VALUES
}


def lines() -> str:
    """The examples of records as a file that can be imported."""
    return b"".join(json.encode(record) + b"\n" for record in _RECORDS).decode()


def of(type_: type[Struct]) -> Any:
    """The example of a struct as plain JSON. Requests leave out what they need not say."""
    return _plain(EXAMPLES[type_])


def of_types(types: tuple[type[Struct], ...]) -> dict[str, Any]:
    """The examples of these structs as OpenAPI names them."""
    return {type_.__name__: {"value": of(type_)} for type_ in types}


def _plain(value: Struct) -> Any:
    if not isinstance(value, Request):
        return json.decode(json.encode(value))
    plain = {}
    for field in structs.fields(value):
        given = getattr(value, field.name)
        if field.default is NODEFAULT or given != field.default:
            plain[field.encode_name] = _listed(given)
    return plain


def _listed(given: Any) -> Any:
    if isinstance(given, tuple):
        return [_listed(item) for item in given]
    return _plain(given) if isinstance(given, Struct) else to_builtins(given)
