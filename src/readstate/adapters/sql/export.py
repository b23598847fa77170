"""Export in SQL."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

import msgspec

from readstate.api.preferences import preferences_line
from readstate.domain.errors import StorageUnavailable
from readstate.domain.model import Preferences
from readstate.domain.rooms import channel_and_thread, is_thread
from readstate.transfer.records import MessageLine, Record

from .session import SqlTopic

PAGE = 500
_OF_THREADS = {"channel": "thread", "member": "follow"}
"""Record types of threads whose rows say `group`: an earlier version let callers delete a thread by its room name."""
_NOT_OF_THREADS = ("preferences", "kind", "name", "avatar", "archived")
_PARTS = ("rooms", "members", "pointers", "unplaced", "messages", "replies", "users")
"""Members and followers come before messages: for members who arrive after the replies, an import presumes follows."""
_MESSAGES = {"unplaced", "messages", "replies"}
_message_line = msgspec.json.Decoder(MessageLine)


class SqlExport(SqlTopic):
    async def export(self) -> AsyncGenerator[Sequence[Record], None]:
        stalled = False

        def abandon() -> None:
            nonlocal stalled
            stalled = True
            snapshot.close()

        async with self._database.snapshot() as snapshot:
            for part in _PARTS:
                a, b, c = "", -1, ""
                while page := await snapshot.rows(f"export_{part}", a=a, b=b, c=c, limit=PAGE):
                    a, b, c, _ = page[-1]
                    watch = asyncio.get_running_loop().call_later(self._timings.export_page, abandon)
                    try:
                        yield [record_of(part, text) for *_, text in page]
                    finally:
                        watch.cancel()
                    if stalled:
                        raise StorageUnavailable("the export was not read for too long: begin again")


def record_of(part: str, text: str) -> Record:
    """A row as its record. A thread room is written as channel and thread."""
    if part in _MESSAGES:
        return _message_line.decode(text)
    fields = msgspec.json.decode(text)
    room = fields.get("channel_id", "")
    if is_thread(room):
        fields["type"] = _OF_THREADS.get(fields["type"], fields["type"])
        fields["channel_id"], fields["thread_id"] = channel_and_thread(room)
        for name in _NOT_OF_THREADS:
            fields.pop(name, None)
    elif "preferences" in fields:
        wanted = msgspec.convert(fields.pop("preferences"), Preferences, strict=False)
        if line := msgspec.to_builtins(preferences_line(wanted)):  # without defaults
            fields["preferences"] = line
    record: Record = msgspec.convert(fields, Record)
    return record
