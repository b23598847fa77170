"""The subscriber that docs/bus.md shows, on a real server and on a Cluster: it hears everything, and notices gaps."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from readstate.adapters.valkey.bus.bus import ValkeyBus
from readstate.adapters.valkey.bus.wire import encode
from readstate.domain.announcements import Announcement, BadgeChanged, PointerMoved
from readstate.domain.model import Pointer
from readstate.timings import ValkeyTimings
from tests.contract.buses import fresh_prefix
from tests.contract.valkey import cluster, single
from tests.docs.test_docs import blocks

PAGE = Path(__file__).parents[2] / "docs" / "bus.md"
READ = PointerMoved("bob", "general", Pointer(), Pointer(0, 12, id="m12", at=1), "here")
MOST = 60
"""Looks for a message, of a second each at most."""
BADGE = BadgeChanged("bob")
Messages = Iterator[dict[str, Any] | None]
Subscribe = Callable[[list[str]], Messages]


def example(prefix: str) -> dict[str, Any]:
    """What the page's first program defines."""
    [block] = [block for block in blocks(PAGE) if "def batches" in block.text]
    names: dict[str, Any] = {}
    exec(block.text.replace('PREFIX = ""', f"PREFIX = {prefix!r}"), names)
    return names


def on_one_server(channels: list[str]) -> Messages:
    pubsub = redis.Redis.from_url(single().url).pubsub()  # type: ignore[no-untyped-call]
    pubsub.subscribe(*channels)
    with closing(pubsub):
        for _ in range(MOST):
            yield pubsub.get_message(timeout=1)


def in_a_cluster(channels: list[str]) -> Messages:
    url = cluster().url.replace("redis+cluster://", "redis://").split(",")[0]
    pubsub = redis.RedisCluster.from_url(url).pubsub()  # type: ignore[no-untyped-call]
    pubsub.ssubscribe(*channels)
    with closing(pubsub):
        for _ in range(MOST):
            yield pubsub.get_sharded_message(timeout=1)


@pytest.mark.parametrize(("subscribe", "url"), [(on_one_server, single), (in_a_cluster, cluster)])
async def test_a_subscriber_hears_what_an_instance_announces(subscribe: Subscribe, url: Callable[[], Any]) -> None:
    prefix = fresh_prefix()
    names = example(prefix)
    messages = subscribe([names["READS"], names["OTHERS"]])
    for _ in range(2):  # the server has taken both subscriptions
        await asyncio.to_thread(next, messages)

    def heard() -> list[dict[str, Any]]:
        """Until both channels have said something."""
        found: list[dict[str, Any]] = []
        for batch, missed in names["batches"](messages):
            assert not missed
            found.append(batch)
            if {"changes", "announcements"} <= {name for one in found for name in one}:
                break
        return found

    listening = asyncio.create_task(asyncio.to_thread(heard))
    bus = ValkeyBus(url().url, ValkeyTimings(), prefix=prefix, instance_id="here")
    await bus.publish([READ, BADGE])
    await bus.close()
    found = await asyncio.wait_for(listening, 60)

    [change] = [one for batch in found for one in batch.get("changes", ())]
    assert (change["user_id"], change["channel_id"], change["last_read_seq"]) == ("bob", "general", 12)
    assert [one for batch in found for one in batch.get("announcements", ())] == [{"kind": "badge", "user_id": "bob"}]


def said(number: int, after: int, *announcements: Announcement, publisher: str = "p", **more: Any) -> dict[str, Any]:
    return {"type": "message", "data": encode(publisher, number, after, announcements, **more)}


def test_gaps_are_noticed_and_repeats_are_skipped() -> None:
    came = [
        said(3, 2, READ),  # the first that is heard of it: nothing is missing
        said(4, 3, BADGE),
        said(4, 3, BADGE),  # again
        said(4, 4),  # a sign of life
        said(6, 4, READ),  # 5 did not come
        said(8, 6),  # neither did 7 and 8
        said(8, 8, bye=True),
        said(2, 0, READ, publisher="q"),  # 1 did not reach the server
    ]
    batches = example("")["batches"]
    found = [(batch["publisher"], batch["number"], missed) for batch, missed in batches(iter(came))]
    assert found == [("p", 3, False), ("p", 4, False), ("p", 6, True), ("p", 8, True), ("q", 2, True)]
    assert json.loads(came[0]["data"])["v"] == 1
