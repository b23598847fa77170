"""What an instance heard and could not tell its devices is looked up for them."""

from collections.abc import Sequence

import pytest

from readstate.adapters.valkey.bus.connections import BusServers
from readstate.adapters.valkey.bus.listener import Listener
from readstate.adapters.valkey.bus.sender import Sender
from readstate.domain.announcements import Announcement
from readstate.domain.errors import StorageUnavailable
from readstate.timings import ValkeyTimings


@pytest.mark.parametrize("trouble", [StorageUnavailable(), ValueError("a fault")])
async def test_what_devices_could_not_be_told_counts_as_missed(trouble: Exception) -> None:
    missed: list[float] = []

    async def on_announcements(_: Sequence[Announcement]) -> None:
        raise trouble

    async def note(seconds: float) -> None:
        missed.append(seconds)

    servers = BusServers("redis://localhost", ValkeyTimings())
    listener = Listener(servers, ["bus"], Sender(servers, "me", "bus", "bus"), on_announcements, note, lambda: False)
    await listener.deliver([])

    assert missed == [0.0]
