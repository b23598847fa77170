"""Processes that start while Kafka is away, and find out later that it is another than they were told."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from readstate import Readstate
from readstate.adapters.kafka.topics import Topics, make_topics
from readstate.adapters.kafka.watcher import Watcher
from readstate.gateway import asgi_app
from readstate.workers import RECEIPT_PERSISTER
from tests.conftest import Chat, check_problem
from tests.contract import kafka, postgres
from tests.servers import Child, Server, Worker, wait_until

from .fleet import PARTITIONS, Backends, ClusterStores, make_database, shared_backends


@pytest.fixture
async def backends() -> Backends:
    """With a Kafka that only this process uses."""
    own = await asyncio.to_thread(kafka.mortal)
    return await asyncio.to_thread(shared_backends, own)


@pytest.fixture
async def settings(backends: Backends) -> AsyncIterator[dict[str, Any]]:
    """Of processes that believe in one partition too many, and a Kafka that is away."""
    stores = ClusterStores.new()
    await make_database(backends, stores.database)
    options = {"bootstrap.servers": backends.kafka.url}
    await asyncio.to_thread(make_topics, options, stores.topics.all, PARTITIONS, kafka.TIMINGS)
    await asyncio.to_thread(backends.kafka.kill)
    try:
        yield stores.settings(backends, partitions=PARTITIONS + 1)
    finally:
        await postgres.command(f"DROP DATABASE {stores.database} WITH (FORCE)")


def until_it_runs(child: Child) -> None:
    wait_until(lambda: child.where() is not None, f"readstate {child.command} runs")


async def test_another_number_of_partitions_ends_them_with_the_reason(
    backends: Backends, settings: dict[str, Any], tmp_path: Path
) -> None:
    homes = [tmp_path / name for name in ("serve", "worker")]
    for home in homes:
        home.mkdir()
    children: list[Child] = [Server(homes[0], **settings), Worker(homes[1], RECEIPT_PERSISTER, **settings)]
    try:
        for child in children:
            child.launch()
        for child in children:
            await asyncio.to_thread(until_it_runs, child)
        await asyncio.to_thread(backends.kafka.start)
        for child in children:
            assert await asyncio.to_thread(child.wait_for_exit) == 1
            told = f"has {PARTITIONS} partitions, not {PARTITIONS + 1}"
            assert told in child.log[-1], "".join(child.log)
    finally:
        for child in children:
            child.close()


async def test_nothing_goes_to_topics_that_have_another_number_of_partitions(
    backends: Backends, settings: dict[str, Any], tmp_path: Path
) -> None:
    options = settings | {"data_dir": str(tmp_path / "data"), "produce_timeout": 100}
    async with Readstate.open(**options) as rs:
        transport = httpx.ASGITransport(app=asgi_app(rs))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            chat, lost = Chat(http), asyncio.create_task(rs.lost())
            starting = asyncio.create_task(asyncio.to_thread(backends.kafka.start))
            while not lost.done():
                body = {"channel_id": "general", "sender_id": "alice", "id": "m1"}
                answer = await chat.call("POST", "/v1/messages", body)
                check_problem(answer, 503, "log_unavailable")
                await asyncio.sleep(0.01)
            await starting
            assert f"has {PARTITIONS} partitions" in lost.result().detail
    watcher = Watcher({"bootstrap.servers": backends.bootstrap}, PARTITIONS, kafka.TIMINGS)
    try:
        for topic in Topics(settings["topic_prefix"]).all:
            assert set((await watcher.ends(topic)).values()) == {0}, topic
    finally:
        await watcher.close()
