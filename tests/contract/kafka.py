"""A real Kafka for tests: one for a test process, and topics of its own for every test."""

import atexit
import functools
import os
import secrets
from typing import TypeVar

import pytest

from readstate.stack import Kafka, KafkaCluster, SoftwareMissing
from readstate.timings import KafkaTimings

from ..folder import folder

K = TypeVar("K", Kafka, KafkaCluster)
TIMINGS = KafkaTimings()


@functools.cache
def server() -> Kafka:
    """Started when the first test needs it, gone with the process."""
    kafka = Kafka(folder() / "kafka")
    atexit.register(kafka.wipe)
    return started(kafka)


def started(kafka: K) -> K:
    """Starts one. Skips loudly where there is no Java, but in CI."""
    try:
        return kafka.start()
    except SoftwareMissing as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"NO KAFKA, so its tests do not run: {missing}")


def topic() -> str:
    """A name that no other test has."""
    return f"test-{secrets.token_hex(6)}"
