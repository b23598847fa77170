"""What the fold of a run keeps: its facts, and the rows to write."""

from collections.abc import Container, Iterable

from readstate.domain.events import MessageEvent
from readstate.domain.facts import Changes, Facts, Key
from readstate.domain.hot_updates import Gone
from readstate.domain.model import ChangeNumber, Channel, Latest, Member, Message, Pointer, Position
from readstate.domain.rules import advance, pointer_at


class Folding:
    def __init__(self, facts: Facts, fanout_max_members: int, online: Container[str], keeps_badge: bool = True) -> None:
        self.facts = facts
        self.keeps_badge = keeps_badge
        self.limit = fanout_max_members
        self.online = online
        self.changes = Changes()
        self._muted = {channel for channel, _ in facts.muted}
        self._split_audience: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        """By channel: members who are online, and members who are away."""

    def _own_pointer(
        self, room: str, message: Message, seq: int | None, event: MessageEvent, epoch: int = 0
    ) -> Pointer:
        """The sender has read up to the message. `epoch` may not be stored yet; the pointer merges with it later."""
        assert seq is not None
        key = (room, message.sender_id)
        known = self.facts.pointers.get(key) or Pointer()
        known = known if epoch <= known.epoch else Pointer(epoch)
        end = Position(seq, message.id, message.at)
        pointer = pointer_at(advance(known.state, seq), end, event.created_at)
        self.facts.pointers[key] = self.changes.pointers[key] = pointer
        return pointer

    def _is_active(self, channel: str, user: str) -> bool:
        member = self.facts.members.get((channel, user))
        return member is not None and member.active

    def _store(self, message: Message) -> None:
        key = (message.channel_id, message.id)
        self.facts.messages[key] = self.changes.messages[key] = message

    def _set_channel(self, channel: Channel) -> None:
        self.facts.channels[channel.channel_id] = self.changes.channels[channel.channel_id] = channel

    def _set_member(self, member: Member) -> None:
        key = (member.channel_id, member.user_id)
        self.facts.members[key] = self.changes.members[key] = member


def gone(everyone: Iterable[Key], change: ChangeNumber) -> list[Gone]:
    """The hot updates of a deleted channel and its threads. `everyone`: (room, user) of all who were ever in them."""
    rooms: dict[str, list[str]] = {}
    for room, user in everyone:
        rooms.setdefault(room, []).append(user)
    return [Gone(room, change, tuple(users)) for room, users in rooms.items()]


def latest_of(message: Message, seq: int | None) -> Latest | None:
    if seq is None:
        return None
    return Latest(message.id, seq, message.at, message.sender_id, message.preview)


def end_of(message: Message, seq: int | None) -> dict[str, object]:
    """The fields of a room that a new last message sets."""
    return {"last_seq": seq, "last_id": message.id, "last_at": message.at, "latest": latest_of(message, seq)}


def position_of(message: Message, seq: int | None) -> Position | None:
    return Position(seq, message.id, message.at) if seq else None
