"""A thread is a room of its own: its replies have their own seqs, and its followers are its members.

Pointers, merge, ledgers, loading and change numbers work for a thread as for a channel. The room of a thread is named
by its channel and its root's id.
"""

from zlib import crc32

SEPARATOR = "\x1f"
"""Not printable, so no id contains it."""


def thread_room(channel: str, thread: str) -> str:
    return channel + SEPARATOR + thread


def is_thread(room: str) -> bool:
    return SEPARATOR in room


def channel_and_thread(room: str) -> tuple[str, str]:
    channel, _, thread = room.partition(SEPARATOR)
    return channel, thread


def partition_of(room: str, partitions: int) -> int:
    """The partition of the log that orders a channel and its threads."""
    return crc32(room.partition(SEPARATOR)[0].encode()) % partitions if partitions > 1 else 0
