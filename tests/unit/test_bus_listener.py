"""What an instance heard and could not tell its devices is looked up for them."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from readstate.adapters.valkey.bus.listener import Listener
from readstate.domain.announcements import Announcement
from readstate.domain.errors import StorageUnavailable


@pytest.mark.parametrize("trouble", [StorageUnavailable(), ValueError("a fault")])
async def test_what_devices_could_not_be_told_counts_as_missed(trouble: Exception) -> None:
    missed: list[float] = []

    async def on_announcements(_: Sequence[Announcement]) -> None:
        raise trouble

    async def note(seconds: float) -> None:
        missed.append(seconds)

    listener = Listener(cast(Any, None), ["bus"], "me", lambda: 0.0, on_announcements, note, lambda: False)
    await listener.hand_on([])

    assert missed == [0.0]
