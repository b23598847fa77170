"""Somebody deletes the topic of messages and makes it anew while the writer runs: its offsets begin again."""

import asyncio
from contextlib import suppress

from confluent_kafka.admin import AdminClient

from readstate.adapters.kafka.client import Options
from readstate.adapters.kafka.topics import make_topics
from readstate.domain.errors import LogUnavailable
from tests.conftest import eventually
from tests.contract import kafka

from .fleet import PARTITIONS
from .hard import SMALL, Instance, LocalCluster, is_left, is_written


async def is_made_anew(cluster: LocalCluster, instance: Instance) -> None:
    """The topic of messages, without anything in it."""
    topic, watcher = cluster.stores.topics.messages, instance.rs.cluster.watcher
    options: Options = {"bootstrap.servers": cluster.backends.kafka.url}
    before = await watcher.topic_id(topic)
    admin = AdminClient(dict(options))
    await asyncio.to_thread(admin.delete_topics([topic])[topic].result)

    async def is_another() -> bool:
        with suppress(LogUnavailable):  # the broker is not done yet
            await asyncio.to_thread(make_topics, options, [topic], PARTITIONS, kafka.TIMINGS)
            return await watcher.topic_id(topic) != before
        return False

    await eventually(is_another, "there is another topic")


async def test_what_comes_after_it_was_made_anew_is_written(
    cluster: LocalCluster, worker: Instance, one: Instance
) -> None:
    await is_made_anew(cluster, one)

    async def accepted() -> bool:
        body = {"channel_id": SMALL, "sender_id": "alice", "id": "m6"}
        answer = await one.chat.call("POST", "/v1/messages", body, headers={"prefer": ""})
        return answer.status_code == 202

    async def written() -> bool:
        return await cluster.sql("SELECT seq FROM messages WHERE id = 'm6'") == [(6,)]

    await eventually(accepted, "Kafka takes messages")
    await eventually(written, "the message is written")
    await is_written(cluster, worker)
    await is_left(SMALL, ["m1", "m2", "m3", "m4", "m5", "m6"], one)
