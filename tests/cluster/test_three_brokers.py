"""Three brokers: how the topics are made there, and what a chat notices when one of them dies."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from readstate.adapters.kafka.doctor import kafka as doctor
from readstate.adapters.kafka.topics import RETENTION_MS, Topics, make_topics
from readstate.findings import Finding
from readstate.settings import make_settings
from readstate.stack import KafkaCluster
from readstate.workers import MESSAGE_WRITER, RECEIPT_PERSISTER
from tests.conftest import eventually
from tests.contract import kafka, kafka_classes
from tests.servers import wait_until

from .fleet import PARTITIONS, ClusterStores, shared_backends
from .hard import SMALL, Instance, LocalCluster, local_cluster

BEFORE, AFTER = 40, 40
"""Messages that are accepted before a broker dies, and after."""


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(tmp_path_factory.mktemp("brokers") / "kafka", options=kafka_classes.options())
    try:
        yield kafka.started(cluster)
    finally:
        cluster.wipe()


@pytest.fixture
async def cluster(brokers: KafkaCluster, tmp_path: Path) -> AsyncIterator[LocalCluster]:
    await asyncio.to_thread(brokers.start)
    backends = await asyncio.to_thread(shared_backends, brokers.nodes[0])
    async with local_cluster(tmp_path, backends._replace(bootstrap=brokers.url)) as cluster:
        yield cluster


def config_of(admin: AdminClient, topic: str) -> dict[str, Any]:
    [answer] = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
    return {name: entry.value for name, entry in answer.result(30).items()}


def check_topics(bootstrap: str, replicas: int, least_in_sync: str) -> None:
    """Every topic is made as it should be."""
    topics = Topics(ClusterStores.new().topic_prefix)
    make_topics({"bootstrap.servers": bootstrap}, topics.all, PARTITIONS, kafka.TIMINGS)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    known = admin.list_topics(timeout=30).topics
    for topic in topics.all:
        partitions = known[topic].partitions
        assert len(partitions) == PARTITIONS
        assert {len(set(one.replicas)) for one in partitions.values()} == {replicas}
        config = config_of(admin, topic)
        assert config["retention.ms"] == str(RETENTION_MS)
        assert config["cleanup.policy"] == "delete"
        assert config["min.insync.replicas"] == least_in_sync
        assert config["unclean.leader.election.enable"] == "false"


def test_topics_on_three_brokers_survive_the_loss_of_one(brokers: KafkaCluster) -> None:
    check_topics(brokers.start().url, 3, "2")


def test_topics_on_one_broker() -> None:
    check_topics(kafka.server().url, 1, "1")


def test_doctor_tells_of_topics_that_one_broker_may_lose(brokers: KafkaCluster) -> None:
    stores = ClusterStores.new()
    bootstrap, topics = brokers.start().url, stores.topics
    options: dict[str, Any] = {"bootstrap.servers": bootstrap}
    servers = {
        "hot_url": "redis://h:1",
        "database_url": "postgresql://u@h/d",
        "kafka_bootstrap": tuple(bootstrap.split(",")),
    }
    settings = make_settings(profile="cluster", partitions=PARTITIONS, topic_prefix=stores.topic_prefix, **servers)
    make_topics(options, topics.all, PARTITIONS, kafka.TIMINGS)
    assert {one.state for one in doctor(settings) if one.check == "kafka topics"} == {"ok"}

    risky = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in risky.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topics.messages, incremental_configs=entries)
    admin = AdminClient(options)
    [altered] = admin.incremental_alter_configs([resource]).values()
    altered.result(30)

    warnings: list[Finding] = []

    def is_warned() -> bool:  # each broker learns of it in its own time, and any may answer
        warnings[:] = [one for one in doctor(settings) if one.state == "warn" and one.check == "kafka topics"]
        return bool(warnings)

    wait_until(is_warned, "the doctor warns of the altered topic")
    [found] = warnings
    assert topics.messages in found.detail
    assert "min.insync.replicas=2,unclean.leader.election.enable=false" in found.advice
    make_topics(options, topics.all, PARTITIONS, kafka.TIMINGS)
    unchanged = "the topic stays altered: the service has not set it back"
    wait_until(lambda: config_of(admin, topics.messages)["min.insync.replicas"] == "1", unchanged)


class Talk:
    """A chat under load: each message is sent until it is accepted."""

    def __init__(self, instance: Instance) -> None:
        self._chat = instance.chat
        self.accepted: list[str] = []

    async def go_on(self, count: int) -> None:
        """So many more are accepted, one after another, and bob reads all the while."""
        end = len(self.accepted) + count
        async with asyncio.timeout(120):
            while len(self.accepted) < end:
                name = f"m{len(self.accepted)}"
                body = {"channel_id": SMALL, "sender_id": "alice", "id": name}
                answer = await self._chat.call("POST", "/v1/messages", body, headers={"prefer": ""})
                assert answer.status_code in {202, 503}, answer.text
                if answer.status_code == 202:
                    self.accepted.append(name)
                read = await self._chat.call("POST", f"/v1/users/bob/channels/{SMALL}/read", {})
                assert read.status_code == 200, read.text


async def is_ready(instance: Instance) -> None:
    """It has everything it needs."""

    async def ready() -> bool:
        return (await instance.chat.call("GET", "/readyz")).status_code == 200

    await eventually(ready, "two brokers are enough")


async def is_exactly(instance: Instance, unread: int) -> None:
    """So many are unread for bob. While the other brokers take over, the end of the log may not be known."""
    answer: dict[str, Any] = {}

    async def exact() -> bool:
        answer.update(await instance.chat.unread("bob", SMALL))
        return bool(answer["exact"])

    await eventually(exact, "the count is exact")
    assert answer["unread"] == unread
    assert (await instance.chat.explain("bob", SMALL))["agrees"]


async def test_a_broker_dies_under_load_and_nothing_is_lost(cluster: LocalCluster, brokers: KafkaCluster) -> None:
    worker = await cluster.open("worker", MESSAGE_WRITER, RECEIPT_PERSISTER)
    one = await cluster.open("one")
    await one.chat.open_channel("alice", "bob", channel=SMALL)
    talk = Talk(one)
    await talk.go_on(BEFORE)
    going_on = asyncio.create_task(talk.go_on(AFTER))
    await asyncio.to_thread(brokers.nodes[2].kill)
    await going_on
    await is_ready(one)
    await is_ready(worker)
    await cluster.all_done(worker, MESSAGE_WRITER, RECEIPT_PERSISTER)

    written = await cluster.sql("SELECT id FROM messages WHERE seq IS NOT NULL ORDER BY seq")
    assert [name for (name,) in written] == talk.accepted
    await one.chat.read("bob", SMALL)
    await is_exactly(one, 0)
    await one.chat.send("alice", "last", channel=SMALL)
    await is_exactly(one, 1)
    await cluster.all_done(worker, MESSAGE_WRITER, RECEIPT_PERSISTER)
    assert (await cluster.receipts())["bob", SMALL][1] == len(talk.accepted)
