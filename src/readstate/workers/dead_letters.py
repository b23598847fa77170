"""Handles dead letters.

A read state is repaired, because it merges: the event's own state goes into the durable store, and so does the state in
the hot store, which is at least as far unless it was lost. If the event can't be decoded but names its user and
channel, only the state in the hot store is merged.

Events that change channels have an order, and the message writer has gone on without the event. Applied now, a name, a
membership or an edit could undo a later one, and a message that fails by itself would fail again and block its
partition each time. So these are only listed, and an operator decides whether to replay them.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog
from msgspec import json
from msgspec.structs import replace

from readstate.domain.errors import Invalid, TooLarge, Unavailable
from readstate.domain.events import Consumed, DeadLetter, ReadEvent, read_event
from readstate.domain.facts import Key
from readstate.domain.hot_updates import Merged
from readstate.domain.model import MAX_NUMBER, Pointer
from readstate.domain.rooms import channel_and_thread, is_thread
from readstate.domain.rules import check_id, check_user_id, merge
from readstate.ports import Clock, DurableDeadLetters, DurableReads, HotUsers
from readstate.telemetry import DLT_FAILED, DLT_RECONCILED

log = structlog.get_logger()

MAX_CHANGE = 2**63 - 1
SHOWN_BYTES = 64 * 1024
"""Kept of an event that is too large for the list: enough to recognize it."""


class Store(DurableReads, DurableDeadLetters, Protocol):
    """The durable store, as far as dead letters need it."""


@dataclass(eq=False, repr=False)
class DeadLetters:
    """Consumer of the `-dlt` topics. Idempotent.

    `split` returns the read events of a packed record, which a worker of an older version may have put aside whole.
    `decode` decodes a read event; `whose` finds only its user and room. Both raise ValueError.
    """

    _durable: Store
    _users: HotUsers
    _clock: Clock
    _reads: str
    _split: Callable[[bytes], Sequence[bytes]]
    _decode: Callable[[bytes], ReadEvent]
    _whose: Callable[[bytes], Key]

    async def handle(self, letters: Sequence[DeadLetter]) -> None:
        """Repair or list each dead letter. Raises Unavailable while a store is down: retry the whole batch."""
        failed: list[DeadLetter] = []
        for letter in letters:
            reason = await self._repair(letter)
            if reason is not None:
                failed.append(letter)
                log.error("a dead letter is listed", action="dead-letters", topic=letter.topic, reason=reason)
        await self._durable.put_dead_letters(failed)
        for letter in letters:
            (DLT_FAILED if letter in failed else DLT_RECONCILED).labels(letter.topic).inc()

    async def _repair(self, letter: DeadLetter) -> str | None:
        """Returns why the dead letter can't be repaired; None if it was."""
        if letter.topic != self._reads:
            return f"events of a channel are ordered, and later ones are applied: {letter.error}"
        try:
            for value in self._split(letter.event.encode()):
                await self._merge(value)
        except Unavailable:
            raise
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    async def _merge(self, value: bytes) -> None:
        now = self._clock()  # before the hot state is read: an erase after this time wins
        event, fault = self._readable(value)
        user, room = self._whose(value) if event is None else (event.user_id, event.channel_id)
        _check_names(user, room)
        view = await self._users.view(user, [room])
        hot = view.user_rooms[0].pointer if view is not None and view.user_rooms else None
        if event is None and hot is None:
            raise fault or ValueError("the hot store has no state of it")
        if event is not None:
            taken = await self._durable.merge_unless_erased([event])
            if taken and view is not None and _lacks(hot or Pointer(), event):
                moved = await self._users.apply([Merged(room, user, event.pointer)])
                hot = moved[0].pointer if moved else hot
        if hot is not None:
            await self._durable.merge_unless_erased([read_event(user, room, hot, now)])

    def _readable(self, value: bytes) -> tuple[ReadEvent | None, ValueError | None]:
        """The event if it decodes and its values are valid; otherwise the reason."""
        try:
            event = self._decode(value)
            _check_names(event.user_id, event.channel_id)
            _check_values(event)
        except Invalid as error:
            return None, ValueError(error.detail)
        except ValueError as error:
            return None, error
        return event, None


def _check_names(user: str, room: str) -> None:
    check_user_id(user)
    for name in channel_and_thread(room) if is_thread(room) else (room,):
        check_id(name, "channel_id")


def _check_values(event: ReadEvent) -> None:
    numbers = (event.epoch, event.last_read_seq, *event.apart, event.last_read_at or 0, event.read_at, event.created_at)
    if min(numbers) < 0 or max(numbers) > MAX_NUMBER or not 0 <= event.change <= MAX_CHANGE:
        raise ValueError("a number in it is out of bounds")
    if event.last_read_id is not None:
        check_id(event.last_read_id, "last_read_id")


def _lacks(pointer: Pointer, event: ReadEvent) -> bool:
    """Whether the event would move the pointer."""
    return merge(pointer.state, event.pointer.state) != pointer.state


@dataclass(eq=False, repr=False)
class FailedEvents:
    """Where events go that a worker can't handle: to their dead-letter topic, or to the list in the database.

    `send` appends to the dead-letter topic of a topic; `max_bytes` is the largest record that the log takes.
    """

    _send: Callable[[str, Sequence[DeadLetter]], Awaitable[None]]
    _dead_letters: DeadLetters
    _durable: DurableDeadLetters
    _clock: Clock
    _max_bytes: int

    async def to_topic(self, record: Consumed, reason: str, tries: int) -> None:
        """An event grows when it becomes text in a dead letter.

        If the log refuses it for its size, it is repaired or listed here; otherwise it would end every process that
        consumes it.
        """
        failed = self._dead_letter(record, reason, tries)
        try:
            await self._send(failed.topic, [failed])
        except TooLarge:
            await self._dead_letters.handle([self._fitting(failed)])

    async def to_list(self, record: Consumed, reason: str, tries: int) -> None:
        """For events that can't be repaired."""
        await self._durable.put_dead_letters([self._fitting(self._dead_letter(record, reason, tries))])
        DLT_FAILED.labels(record.topic).inc()

    def _dead_letter(self, record: Consumed, reason: str, tries: int) -> DeadLetter:
        text = record.value.decode("utf-8", "replace")
        place = record.topic, record.partition, record.offset
        return DeadLetter(text, reason, tries, *place, self._clock(), index=record.nth)

    def _fitting(self, failed: DeadLetter) -> DeadLetter:
        """The dead letter as the list can hold it, with the complete event if it can ever be replayed.

        JSON inside JSON is at most twice as large, but arbitrary bytes may grow beyond what the database takes; of
        those only the first bytes are kept.
        """
        size = len(failed.event.encode())
        failed = replace(failed, error=_beginning(failed.error))
        if size <= self._max_bytes and len(json.encode(failed.event)) <= 2 * self._max_bytes + 2:
            return failed
        shown = _beginning(failed.event)
        lost = f" (only the first {len(shown.encode()):,} of {size:,} bytes are kept: it can't be played again)"
        return replace(failed, event=shown, error=failed.error + lost)


def _beginning(text: str) -> str:
    return text.encode()[:SHOWN_BYTES].decode(errors="ignore")
