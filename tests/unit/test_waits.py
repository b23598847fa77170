"""Requests that wait for what becomes of their events."""

from readstate.adapters.kafka.waits import Waits
from readstate.domain.announcements import BadgeChanged, Outcome
from readstate.domain.errors import ChannelNotFound


def test_each_event_gets_its_own_outcome_once() -> None:
    waits = Waits("here")
    mine, others = waits.open(3), waits.open(1)

    waits.on_announcements(
        [Outcome(mine.refs[2], "channel_not_found", "gone", "channel_id"), BadgeChanged("bob"), Outcome("x:1")]
    )
    waits.on_announcements([Outcome(mine.refs[0], added=1), Outcome(mine.refs[0], added=7)])

    first, second, third = mine.effects
    assert first is not None
    assert (first.added, first.error) == (1, None)
    assert second is None
    assert third is not None
    assert isinstance(third.error, ChannelNotFound)
    assert (third.error.detail, third.error.field) == ("gone", "channel_id")
    assert not mine.done.is_set()
    assert others.effects == [None]

    waits.on_announcements([Outcome(mine.refs[1])])
    assert mine.done.is_set()


def test_what_comes_after_the_end_of_a_wait_is_nobodys() -> None:
    waits = Waits("here")
    wait = waits.open(1)
    waits.close(wait)
    waits.on_announcements([Outcome(wait.refs[0])])
    assert wait.effects == [None]


def test_a_process_that_comes_back_does_not_take_the_outcomes_of_its_earlier_life() -> None:
    earlier = {ref for _ in range(100) for ref in Waits("here").open(10).refs}
    assert len(earlier) == 1000
