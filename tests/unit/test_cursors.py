"""Cursors are good for the service that made them, the kind of list, and its owner; for nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from readstate.domain.errors import InvalidCursor
from readstate.domain.model import ChangeNumber, LogPosition
from readstate.services.cursors import Cursors, MembersAfter, SyncCursor, ThreadsAfter

KEY = bytes(range(32))
STORE = 2**63 - 1
CURSORS = Cursors(KEY, STORE)
SYNC = SyncCursor(ChangeNumber(2**40), tuple(map(LogPosition, (1, 2, 3))), 1_700_000_000_000, 5)


def test_a_cursor_comes_back_as_it_was() -> None:
    text = CURSORS.encode(SYNC, "bob")

    assert CURSORS.decode(text, SyncCursor, "bob") == SYNC
    assert Cursors(KEY, STORE).decode(text, SyncCursor, "bob") == SYNC
    assert text.isascii()
    assert text.replace("-", "").replace("_", "").isalnum()


def test_one_that_is_in_doubt_is_of_the_same_moment() -> None:
    text = CURSORS.in_doubt(CURSORS.encode(SYNC, "bob"), "bob")

    doubtful = CURSORS.decode(text, SyncCursor, "bob")
    assert (doubtful.change, doubtful.positions, doubtful.sure) == (SYNC.change, SYNC.positions, False)


@pytest.mark.parametrize(
    "others",
    [Cursors(KEY[::-1], STORE), Cursors(KEY, STORE - 1), Cursors(KEY, 0)],
    ids=["another key", "another store", "no store"],
)
def test_a_cursor_of_another_key_or_store_is_refused(others: Cursors) -> None:
    with pytest.raises(InvalidCursor):
        CURSORS.decode(others.encode(SYNC, "bob"), SyncCursor, "bob")


@pytest.mark.parametrize("owner", ["alice", "bo", "bobb", ""])
def test_a_cursor_of_another_owner_is_refused(owner: str) -> None:
    with pytest.raises(InvalidCursor):
        CURSORS.decode(CURSORS.encode(SYNC, "bob"), SyncCursor, owner)


def test_a_cursor_of_another_kind_is_refused() -> None:
    with pytest.raises(InvalidCursor) as refused:
        CURSORS.decode(CURSORS.encode(MembersAfter("bob"), "bob"), ThreadsAfter, "bob", "since")
    assert refused.value.field == "since"
    assert refused.value.status == 400


@pytest.mark.parametrize("position", [0, 5, -1])
@pytest.mark.parametrize("junk", [" ", "\n", "!", "=", "+"])
def test_what_is_not_in_its_alphabet_is_not_passed_over(position: int, junk: str) -> None:
    text = CURSORS.encode(SYNC, "bob")

    with pytest.raises(InvalidCursor):
        CURSORS.decode(text[:position] + junk + text[position:], SyncCursor, "bob")


@given(st.text())
def test_no_text_is_anything_but_refused(text: str) -> None:
    with pytest.raises(InvalidCursor):
        CURSORS.decode(text, SyncCursor, "bob")
