"""A message is in the hot state before instances hear of it: figures that are told in between add up all the same."""

from typing import Any

import pytest

from readstate.domain.announcements import MessageCame
from tests.conftest import eventually

from .hard import ROOMS, Instance
from .test_live_after_a_loss import Screen, synced


@ROOMS
async def test_figures_that_have_a_message_in_them_before_it_is_told_do_not_count_it_twice(
    one: Instance, two: Instance, room: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen: Screen = await synced(one)
    await screen.connect(one)
    live, late = one.rs.live, list[MessageCame]()

    async def comes_late(came: MessageCame) -> None:
        late.append(came)

    with monkeypatch.context() as slow:
        slow.setattr(live, "_message", comes_late)
        await two.chat.send("alice", "m6", "m7", channel=room)
        await two.chat.read("bob", room, up_to="m2")
        await eventually(lambda: _holds(screen.state.channels[room]["last_read"]["seq"] == 2), "the read is told")
        await eventually(lambda: _holds(len(late) == 2), "the messages are on their way")
    await live.on_announcements(late)
    await live.flushed("bob")

    assert screen.state.channels[room]["unread"] == 5
    await screen.shows_what_is_there(one)


async def _holds(condition: Any) -> bool:
    return bool(condition)
