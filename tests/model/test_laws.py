"""Laws of the rules, and of the judge: the naive chat against examples counted by hand."""

from functools import reduce
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from readstate.domain.model import ReadState
from readstate.domain.rules import label, merge

from .naive import NaiveChat
from .values import Refused

# ---------------------------------------------------------------- the merge

seqs = st.integers(0, 12)
some_epochs = st.integers(0, 2)


@st.composite
def read_states(draw: st.DrawFn, epochs: st.SearchStrategy[int] = some_epochs) -> ReadState:
    """Any state that a user can be in: `apart` lies beyond the pointer."""
    seq = draw(seqs)
    apart = draw(st.frozensets(st.integers(seq + 1, seq + 8), max_size=5))
    return ReadState(draw(epochs), seq, apart)


def has_read(state: ReadState, seq: int) -> bool:
    return seq <= state.seq or seq in state.apart


@given(read_states(), read_states())
def test_merging_is_commutative(a: ReadState, b: ReadState) -> None:
    assert merge(a, b) == merge(b, a)


@given(read_states(), read_states(), read_states())
def test_merging_is_associative(a: ReadState, b: ReadState, c: ReadState) -> None:
    assert merge(merge(a, b), c) == merge(a, merge(b, c))


@given(read_states(), read_states())
def test_merging_again_changes_nothing(a: ReadState, b: ReadState) -> None:
    assert merge(a, a) == a
    assert merge(merge(a, b), b) == merge(a, b)


@given(read_states(epochs=st.just(1)), read_states(epochs=st.just(1)))
def test_merging_reads_exactly_what_either_read_in_the_same_epoch(a: ReadState, b: ReadState) -> None:
    both = merge(a, b)
    for seq in range(30):
        assert has_read(both, seq) == (has_read(a, seq) or has_read(b, seq))


@given(read_states(), read_states())
def test_the_higher_epoch_wins_whole(a: ReadState, b: ReadState) -> None:
    if a.epoch != b.epoch:
        assert merge(a, b) == max(a, b, key=lambda s: s.epoch)


@given(read_states(), read_states())
def test_what_is_read_apart_lies_beyond_the_pointer(a: ReadState, b: ReadState) -> None:
    both = merge(a, b)
    assert all(s > both.seq for s in both.apart)


@given(st.data(), st.lists(read_states(), min_size=1, max_size=6))
def test_order_and_repeats_of_reads_do_not_matter(data: st.DataObject, states: list[ReadState]) -> None:
    repeats = data.draw(st.lists(st.sampled_from(states), max_size=6))
    shuffled = data.draw(st.permutations(states + repeats))
    assert reduce(merge, shuffled) == reduce(merge, states)


def test_a_read_message_beyond_a_later_pointer_stays_read() -> None:
    one_by_one, up_to = ReadState(3, 10, frozenset({15})), ReadState(3, 12, frozenset())
    for order in permutations([one_by_one, up_to]):
        assert reduce(merge, order) == ReadState(3, 12, frozenset({15}))


# ---------------------------------------------------------------- labels


@pytest.mark.parametrize(
    ("count", "cap", "text"),
    [(0, 99, ""), (1, 99, "1"), (99, 99, "99"), (100, 99, "99+"), (999, 999, "999"), (1000, 999, "999+")],
)
def test_a_label_counts_up_to_its_cap(count: int, cap: int, text: str) -> None:
    assert label(count, cap) == text


@given(st.integers(1, 20_000), st.sampled_from([9, 99, 999]))
def test_a_label_is_the_count_or_the_cap_with_a_plus(count: int, cap: int) -> None:
    assert label(count, cap) == (str(count) if count <= cap else f"{cap}+")


# ---------------------------------------------------------------- the judge


@pytest.fixture
def chat() -> NaiveChat:
    """Ann and Bob in one channel, where Ann has written m1 to m5."""
    chat = NaiveChat(lambda: 1_000_000)
    chat.put_channel("c", type="group", members=["ann", "bob"])
    for n in range(1, 6):
        chat.send("c", "ann", f"m{n}", text=f"text {n}")
    return chat


def unread(chat: NaiveChat, user: str = "bob") -> list[str]:
    return [m.id for m in chat.unread_messages(user, "c")]


def test_judge_a_sender_has_read_and_the_other_has_not(chat: NaiveChat) -> None:
    assert unread(chat, "ann") == []
    assert unread(chat, "bob") == ["m1", "m2", "m3", "m4", "m5"]
    assert chat.row("bob", "c").first_unread == ("m1", 1, 1_000_000)
    assert chat.row("bob", "c").latest == ("m5", 5, 1_000_004, "ann", "text 5")
    assert chat.totals("bob") == (5, 0, 1)


def test_judge_one_read_of_three_and_then_deleted_leaves_two(chat: NaiveChat) -> None:
    chat.mark_read("bob", "c", up_to="m2")
    chat.mark_read("bob", "c", messages=["m4"])
    chat.delete("c", "m4")
    assert unread(chat) == ["m3", "m5"]


def test_judge_marking_unread_never_reads_and_a_late_read_never_undoes_it(chat: NaiveChat) -> None:
    epoch = chat.reading("bob", "c").epoch
    chat.mark_read("bob", "c", messages=["m2", "m4"])
    chat.mark_unread("bob", "c", "m3")
    assert unread(chat) == ["m1", "m3", "m4", "m5"]
    assert not chat.mark_read("bob", "c", epoch=epoch)
    assert unread(chat) == ["m1", "m3", "m4", "m5"]


def test_judge_own_messages_are_never_unread(chat: NaiveChat) -> None:
    chat.send("c", "bob", "b1")
    chat.mark_unread("bob", "c", "m4")
    assert unread(chat) == ["m4", "m5"]


def test_judge_silent_backfilled_and_thread_only_messages_count_for_nobody(chat: NaiveChat) -> None:
    chat.mark_read("bob", "c")
    assert chat.send("c", "ann", "quiet", silent=True).seq == 6
    assert chat.send("c", "ann", "old", backfill=True, at=5).seq is None
    assert chat.send("c", "ann", "reply", thread_id="m1").seq is None
    assert chat.send("c", "ann", "shown", thread_id="m1", also_to_channel=True).seq == 7
    assert unread(chat) == ["shown"]


def test_judge_joins_start_where_their_history_says(chat: NaiveChat) -> None:
    histories: dict[str, str | int] = {"r": "read", "u": "unread", "two": 2, "many": 9}
    for user, history in histories.items():
        chat.change_members("c", add=[user], history=history)
    assert (unread(chat, "r"), unread(chat, "two")) == ([], ["m4", "m5"])
    assert unread(chat, "u") == unread(chat, "many") == ["m1", "m2", "m3", "m4", "m5"]
    chat.mark_read("u", "c")
    chat.change_members("c", remove=["u"])
    chat.change_members("c", add=["u"], history="unread")
    assert unread(chat, "u") == []


def test_judge_undo_keeps_what_was_read_one_by_one_since(chat: NaiveChat) -> None:
    chat.mark_read("bob", "c", up_to="m2")
    changed, number = chat.mark_all("bob")
    chat.send("c", "ann", "m6")
    chat.send("c", "ann", "m7")
    chat.mark_read("bob", "c", messages=["m7"])
    assert (changed, chat.undo("bob", number)) == (1, 1)
    assert unread(chat) == ["m3", "m4", "m5", "m6"]
    with pytest.raises(Refused):
        chat.undo("bob", number)


def test_judge_mentions_follow_edits_and_preferences(chat: NaiveChat) -> None:
    chat.send("c", "ann", "hey", mentions=["bob", "@channel"])
    chat.put_preferences("bob", "c", count="mentions")
    assert (chat.row("bob", "c").unread, chat.row("bob", "c").mentions) == (1, 1)
    chat.edit("c", "hey", mentions=[])
    assert (chat.row("bob", "c").unread, chat.row("bob", "c").has_unread) == (0, True)
    chat.put_preferences("bob", "c", count="all", muted=True)
    assert (chat.row("bob", "c").unread, chat.totals("bob")) == (6, (0, 0, 0))


def test_judge_a_channel_created_again_goes_on_with_its_seqs(chat: NaiveChat) -> None:
    chat.delete_channel("c")
    chat.put_channel("c", members=["ann", "bob"])
    assert chat.send("c", "ann", "m1").seq == 6
    assert unread(chat) == ["m1"]


def test_judge_a_message_deleted_before_it_came_stays_deleted(chat: NaiveChat) -> None:
    chat.delete("c", "later")
    chat.send("c", "ann", "later")
    assert "later" not in unread(chat)
