"""Parses lines into checked records: every check that does not need the store."""

from collections.abc import Iterator
from itertools import chain

import msgspec
from msgspec import DecodeError, ValidationError
from msgspec.structs import replace

from readstate.api import Refused, Time
from readstate.api.preferences import PreferencesLine, plain
from readstate.domain.errors import Invalid, ReadstateError, TooLarge
from readstate.domain.model import FOREVER, Channel, Clock, Latest, Member, Message, Preferences
from readstate.domain.rooms import thread_room
from readstate.domain.rules import HERE, MAX_AHEAD_MS, MessageRules, check_id, check_user_id, mute_end, parse_time

from .records import (
    MAX_EPOCH,
    MAX_SEQ,
    VERSION,
    ChannelLine,
    FollowLine,
    Given,
    GivenRead,
    GivenUser,
    GivenUserRoom,
    Header,
    LastReadLine,
    LatestLine,
    MemberLine,
    MessageLine,
    Numbered,
    PointerLine,
    Record,
    ThreadLine,
    UserLine,
)

MAX_APART = 10_000

_decoder = msgspec.json.Decoder(Record)
_header = msgspec.json.Decoder(Header)


def lines_of(data: bytes, first_line: int, most: int) -> Iterator[tuple[int, bytes]]:
    """Lines that are not empty, with their numbers, among the first `most` lines."""
    for offset, line in enumerate(data.split(b"\n", most)[:most]):
        if line.strip():
            yield first_line + offset, line


def count_lines(data: bytes) -> int:
    """A last line without a newline counts."""
    return data.count(b"\n") + (not data.endswith(b"\n") and bool(data))


def wrong_header(line: bytes) -> str | None:
    """Why a first line is not a header of this version; None if it is."""
    try:
        header = _header.decode(line)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        expected = f'{{"type": "readstate", "version": {VERSION}}}'
        return f"the first line must be the header {expected}: {_plain(error)}"
    if header.version != VERSION:
        return f"the file has version {header.version}; this Readstate reads version {VERSION}"
    return None


class Checks:
    """Checks records against the limits of the service."""

    def __init__(self, clock: Clock, rules: MessageRules) -> None:
        self._clock = clock
        self._rules = rules

    def read(self, number: int, line: bytes) -> Numbered | Refused:
        """A record that is valid in itself, or the refusal."""
        try:
            return Numbered(number, self._given(_decoder.decode(line)))
        except ReadstateError as error:
            return Refused(number, error.detail)
        except (DecodeError, UnicodeDecodeError, RecursionError) as error:
            return Refused(number, _plain(error))

    def _given(self, record: Record) -> Given:
        match record:
            case MessageLine():
                return self._message(record)
            case MemberLine() | FollowLine() | PointerLine():
                return self._user_room(record)
            case ChannelLine() | ThreadLine():
                return self._room(record)
            case UserLine():
                tap, seen = self._past(record.last_tap, "last_tap"), self._past(record.last_seen, "last_seen")
                return GivenUser(check_user_id(record.user_id), tap, seen, record.receipts)

    # ------------------------------------------------------------ channels and threads

    def _room(self, line: ChannelLine | ThreadLine) -> Channel:
        room = Channel(_room_name(line), type="thread")
        if isinstance(line, ChannelLine):
            self._rules.check_text(line.name, "name")
            self._rules.check_text(line.avatar, "avatar")
            room = replace(room, type=line.kind, name=line.name, avatar=line.avatar, archived=line.archived)
        _check_seqs("last_seq", line.last_seq)
        last_at = _time(line.last_at, "last_at") or 0
        last_id = None if line.last_id is None else check_id(line.last_id, "last_id")
        latest = None if line.latest is None else self._latest(line.latest, line.last_seq)
        if latest is not None and latest.seq == line.last_seq:
            last_id, last_at = last_id or latest.id, last_at or latest.at
        self._check_clock(last_at, "last_at")
        end = {"last_seq": line.last_seq, "last_id": last_id, "last_at": last_at, "latest": latest}
        return replace(room, deleted=line.deleted, **end)

    def _latest(self, line: LatestLine, last_seq: int) -> Latest:
        seq = last_seq if line.seq is None else line.seq
        if not 0 < seq <= last_seq:
            raise Invalid(f"latest.seq must be from 1 to last_seq, which is {last_seq}")
        self._rules.check_text(line.preview, "latest.preview")
        at = self._past(line.at, "latest.at")
        preview = None if self._rules.store_text == "none" else line.preview
        return Latest(
            check_id(line.id, "latest.id"), seq, at, check_user_id(line.sender_id, "latest.sender_id"), preview
        )

    # ------------------------------------------------------------ messages

    def _message(self, line: MessageLine) -> Message:
        self._check_message(line)
        self._rules.check_text(line.text, "text")
        self._rules.check_text(line.preview, "preview")
        at, sent_at = self._past(line.at, "at"), _time(line.sent_at, "sent_at")
        text, preview = (None, None) if line.deleted else self._rules.kept(line.text, line.preview)
        return Message(
            channel_id=check_id(line.channel_id, "channel_id"),
            id=check_id(line.id, "id"),
            seq=line.seq,
            sender_id="" if line.sender_id is None else check_user_id(line.sender_id, "sender_id"),
            at=at,
            sent_at=sent_at,
            text=text,
            preview=preview,
            thread_id=None if line.thread_id is None else check_id(line.thread_id, "thread_id"),
            thread_seq=line.thread_seq,
            mentions=self._mentions(line) if line.mentions else (),
            silent=line.silent,
            deleted=line.deleted,
            backfill=line.backfill,
        )

    @staticmethod
    def _check_message(line: MessageLine) -> None:
        _check_seqs("seq", line.seq or 0)
        _check_seqs("thread_seq", line.thread_seq or 0)
        if line.seq == 0 or line.thread_seq == 0:
            raise Invalid("seq and thread_seq begin with 1")
        if line.thread_seq is not None and line.thread_id is None:
            raise Invalid("thread_seq goes with thread_id")
        if line.backfill and (line.seq is not None or line.thread_seq is not None):
            raise Invalid("a backfill has no seq and no thread_seq")
        if line.sender_id is None:
            if not line.deleted:
                raise Invalid("sender_id may be null only where deleted is true")
            if line.seq is not None or line.thread_id is not None:
                raise Invalid("a message with a seq or thread_id needs its sender_id")

    def _mentions(self, line: MessageLine) -> tuple[str, ...]:
        found = self._rules.mentions(line.mentions)
        if HERE in found:
            raise Invalid('it is unknown who was online then: instead of "@here" name the users, or "@channel"')
        return found

    def _check_clock(self, at: int, field: str) -> None:
        if at > self._clock() + MAX_AHEAD_MS:
            raise Invalid(f"{field} is in the future")

    def _past(self, value: Time, field: str) -> int:
        """A time that must not be in the future: it would hold back real events until then."""
        at = parse_time(value, field)
        self._check_clock(at, field)
        return at

    # ------------------------------------------------------------ members, followers

    def _user_room(self, line: MemberLine | FollowLine | PointerLine) -> GivenUserRoom:
        room, user = _room_name(line), check_user_id(line.user_id)
        member = None
        if not isinstance(line, PointerLine):
            _check_seqs("joined_seq", line.joined_seq)
            _check_seqs("skipped", *chain.from_iterable(line.skipped))
            joined_at = self._past(line.joined_at, "joined_at")
            member = Member(room, user, line.active, line.joined_seq, joined_at, line.skipped)
        wanted = _preferences(line.preferences) if isinstance(line, MemberLine) else Preferences()
        return GivenUserRoom(room, user, member, wanted, self._read(line.last_read))

    def _read(self, line: LastReadLine | None) -> GivenRead | None:
        if line is None:
            return None
        if line.seq is None and line.id is None and line.at is None:
            raise Invalid("last_read needs a seq, the id of a message, or a time (at)")
        if len(line.apart) > MAX_APART:
            raise TooLarge(f"at most {MAX_APART} seqs in last_read.apart")
        if line.epoch > MAX_EPOCH:
            raise Invalid("last_read.epoch must be at most 2^46, so that there is room for what follows")
        _check_seqs("last_read.seq", line.seq or 0)
        _check_seqs("last_read.apart", *line.apart)
        return GivenRead(
            line.epoch,
            line.seq,
            frozenset(line.apart),
            None if line.id is None else check_id(line.id, "last_read.id"),
            None if line.at is None else self._past(line.at, "last_read.at"),
            None if line.read_at is None else self._past(line.read_at, "last_read.read_at"),
        )


def _preferences(line: PreferencesLine | None) -> Preferences:
    if line is None:
        return Preferences()
    muted_until = mute_end(line.muted, "preferences.muted")
    archived_seq = (FOREVER if line.archived else -1) if isinstance(line.archived, bool) else line.archived
    if archived_seq != FOREVER:
        _check_seqs("preferences.archived", archived_seq)
    return Preferences(muted_until=muted_until, archived_seq=archived_seq, **plain(line, Preferences))


def _room_name(line: ChannelLine | ThreadLine | MemberLine | FollowLine | PointerLine) -> str:
    channel = check_id(line.channel_id, "channel_id")
    thread = None if isinstance(line, ChannelLine | MemberLine) else line.thread_id
    return channel if thread is None else thread_room(channel, check_id(thread, "thread_id"))


def _time(value: Time | None, field: str) -> int | None:
    return None if value is None else parse_time(value, field)


def _check_seqs(field: str, *seqs: int) -> None:
    if any(seq > MAX_SEQ for seq in seqs):
        raise Invalid(f"{field} must be at most 2^31, so that there is room for what follows")


def _plain(error: DecodeError | UnicodeDecodeError | RecursionError) -> str:
    """The error in words for the import report."""
    if isinstance(error, RecursionError):
        return "the line is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return "the line is not UTF-8"
    text = str(error).replace("`", "")
    return text if isinstance(error, ValidationError) else f"the line is not JSON: {text}"
