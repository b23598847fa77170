"""Reads that come at the same time ask the hot store together, and each gets its own answer."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests import stores

from .conftest import WorkingService, working_service

PEOPLE = [f"user{n}" for n in range(10)]
SMALL, LARGE = "small", "large"
"""Counted by ledger, and by timeline."""


@pytest.fixture
async def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WorkingService]:
    monkeypatch.setattr(stores, "chosen", stores.CLUSTER)
    async with working_service(tmp_path, fanout_max_members=11) as service:
        await service.chat.open_channel(*PEOPLE, "anna", channel=SMALL)
        await service.chat.open_channel(*PEOPLE, "anna", "ben", channel=LARGE)
        for channel in (SMALL, LARGE):
            await service.chat.send("anna", *(f"{channel}{n}" for n in range(1, 13)), channel=channel)
        yield service


async def test_each_of_many_reads_at_once_gets_its_own_answer(service: WorkingService) -> None:
    places = [(user, channel, n) for n, user in enumerate(PEOPLE, 1) for channel in (SMALL, LARGE)]

    answers = await asyncio.gather(*(service.chat.read(user, channel, up_to_seq=n) for user, channel, n in places))

    assert [answer["last_read"]["seq"] for answer in answers] == [n for *_, n in places]
    assert [answer["unread"] for answer in answers] == [12 - n for *_, n in places]


async def test_what_one_asks_in_vain_is_nothing_to_the_others(service: WorkingService) -> None:
    paths = [f"/v1/users/{user}/channels/{channel}/read" for user in PEOPLE for channel in (SMALL, "nowhere", LARGE)]

    answers = await asyncio.gather(*(service.chat.call("POST", path, {"up_to_seq": 5}) for path in paths))

    expected = [404 if "nowhere" in path else 200 for path in paths]
    assert [answer.status_code for answer in answers] == expected
    assert {answer.json()["code"] for answer in answers if answer.status_code == 404} == {"channel_not_found"}
