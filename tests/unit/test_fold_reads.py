"""Folding a batch of read states: order and repetition don't matter, and nothing read is lost."""

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from readstate.domain.events import ReadEvent
from readstate.domain.folding.reads import fold_reads
from readstate.domain.model import ReadState
from readstate.domain.rules import merge

events = st.builds(
    lambda user, epoch, seq, apart, at: ReadEvent(
        user, "c", epoch, seq, tuple(sorted(s for s in apart if s > seq)), f"m{seq}", seq, at, at, at
    ),
    st.sampled_from(["ann", "bob"]),
    st.integers(0, 2),
    st.integers(0, 9),
    st.sets(st.integers(1, 12)),
    st.integers(0, 99),
)


def state(event: ReadEvent) -> ReadState:
    return ReadState(event.epoch, event.last_read_seq, frozenset(event.apart))


@given(st.lists(events, min_size=1), st.randoms(use_true_random=False))
def test_any_order_and_any_repetition_give_the_same_states(batch: list[ReadEvent], chance: object) -> None:
    again = batch + batch
    chance.shuffle(again)  # type: ignore[attr-defined]

    folded = {event.user_id: event for event in fold_reads(batch)}

    assert len(folded) == len(fold_reads(batch)) == len({event.user_id for event in batch})
    assert {event.user_id: state(event) for event in fold_reads(again)} == {u: state(e) for u, e in folded.items()}
    for user, event in folded.items():
        assert state(event) == reduce(merge, (state(one) for one in batch if one.user_id == user))
        assert event.last_read_id == f"m{event.last_read_seq}"
        assert event.change == max(one.change for one in batch if one.user_id == user)
