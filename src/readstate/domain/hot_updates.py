"""Changes that the hot store takes after the durable store has them.

Every update carries the channel's change number. A channel or user room ignores a number that it has passed. So
replays do nothing, and a writer that is late brings nothing back.
"""

from msgspec import Struct

from .model import START, Channel, Entry, Mode, Pointer, Position


class ChannelHotUpdate(Struct, frozen=True, gc=False):
    """For a channel: its current state, and what entered or left its timeline."""

    channel: Channel
    change: int
    put: Entry | None = None
    """Counts from now on, or again with another `mention`. `mention`: it mentions everyone."""
    remove: int = 0
    """The seq that no longer counts; 0: none."""
    reload: bool = False
    """The timeline may lack something: drop it, so that it is reloaded on use."""


class _ForUsers(Struct, frozen=True, gc=False):
    channel_id: str
    change: int
    users: tuple[str, ...]


class FanOut(_ForUsers, frozen=True, gc=False):
    """For many members: a message came, changed or went. Without `put` and `remove`: the room changed otherwise."""

    put: Entry | None = None
    """Goes into the ledger of every user for whom it is unread."""
    named: frozenset[str] | None = frozenset()
    """The users whom the message mentions; None: everyone."""
    sender: str | None = None
    remove: Position | None = None
    """The position that no longer counts."""
    edit: bool = False
    """`put` is a message that is known already: only its mention changes."""
    latest_at: int = 0
    """The time of the channel's latest message, which orders the inbox."""
    archived: bool = False
    """An archived channel leaves the totals."""


class OwnRead(Struct, frozen=True, gc=False):
    """For the sender: the message and everything before it is read, unless a mark-unread came between."""

    channel_id: str
    user_id: str
    seq: int
    pointer: Pointer


class Merged(Struct, frozen=True, gc=False):
    """For a user: merge a read state that the durable store has or will get."""

    channel_id: str
    user_id: str
    pointer: Pointer


class Joined(Struct, frozen=True, gc=False):
    """For these users: they are members now."""

    channel_id: str
    change: int
    mode: Mode
    last_seq: int
    """A user whose pointer is here has nothing unread."""
    latest_at: int
    archived: bool
    pointers: tuple[tuple[str, Pointer], ...]
    read: Position = START
    """The join reads up to here, in whatever epoch a user is. That epoch may not be in the durable store yet."""


class Left(_ForUsers, frozen=True, gc=False):
    """For these users: they are no longer members. Their pointers stay."""


class Switched(_ForUsers, frozen=True, gc=False):
    """For these members: the channel is counted by its timeline from now on."""


class Gone(_ForUsers, frozen=True, gc=False):
    """For every user who was ever in the channel or its threads: it is deleted, with all its state."""


UserHotUpdate = FanOut | OwnRead | Merged | Joined | Left | Switched | Gone
