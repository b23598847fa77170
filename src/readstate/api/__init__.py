"""The shapes of requests and answers: what the HTTP API decodes and encodes, and the library takes and gives."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from readstate.domain.model import ChannelType, CountPreference, History, Latest, Number, ReceiptsPreference

Id = str | int
"""In requests an integer stands for its decimal string."""
Time = str | int
"""In requests: milliseconds since 1970, or RFC 3339."""
Reason = Literal["capped", "stale"]
"""Why a count is not exact: it is a lower bound, or the last known value."""


class Request(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, gc=False):
    """Base of every request: unknown fields are refused."""


# ---------------------------------------------------------------- requests


class NewMessage(Request, frozen=True, kw_only=True):
    """A message to be stored and counted."""

    channel_id: Id
    sender_id: Id
    id: Id | None = None
    at: Time | None = None
    text: str | None = None
    preview: str | None = None
    thread_id: Id | None = None
    also_to_channel: bool = False
    mentions: tuple[Id, ...] = ()
    silent: bool = False
    backfill: bool = False
    outside: bool = False


class MessageEdit(Request, frozen=True, kw_only=True):
    """What changes in a message; what is left out stays."""

    text: str | None | UnsetType = UNSET
    mentions: tuple[Id, ...] | UnsetType = UNSET


class PutChannel(Request, frozen=True, kw_only=True):
    """Creates or updates a channel; what is left out stays."""

    type: ChannelType | UnsetType = UNSET
    name: str | None | UnsetType = UNSET
    avatar: str | None | UnsetType = UNSET
    archived: bool | UnsetType = UNSET
    members: tuple[Id, ...] = ()


class ChangeMembers(Request, frozen=True, kw_only=True):
    """Adds and removes members."""

    add: tuple[Id, ...] = ()
    remove: tuple[Id, ...] = ()
    history: History = "read"


class ReadTarget(Request, frozen=True, kw_only=True):
    """What is read: everything, or one of `up_to`, `up_to_seq`, `up_to_time`, `messages`."""

    up_to: Id | None = None
    up_to_seq: Number | None = None
    up_to_time: Time | None = None
    messages: tuple[Id, ...] | None = None
    epoch: Number | None = None


class ChannelRead(ReadTarget, frozen=True, kw_only=True):
    """A read in one of the user's channels."""

    channel_id: Id


class UserRead(ChannelRead, frozen=True, kw_only=True):
    """A read of any user."""

    user_id: Id


class ReadAll(Request, frozen=True, kw_only=True):
    """Reads of one user over all channels, or over a list."""

    all: bool = False
    up_to_time: Time | None = None
    items: tuple[ChannelRead, ...] | None = None


class MarkUnread(Request, frozen=True, kw_only=True):
    """Makes a message and all later ones unread."""

    from_: Id = field(name="from")
    epoch: Number | None = None


class PutPreferences(Request, frozen=True, kw_only=True):
    """What a user wants of one channel; what is left out stays."""

    muted: bool | Time | UnsetType = UNSET
    count: CountPreference | UnsetType = UNSET
    receipts: ReceiptsPreference | UnsetType = UNSET
    pinned: bool | UnsetType = UNSET
    archived: bool | UnsetType = UNSET


class PutUserPreferences(Request, frozen=True, kw_only=True):
    """What a user wants of all channels; what is left out stays."""

    receipts: ReceiptsPreference | UnsetType = UNSET


class ThreadRead(Request, frozen=True, kw_only=True):
    """Reads a thread: everything, or up to a reply."""

    up_to: Id | None = None


class PutPresence(Request, frozen=True, kw_only=True):
    """A device of a user, as a product with connections of its own sees it."""

    device: Id
    online: bool
    focus: Id | None = None
    """The channel that is open on the device: what arrives there is read at once."""
    ttl: Annotated[int, Meta(ge=1, le=86_400)] = 60
    """Seconds after which the device is gone unless it is reported again."""


# ---------------------------------------------------------------- answers


class SendResult(Struct, frozen=True, gc=False, omit_defaults=True):
    """What became of one message."""

    id: str
    seq: int | None
    thread_seq: int | None
    status: Literal["accepted", "duplicate", "rejected"]
    code: str | None = None
    detail: str | None = None
    field: str | None = None


class ChannelView(Struct, frozen=True, gc=False):
    """A channel as callers see it."""

    channel_id: str
    type: ChannelType
    name: str | None
    avatar: str | None
    archived: bool
    member_count: int
    latest: Latest | None


class MembersChanged(Struct, frozen=True, gc=False):
    """How many were really added and removed."""

    added: int
    removed: int
    member_count: int


class MemberView(Struct, frozen=True, gc=False):
    """A member of a channel."""

    user_id: str
    joined_seq: int
    joined_at: int


class MembersPage(Struct, frozen=True, gc=False):
    """Members by id."""

    members: list[MemberView]
    cursor: str | None


class MessageView(Struct, frozen=True, gc=False):
    """A message as callers see it."""

    id: str
    channel_id: str
    seq: int | None
    sender_id: str
    at: int
    sent_at: int | None
    text: str | None
    preview: str | None
    thread_id: str | None
    thread_seq: int | None
    mentions: tuple[str, ...]
    silent: bool
    deleted: bool


class Place(Struct, frozen=True, gc=False):
    """Where a message stands."""

    id: str | None
    seq: int
    at: int | None


class LastRead(Struct, frozen=True, gc=False):
    """A user's read pointer."""

    id: str | None
    seq: int
    at: int | None
    epoch: int


class Unread(Struct, frozen=True, gc=False):
    """What is unread for a user in a channel (`U` in the documentation)."""

    channel_id: str
    unread: int
    label: str
    has_unread: bool
    exact: bool
    mentions: int
    first_unread: Place | None
    last_read: LastRead
    latest: Latest | None
    muted: bool
    reason: Reason | UnsetType = UNSET
    archived: bool | UnsetType = UNSET
    """Only there if it is true: the channel is archived, and left out of the totals."""


class ReadResult(Struct, frozen=True, gc=False):
    """Where the pointer stands after a read, and what is left."""

    last_read: LastRead
    unread: int
    label: str
    changed: bool


class ReadOutcome(Struct, frozen=True, gc=False):
    """What became of one of many reads."""

    status: Literal["ok", "rejected"]
    changed: bool
    code: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET


class AllRead(Struct, frozen=True, gc=False):
    """How many channels changed, and the token that takes it back."""

    changed: int
    undo: str


class Undone(Struct, frozen=True, gc=False):
    """How many channels have their earlier state again."""

    changed: int


class Totals(Struct, frozen=True, gc=False):
    """Sums over the channels that are not muted."""

    unread: int
    mentions: int
    channels: int
    exact: bool | UnsetType = UNSET
    """Only there if it is false."""
    reason: Reason | UnsetType = UNSET


class ThreadTotals(Struct, frozen=True, gc=False):
    """Sums over the threads that a user follows."""

    unread: int
    threads: int
    exact: bool | UnsetType = UNSET
    """Only there if it is false."""
    reason: Reason | UnsetType = UNSET


class Sync(Struct, frozen=True, gc=False):
    """A user's channels, or what has changed in them since a cursor."""

    totals: Totals
    threads: ThreadTotals
    channels: list[Unread]
    removed: list[str]
    cursor: str | None
    sync: str


class UnreadMessages(Struct, frozen=True, gc=False):
    """Unread messages themselves."""

    messages: list[MessageView]
    cursor: str | None


class UserTotals(Struct, frozen=True, gc=False):
    """A user's totals, for a push notification."""

    unread: int
    mentions: int
    channels: int
    threads: int
    """Unread replies in followed threads."""
    badge: int
    """How many different people wrote while the user was away."""
    exact: bool
    reason: Reason | UnsetType = UNSET


class PreferencesView(Struct, frozen=True, gc=False):
    """What a user wants of one channel."""

    muted: bool
    muted_until: int | None
    """The end of the mute in ms; null when it has none or there is no mute."""
    count: CountPreference
    receipts: ReceiptsPreference
    pinned: bool
    archived: bool


class UserPreferencesView(Struct, frozen=True, gc=False):
    """What a user wants of all channels."""

    receipts: ReceiptsPreference


class Conversation(Struct, frozen=True, gc=False):
    """A row of an inbox."""

    channel_id: str
    type: ChannelType
    name: str | None
    avatar: str | None
    peer_id: str | None
    """The other one, in a direct channel."""
    last_message: Latest | None
    unread: int
    label: str
    has_unread: bool
    mentions: int
    muted: bool
    pinned: bool
    exact: bool | UnsetType = UNSET
    """Only there if it is false."""
    reason: Reason | UnsetType = UNSET


class Inbox(Struct, frozen=True, gc=False):
    """A page of conversations."""

    conversations: list[Conversation]
    cursor: str | None
    sync: str
    exact: bool | UnsetType = UNSET
    """Only there if it is false: conversations may be missing."""
    reason: Reason | UnsetType = UNSET


class ThreadView(Struct, frozen=True, gc=False):
    """A followed thread."""

    thread_id: str
    channel_id: str
    unread: int
    label: str
    latest: Latest | None
    """The newest reply; its `seq` is its place in the thread."""
    last_read: LastRead
    exact: bool | UnsetType = UNSET
    """Only there if it is false."""
    reason: Reason | UnsetType = UNSET


class Threads(Struct, frozen=True, gc=False):
    """A page of followed threads, by activity."""

    totals: ThreadTotals
    threads: list[ThreadView]
    cursor: str | None


class Badge(Struct, frozen=True, gc=False):
    """How many different people wrote while the user was away."""

    senders: int
    label: str
    since: int | None
    """The last tap."""


class FromSender(Struct, frozen=True, gc=False):
    """What one person wrote meanwhile, newest first."""

    sender_id: str
    messages: list[MessageView]


class Tap(Struct, frozen=True, gc=False):
    """What a tap on the badge shows; the badge is 0 then. Who wrote very much may be on several pages."""

    senders: int
    tapped_at: int
    by_sender: list[FromSender]
    cursor: str | None = None
    """For more of what this tap shows; to ask for it taps nothing."""


class Reader(Struct, frozen=True, gc=False):
    """Who has read a message, and when at the latest."""

    user_id: str
    read_at: int


class Seen(Struct, frozen=True, gc=False):
    """Who has seen a message, out of the members other than its sender."""

    count: int
    of: int
    users: list[Reader] | None
    """Null in large channels."""
    exact: bool = True
    reason: Literal["stale"] | UnsetType = UNSET


class Receipt(Struct, frozen=True, gc=False):
    """How far a member has read."""

    user_id: str
    last_read_seq: int
    read_at: int
    last_read_id: str | None = None
    """Null where it isn't known."""


class Receipts(Struct, frozen=True, gc=False):
    """How far the members of a channel have read; empty in large channels."""

    receipts: list[Receipt]
    exact: bool = True
    reason: Literal["stale"] | UnsetType = UNSET


class PresenceView(Struct, frozen=True, gc=False):
    """Whether a user is online."""

    online: bool
    last_seen: int | None
    devices: list[str]


class Minus(Struct, frozen=True, gc=False):
    """Why messages after the pointer are not unread; each message is in one group only."""

    own: int
    deleted: int
    silent: int
    read_apart: int


class Explanation(Struct, frozen=True, gc=False):
    """Why an unread count is what it is."""

    channel_id: str
    user_id: str
    unread: int
    exact: bool
    mode: Literal["ledger", "timeline"]
    pointer: LastRead
    joined_seq: int
    latest_seq: int
    after_pointer: int
    minus: Minus
    hot: int
    durable: int
    agrees: bool
    answered_by: Literal["hot", "durable"]
    reason: Reason | UnsetType = UNSET


class Recount(Struct, frozen=True, gc=False):
    """An unread count before and after it was loaded again from the durable store."""

    before: int
    after: int


class Refused(Struct, frozen=True, gc=False):
    """A line that was not taken, and why."""

    line: int
    reason: str


class ImportReport(Struct, frozen=True, gc=False):
    """What became of the lines that were given."""

    accepted: int
    """Records taken, also those that were there already."""
    refused: list[Refused]
    next_line: int
    """Where to go on: after the last line, or at the refused one where it stopped."""


class Erased(Struct, frozen=True, gc=False):
    """How much of a user there was."""

    channels: int
    """Memberships, also past ones."""
    threads: int
    """Threads followed, now or once."""
    receipts: int
    """Read pointers, in channels and threads."""
    badge: int
    """Notes for the offline badge, as receiver and as sender."""
