"""The content of the hot store in words, the same for every adapter."""

from collections.abc import Iterable
from datetime import UTC, datetime

from readstate.domain.model import Channel, Pointer, Preferences

SHOWN = 20
"""Numbers that are listed; of more, only how many there are."""
_IN_WORDS = frozenset({"count", "muted_until", "archived_seq", "change"})


def time_of(ms: int | None) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds") if ms else "not known"


def numbers(values: Iterable[int]) -> str:
    ordered = sorted(values)
    listed = ", ".join(map(str, ordered[:SHOWN]))
    return f"{listed} and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else listed or "none"


def pointer_facts(pointer: Pointer) -> dict[str, str]:
    place = f"{pointer.id}, sent {time_of(pointer.at)}" if pointer.id else "its message is not known"
    return {
        "pointer": f"seq {pointer.seq} ({place})" if pointer.seq else "nothing is read",
        "epoch": str(pointer.epoch),
        "change number": str(pointer.change),
    }


def preferences_facts(preferences: Preferences) -> dict[str, str]:
    """Every preference, under its own name where no words say it better."""
    muted, archived = preferences.muted_until, preferences.archived_seq
    others = (name for name in preferences.__struct_fields__ if name not in _IN_WORDS)
    return {
        "counts": preferences.count,
        **{name: _word(getattr(preferences, name)) for name in others},
        "muted until": time_of(muted) if muted else "not muted",
        "archived": f"until a message after seq {archived}" if archived >= 0 else "no",
        "change number": str(preferences.change),
    }


def channel_facts(channel: Channel) -> dict[str, str]:
    return {
        "type": channel.type,
        "counted by": channel.mode.value,
        "members": str(channel.member_count),
        "last message": f"seq {channel.last_seq} ({channel.last_id}, sent {time_of(channel.last_at)})"
        if channel.last_id
        else "none",
        "archived": yes_or_no(channel.archived),
        "deleted": yes_or_no(channel.deleted),
        "change of the channel": str(channel.change),
        "position in the log": str(channel.position),
    }


def yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


def _word(value: object) -> str:
    return yes_or_no(value) if isinstance(value, bool) else str(value)
