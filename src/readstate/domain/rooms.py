"""A thread is a room of its own: its replies have their seqs, and its followers are its members.

So everything that holds for a channel (pointers and their merge, ledgers, loading, change numbers) holds for
a thread, with no second mechanism. The room of a thread is named by its channel and its root's id.
"""

from zlib import crc32

SEPARATOR = "\x1f"
"""Not printable, so in no id."""


def thread_room(channel: str, thread: str) -> str:
    """The room of a thread."""
    return channel + SEPARATOR + thread


def is_thread(room: str) -> bool:
    """Whether a room is a thread's."""
    return SEPARATOR in room


def channel_and_thread(room: str) -> tuple[str, str]:
    """The channel and the root's id of a thread's room."""
    channel, _, thread = room.partition(SEPARATOR)
    return channel, thread


def partition_of(room: str, partitions: int) -> int:
    """The part of the log that a channel has its order in, and its threads with it."""
    return crc32(room.partition(SEPARATOR)[0].encode()) % partitions if partitions > 1 else 0
