"""The types of counters: mypy finds one in the place of another, and at run time they are integers."""

from readstate.domain.events import ReadEvent
from readstate.domain.facts import Effect
from readstate.domain.model import (
    ChangeNumber,
    Channel,
    DropNumber,
    Epoch,
    Generation,
    LogPosition,
    Pointer,
    ReadState,
    Seq,
)
from readstate.domain.rules import next_epoch, rewind
from readstate.profiles.consistency import Shared
from readstate.services.cursors import SyncCursor

SEQ, EPOCH, CHANGE = Seq(1), Epoch(2), ChangeNumber(3)
GENERATION, DROP, POSITION = Generation(4), DropNumber(5), LogPosition(6)
READ_AT = 7


def test_mypy_finds_a_counter_in_the_place_of_another() -> None:
    """mypy refuses an `ignore` that hides nothing: then a swap is no longer found."""
    Pointer(0, SEQ, read_at=CHANGE, change=READ_AT)  # type: ignore[arg-type]
    ReadEvent("bob", "c", 0, SEQ, (), None, None, CHANGE, READ_AT, 0)  # type: ignore[arg-type]
    Channel("c", change=POSITION)  # type: ignore[arg-type]
    Channel("c", position=CHANGE)  # type: ignore[arg-type]
    Effect(position=SEQ)  # type: ignore[arg-type]
    SyncCursor(POSITION, (POSITION,), 0, 0)  # type: ignore[arg-type]
    SyncCursor(CHANGE, (CHANGE,), 0, 0)  # type: ignore[arg-type]
    next_epoch(GENERATION, EPOCH)  # type: ignore[arg-type]
    rewind(ReadState(), EPOCH, (), SEQ)  # type: ignore[arg-type]
    Shared().generation_to_move_in(GENERATION)  # type: ignore[arg-type]


def test_counters_are_plain_integers() -> None:
    assert {type(one) for one in (SEQ, EPOCH, CHANGE, GENERATION, DROP, POSITION)} == {int}
