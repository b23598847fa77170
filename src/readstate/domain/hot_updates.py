"""What the hot store is told after the durable store has taken a change of a channel.

Every step carries the channel's change number; a channel and a (user, channel) ignore a number that they
have already passed. So a repeated step does nothing, and a writer that wakes up late brings nothing back.
"""

from msgspec import Struct

from .model import START, Channel, Entry, Mode, Pointer, Position


class ChannelHotUpdate(Struct, frozen=True, gc=False):
    """To a channel: how it stands now, and what came into or left its timeline."""

    channel: Channel
    change: int
    put: Entry | None = None
    """Counted from now on (or again, with another `mention`); `mention` says whether everyone is meant."""
    remove: int = 0
    """The seq that counts no more."""
    reload: bool = False
    """What is known of the timeline may lack something: it is loaded again on use."""


class FanOut(Struct, frozen=True, gc=False):
    """To these members: a message came, changed or went. Without `put` and `remove` it just says: look again."""

    channel_id: str
    change: int
    users: tuple[str, ...]
    put: Entry | None = None
    """Goes into the ledger of a user for whom it is unread."""
    named: frozenset[str] | None = frozenset()
    """Whom the message mentions; None is everyone."""
    sender: str | None = None
    remove: Position | None = None
    """Counts no more."""
    edit: bool = False
    """`put` stands for a message that was already there: only its mention changes."""
    latest_at: int = 0
    """The time of the channel's latest message: its score in the inbox."""
    archived: bool = False
    """Whether the channel is archived: it leaves the totals."""


class OwnRead(Struct, frozen=True, gc=False):
    """To the sender: the message is read, and what was before it, unless a mark-unread came between."""

    channel_id: str
    user_id: str
    seq: int
    pointer: Pointer


class Merged(Struct, frozen=True, gc=False):
    """To a user: a read state that the durable store has or that is on its way there; it merges."""

    channel_id: str
    user_id: str
    pointer: Pointer


class Joined(Struct, frozen=True, gc=False):
    """To these users: they are members now."""

    channel_id: str
    change: int
    mode: Mode
    last_seq: int
    """Whose pointer is here has nothing unread."""
    latest_at: int
    archived: bool
    pointers: tuple[tuple[str, Pointer], ...]
    read: Position = START
    """Up to where joining reads, in whatever epoch a user is: that may not be in the durable store yet."""


class Left(Struct, frozen=True, gc=False):
    """To these users: they are members no more; their pointers stay."""

    channel_id: str
    change: int
    users: tuple[str, ...]


class Switched(Struct, frozen=True, gc=False):
    """To these members: the channel is counted by its timeline from now on."""

    channel_id: str
    change: int
    users: tuple[str, ...]


class Gone(Struct, frozen=True, gc=False):
    """To everyone who ever had to do with it: the channel is deleted, with all that hung on it."""

    channel_id: str
    change: int
    users: tuple[str, ...]


UserHotUpdate = FanOut | OwnRead | Merged | Joined | Left | Switched | Gone
