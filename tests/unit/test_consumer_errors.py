"""Errors that librdkafka puts among the records of a consumer."""

import pytest
from confluent_kafka import KafkaError, Message

from readstate.adapters.kafka.consumer import KafkaConsumer
from readstate.domain.errors import LogUnavailable
from readstate.timings import KafkaTimings


class Scripted(KafkaConsumer):
    """A consumer whose next batch is given. Its address has no broker."""

    def __init__(self, *messages: Message) -> None:
        super().__init__({"bootstrap.servers": "127.0.0.1:1"}, "group", ["topic"], KafkaTimings())
        self._messages = list(messages)

    def _consume(self, most: int, seconds: float) -> list[Message]:
        return self._messages


def failed(code: int) -> Message:
    return Message("topic", 0, 0, None, None, None, KafkaError(code))


RECORD = Message("topic", 0, 7, b"key", b"value")
PASSING = [KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS]


@pytest.mark.parametrize("code", PASSING)
async def test_a_coordinator_that_moves_is_no_failure(code: int) -> None:
    consumer = Scripted(failed(code))
    assert await consumer.batch(10, 0) == []
    await consumer.close()


async def test_a_consumer_that_may_not_read_says_so() -> None:
    consumer = Scripted(failed(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(LogUnavailable, match="Kafka cannot be read"):
        await consumer.batch(10, 0)
    await consumer.close()


async def test_records_beside_an_error_are_not_skipped() -> None:
    consumer = Scripted(failed(KafkaError.TOPIC_AUTHORIZATION_FAILED), RECORD)
    assert [record.offset for record in await consumer.batch(10, 0)] == [7]
    await consumer.close()
