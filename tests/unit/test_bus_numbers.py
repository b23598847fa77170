"""The numbers of publishers: which batches are new, and when something was missed."""

import pytest

from readstate.adapters.valkey.bus.numbers import Numbers
from readstate.adapters.valkey.bus.wire import VERSION, Head, Received

SILENT = 5.0


def batch(number: int, *, after: int | None = None, publisher: str = "p", bye: bool = False) -> Received:
    handed_over = number - 1 if after is None else after
    return Received(Head(v=VERSION, publisher=publisher, number=number, after=handed_over, bye=bye), (), 0, False)


def sign_of_life(number: int, *, after: int | None = None, publisher: str = "p", bye: bool = False) -> Received:
    handed_over = number if after is None else after
    return Received(Head(v=VERSION, publisher=publisher, number=number, after=handed_over, bye=bye), (), 0, True)


@pytest.fixture
def numbers() -> Numbers:
    numbers = Numbers(SILENT)
    numbers.listen(100.0)
    return numbers


def test_batches_one_after_the_other_miss_nothing(numbers: Numbers) -> None:
    assert [numbers.take(batch(number), 101.0) for number in (1, 2, 3)] == [(True, None)] * 3


def test_a_batch_that_comes_twice_is_new_once(numbers: Numbers) -> None:
    numbers.take(batch(1), 101.0)
    numbers.take(batch(2), 101.0)
    assert numbers.take(batch(2), 102.0) == (False, None)
    assert numbers.take(batch(1), 102.0) == (False, None)
    assert numbers.take(batch(3), 102.0) == (True, None)


def test_a_number_that_jumps_tells_since_when_something_is_missing(numbers: Numbers) -> None:
    numbers.take(batch(1), 101.0)
    assert numbers.take(batch(3), 105.0) == (True, 101.0)
    assert numbers.take(batch(4), 105.0) == (True, None)


def test_a_sign_of_life_tells_it_too_and_once(numbers: Numbers) -> None:
    numbers.take(batch(1), 101.0)
    assert numbers.take(sign_of_life(1), 102.0)[1] is None
    assert numbers.take(sign_of_life(2), 103.0)[1] == 102.0
    assert numbers.take(sign_of_life(2), 104.0)[1] is None
    assert numbers.take(batch(3), 104.0) == (True, None)


def test_a_publisher_heard_for_the_first_time_has_told_nothing_that_was_missed(numbers: Numbers) -> None:
    assert numbers.take(batch(7), 101.0) == (True, None)
    assert numbers.take(sign_of_life(9, publisher="q"), 101.0)[1] is None


def test_unless_it_could_not_hand_over_all(numbers: Numbers) -> None:
    assert numbers.take(batch(7, after=5), 101.0) == (True, 100.0)
    assert numbers.take(sign_of_life(9, after=8, publisher="q"), 101.0)[1] == 100.0


def test_publishers_have_numbers_of_their_own(numbers: Numbers) -> None:
    for publisher in ("p", "q"):
        assert [numbers.take(batch(number, publisher=publisher), 101.0)[1] for number in (1, 2)] == [None, None]


def test_whoever_listens_anew_compares_with_nothing_before(numbers: Numbers) -> None:
    numbers.take(batch(1), 101.0)
    numbers.listen(110.0)
    assert numbers.take(batch(5), 111.0) == (True, None)
    assert numbers.take(batch(7), 112.0) == (True, 111.0)


def test_one_that_falls_silent_may_have_died_with_something_to_say(numbers: Numbers) -> None:
    numbers.take(batch(1), 101.0)
    numbers.take(batch(1, publisher="q"), 103.0)
    assert numbers.silent(101.0 + SILENT) is None
    assert numbers.silent(101.5 + SILENT) == 101.0
    assert numbers.silent(101.5 + SILENT) is None
    assert numbers.silent(103.5 + SILENT) == 103.0


def test_also_one_that_was_known_before_a_new_connection(numbers: Numbers) -> None:
    numbers.take(batch(1), 101.0)
    numbers.listen(110.0)
    assert numbers.silent(110.0 + SILENT) is None
    assert numbers.silent(111.0 + SILENT) == 110.0


def test_nobody_is_silent_to_one_who_does_not_listen(numbers: Numbers) -> None:
    numbers.take(batch(1), 101.0)
    numbers.excuse(120.0)
    assert numbers.silent(120.0) is None
    assert numbers.silent(121.0 + SILENT) == 101.0


def test_one_that_says_farewell_is_not_waited_for(numbers: Numbers) -> None:
    numbers.take(batch(1), 101.0)
    assert numbers.take(sign_of_life(1, bye=True), 102.0) == (False, None)
    assert numbers.silent(1_000.0) is None


def test_a_farewell_tells_of_what_is_missing(numbers: Numbers) -> None:
    numbers.take(batch(1), 101.0)
    assert numbers.take(sign_of_life(2, bye=True), 102.0)[1] == 101.0
