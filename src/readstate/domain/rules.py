"""The rules for read states, labels and input, pure. Every component that holds or moves a read state uses them."""

import re
from collections.abc import Iterable, Sequence, Sized
from datetime import UTC, datetime
from typing import Literal

from msgspec import Struct

from .errors import DirectChannelFull, Invalid, InvalidId, TooLarge
from .model import (
    FOREVER,
    MAX_NUMBER,
    NO_CHANGE,
    ChangeNumber,
    Epoch,
    Generation,
    Pointer,
    Position,
    ReadState,
    SeenPosition,
)

EVERYONE = "@channel"
HERE = "@here"

MAX_ID_BYTES = 128
MAX_IN_DIRECT = 2
"""Members of a direct channel. One with more members from an earlier version keeps them, but takes no new ones."""
EPOCHS_PER_GENERATION = 2**20
MAX_AHEAD_MS = 60_000
"""How far a given time may be ahead of this clock, for clock skew."""


# ---------------------------------------------------------------- read states


def merge(a: ReadState, b: ReadState) -> ReadState:
    """Combine two states of one user in one room. Commutative, associative, idempotent.

    Stores have it in their own words: `merge_receipts` and `merge_pointers` in `adapters/sql/*/queries.sql`, and
    `merged` in `adapters/valkey/lua/user_apply.lua`; the moves below are in `user_move.lua` too. `tests/model` and
    `tests/contract` compare them.
    """
    if a.epoch != b.epoch:
        return a if a.epoch > b.epoch else b
    return advance(a, b.seq, b.apart)


def advance(state: ReadState, seq: int, apart: Iterable[int] = ()) -> ReadState:
    """Read up to `seq`, and `apart` one by one, in the same epoch. Never takes a read back."""
    top = max(state.seq, seq)
    beyond = frozenset(s for s in state.apart.union(apart) if s > top)
    if top == state.seq and beyond == state.apart:
        return state
    return ReadState(state.epoch, top, beyond)


def rewind(state: ReadState, seq: int, own: Iterable[int], epoch: Epoch) -> ReadState:
    """Mark unread from `seq` on, in a new epoch. Never marks anything as read; own messages stay read."""
    top = min(state.seq, seq - 1)
    kept = {s for s in state.apart if s < seq}
    return ReadState(epoch, top, frozenset(kept.union(s for s in own if s > top)))


def give_back(now: ReadState, before: ReadState, after: ReadState, epoch: Epoch) -> ReadState | None:
    """Undo the move from `before` to `after`, but keep what was read one by one since.

    None: the user has moved the pointer since, so nothing is undone.
    """
    if (now.epoch, now.seq) != (after.epoch, after.seq):
        return None
    since = now.apart - after.apart
    return ReadState(epoch, before.seq, before.apart | since)


def next_epoch(epoch: int, generation: Generation) -> Epoch:
    """A new epoch. After a loss, the raised generation keeps the hot store from reusing an epoch from before."""
    return Epoch(max(epoch + 1, generation * EPOCHS_PER_GENERATION))


def skipped_by_join(state: ReadState, seq: int) -> tuple[tuple[int, int], ...]:
    """The ranges (after, up to) that a join at `seq` marks as read, without what was read one by one."""
    ends = sorted(s for s in state.apart if s <= seq)
    starts = [state.seq, *ends]
    return tuple((a, b - 1) for a, b in zip(starts, [*ends, seq + 1], strict=True) if b - 1 > a)


def receipt_seq(seq: int, skipped: Sequence[Sequence[int]]) -> int:
    """How far a user has really read: without a range at the end that only a join marked as read."""
    for after, up_to in sorted(map(tuple, skipped), reverse=True):
        if after < seq <= up_to:
            seq = after
    return seq


def has_seen(state: ReadState, seq: int, skipped: Sequence[Sequence[int]]) -> bool:
    """Whether a message is read, and not only by a join."""
    return (seq <= state.seq or seq in state.apart) and not any(after < seq <= up_to for after, up_to in skipped)


def merged_pointer(one: Pointer, other: Pointer) -> Pointer:
    """Merge two pointers of one user in one room. Position and time are those of the one that is ahead."""
    state = merge(one.state, other.state)
    if state == one.state:
        return one
    ahead = other if (other.epoch, other.seq) >= (one.epoch, one.seq) else one
    return pointer_at(state, ahead.position, max(one.read_at, other.read_at))


def seen_position(
    user: str, channel: str, position: Position, read_at: int, skipped: Sequence[Sequence[int]]
) -> SeenPosition:
    """A pointer as others see it, without what only a join marked as read."""
    seq = receipt_seq(position.seq, skipped)
    return SeenPosition(channel, user, position.id if seq == position.seq else None, seq, read_at)


def pointer_at(state: ReadState, position: Position, read_at: int = 0, change: ChangeNumber = NO_CHANGE) -> Pointer:
    return Pointer(state.epoch, state.seq, state.apart, position.id, position.at, read_at, change)


# ---------------------------------------------------------------- counting


def label(count: int, cap: int) -> str:
    if count <= 0:
        return ""
    return str(count) if count <= cap else f"{cap}+"


# ---------------------------------------------------------------- members


def direct_error(channel: str, count: int, field: str) -> DirectChannelFull | None:
    """Why a direct channel cannot have this many members; None: it can."""
    if count <= MAX_IN_DIRECT:
        return None
    detail = f"channel {channel!r} is direct and has two members at most: remove a member first, or make it a group"
    return DirectChannelFull(detail, field=field)


# ---------------------------------------------------------------- input checks


def check_id(value: str | int, field: str = "id") -> str:
    """An id as a string; InvalidId if it is not 1 to 128 bytes of printable UTF-8."""
    text = str(value) if isinstance(value, int) else value
    if not text or not _is_printable(text) or len(text) > MAX_ID_BYTES or len(text.encode()) > MAX_ID_BYTES:
        raise InvalidId(f"{field} must be 1 to {MAX_ID_BYTES} bytes of printable UTF-8", field=field)
    return text


def check_user_id(value: str | int, field: str = "user_id") -> str:
    """A user id. It must not begin with '@', which is reserved for @channel and @here."""
    text = check_id(value, field)
    if text[0] == "@":
        raise InvalidId(f"{field} must not begin with '@'", field=field)
    return text


def check_user_room(user: str, channel: str) -> None:
    """The ids in the path of a request about a user in a channel."""
    check_user_id(user, "user")
    check_id(channel, "channel")


def check_mention(value: str | int, field: str = "mentions") -> str:
    return value if value in {EVERYONE, HERE} and isinstance(value, str) else check_user_id(value, field)


def check_size(items: Sized, most: int, field: str) -> None:
    if len(items) > most:
        raise TooLarge(f"{field}: at most {most} in one request", field=field)


def _is_printable(text: str) -> bool:
    """Whether all characters are visible, except for the joiners that emoji and some scripts need."""
    return text.isprintable() or text.replace("\u200c", "").replace("\u200d", "").isprintable()


def check_text(text: str | None, field: str, max_bytes: int) -> None:
    """Check length, and that there is no NUL, which not every store takes."""
    if text is None:
        return
    if "\0" in text:
        raise Invalid(f"{field} must not hold a NUL character", field=field)
    if len(text) > max_bytes or len(text.encode()) > max_bytes:
        raise TooLarge(f"{field} is longer than {max_bytes} bytes", field=field)


_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def parse_time(value: str | int, field: str) -> int:
    """Milliseconds since 1970, from a number or RFC 3339."""
    if isinstance(value, int):
        if 0 <= value <= MAX_NUMBER:
            return value
        raise Invalid(f"{field} must be milliseconds since 1970, from 0 to 2^53 - 1", field=field)
    try:
        if _RFC3339.fullmatch(value):
            moment = datetime.fromisoformat(value.upper())
            milliseconds = int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
            if milliseconds >= 0:
                return milliseconds
    except (ValueError, OverflowError):
        pass
    raise Invalid(f"{field} must be milliseconds or RFC 3339 with a zone, such as 2026-01-31T09:30:00Z", field=field)


def mute_end(muted: bool | str | int, field: str) -> int:
    """`muted_until` of a mute: on, off, or until a time."""
    if isinstance(muted, bool):
        return FOREVER if muted else 0
    return parse_time(muted, field)


class MessageRules(Struct, frozen=True):
    """The limits of a message, and what is kept of its text."""

    max_text: int
    max_mentions: int
    preview_length: int
    store_text: Literal["full", "preview", "none"]

    def check_text(self, text: str | None, field: str) -> None:
        check_text(text, field, self.max_text)

    def mentions(self, mentions: Sequence[str | int]) -> tuple[str, ...]:
        """The users mentioned, each once."""
        if len(mentions) > self.max_mentions:
            raise TooLarge(f"at most {self.max_mentions} mentions in one message", field="mentions")
        return tuple(dict.fromkeys(check_mention(user, f"mentions[{i}]") for i, user in enumerate(mentions)))

    def kept(self, text: str | None, preview: str | None) -> tuple[str | None, str | None]:
        """Text and preview, as far as they are stored. The preview is the given one, or the beginning of the text."""
        if self.store_text == "none":
            return None, None
        if preview is None and text is not None:
            preview = text[: self.preview_length]
        return (text if self.store_text == "full" else None), preview
