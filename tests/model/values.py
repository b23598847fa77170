"""What the naive chat is made of."""

from dataclasses import dataclass, field


class Refused(Exception):
    """The chat doesn't do this; `code` says why."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass
class Message:
    id: str
    sender: str
    at: int
    seq: int | None = None
    sent_at: int | None = None
    text: str | None = None
    preview: str | None = None
    thread_id: str | None = None
    thread_seq: int | None = None
    mentions: frozenset[str] = frozenset()
    silent: bool = False
    deleted: bool = False
    tombstone: bool = False
    """Deleted before it ever arrived."""


@dataclass(frozen=True)
class Reading:
    """What a user has read: everything up to `seq`, and those in `apart` beyond it."""

    epoch: int
    seq: int = 0
    apart: frozenset[int] = frozenset()


@dataclass
class Preferences:
    muted_until: int = 0
    count: str = "all"
    receipts: str = "public"
    pinned: bool = False
    archived_seq: int | None = None
    """The newest seq when the user archived the channel."""


@dataclass
class Thread:
    """The replies under a root; its seqs go on when the channel is deleted."""

    channel_id: str
    root: str
    last_seq: int = 0
    last_at: int = 0
    followers: set[str] = field(default_factory=set)
    read_up_to: dict[str, int] = field(default_factory=dict)
    overfull: set[str] = field(default_factory=set)
    """Those who once had more unread in it than are kept."""


@dataclass(frozen=True)
class Undelivered:
    """A message that came while its receiver was away."""

    receiver: str
    accepted_at: int
    sender: str
    channel_id: str
    message_id: str


@dataclass
class Channel:
    id: str
    type: str = "group"
    exists: bool = False
    archived: bool = False
    outgrown: bool = False
    """It once had more members than are counted one by one."""
    last_seq: int = 0
    last_at: int = 0
    members: set[str] = field(default_factory=set)
    messages: list[Message] = field(default_factory=list)

    def find(self, message_id: str) -> Message | None:
        """The message of this id, or None."""
        return next((m for m in self.messages if m.id == message_id), None)

    def placed(self) -> list[Message]:
        """The messages that have a place in the channel, oldest first."""
        return [m for m in self.messages if m.seq is not None]

    def latest(self) -> Message | None:
        """The newest message that is not deleted."""
        return next((m for m in reversed(self.placed()) if not m.deleted), None)


@dataclass
class Row:
    """Everything that one user sees of one channel."""

    channel_id: str
    unread: int
    label: str
    has_unread: bool
    mentions: int
    first_unread: tuple[str, int, int] | None
    last_read: tuple[str | None, int, int | None]
    latest: tuple[str, int, int, str, str | None] | None
    muted: bool


@dataclass
class Sent:
    status: str
    id: str
    seq: int | None = None
    thread_seq: int | None = None
    code: str | None = None


@dataclass
class AllRead:
    """What a "mark all read" did, so that it can be undone."""

    user: str
    made_at: int
    steps: dict[str, tuple[Reading, Reading]]
    used: bool = False
