"""Servers that are away: answers say which dependency it is, and never where it is."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from readstate import Readstate
from readstate.domain.events import ChannelEvent, Delivery, MembersEvent
from readstate.gateway import asgi_app
from readstate.stack import Kafka, Postgres, Valkey
from readstate.stack.ports import HOST, free_ports
from readstate.timings import KafkaTimings, Timings
from tests.conftest import Chat, eventually
from tests.contract.postgres import HASTY
from tests.online import nobody

from .fleet import Backends, ClusterStores, make_database

IMPATIENT = Timings(kafka=KafkaTimings(answer=2.5, delivery=1.0, connect=0.5, close=1.0))
"""Nobody answers, however long it waits."""


@pytest.fixture
def backends(tmp_path: Path) -> Iterator[Backends]:
    """A Valkey and a PostgreSQL of their own, and a Kafka that is not there."""
    [nobody] = free_ports(1)
    with (
        Valkey(tmp_path / "valkey", persistent=False) as hot,
        Postgres(tmp_path / "postgres", settings=HASTY) as durable,
    ):
        database = durable.url.rpartition("/")[0]
        yield Backends(hot, Kafka(tmp_path / "kafka"), durable, hot.url, f"{HOST}:{nobody}", database)


@pytest.fixture
async def http(backends: Backends, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Of a service in which bob is in a channel."""
    stores = ClusterStores.new()
    await make_database(backends, stores.database)
    settings = stores.settings(backends) | {"produce_timeout": 100, "timings": IMPATIENT}
    async with Readstate.open(**settings, data_dir=str(tmp_path / "data")) as rs:
        channel = ChannelEvent(channel_id="general", created_at=1, type="group")
        members = MembersEvent(channel_id="general", created_at=1, add=("alice", "bob"))
        await rs.durable.apply([Delivery(channel, 1), Delivery(members, 2)], nobody)
        transport = httpx.ASGITransport(app=asgi_app(rs))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            yield http


CALLS: list[tuple[str, str, Any]] = [
    ("POST", "/v1/messages", {"channel_id": "general", "sender_id": "alice", "id": "m1"}),
    ("PUT", "/v1/channels/general", {"type": "group", "members": ["alice", "bob"]}),
    ("POST", "/v1/users/bob/channels/general/read", {}),
    ("POST", "/v1/users/bob/badge/tap", {}),
    ("GET", "/v1/users/bob/unread", None),
    ("GET", "/readyz", None),
]


async def test_answers_do_not_say_where_servers_are(backends: Backends, http: httpx.AsyncClient) -> None:
    chat = Chat(http)
    ports = [backends.bootstrap.rpartition(":")[2], str(backends.valkey.port), str(backends.postgres.port)]
    codes: set[str] = set()

    async def look(dependency: str) -> None:
        """Everything is asked until this dependency is known to be down."""

        async def is_down() -> bool:
            answer = None
            for method, path, body in CALLS:
                answer = await chat.call(method, path, body)
                if answer.status_code >= 500:
                    assert answer.status_code == 503, answer.text
                    codes.add(answer.json()["code"])
                    for where in (HOST, "localhost", *ports):
                        assert where not in answer.text, answer.text
            assert answer is not None
            return answer.status_code == 503 and answer.json()["dependencies"][dependency] != "ok"

        await eventually(is_down, f"{dependency} is down")

    await look("log")
    await asyncio.to_thread(backends.valkey.stop)
    await look("hot_store")
    await asyncio.to_thread(backends.postgres.stop)
    await look("database")
    assert codes >= {"log_unavailable", "hot_store_unavailable", "storage_unavailable", "unavailable"}
