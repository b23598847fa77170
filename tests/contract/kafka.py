"""A real Kafka for tests: one for a test run, and topics of its own for every test."""

import atexit
import functools
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from readstate.stack import Kafka, KafkaCluster, SoftwareMissing
from readstate.timings import KafkaTimings

from ..folder import folder
from . import kafka_classes, shared_kafka

K = TypeVar("K", Kafka, KafkaCluster)
TIMINGS = KafkaTimings()


@functools.cache
def server() -> Kafka:
    """Started when the first test needs it, gone with the last process of the run. No test may pause or stop it."""
    with _skipped_without_java():
        kafka, keeper = shared_kafka.connect(kafka_classes.options())
    atexit.register(keeper.close)
    return kafka


def mortal() -> Kafka:
    """One that tests may pause and kill: only this process uses it. It runs, or is paused."""
    kafka = _mortal()
    return kafka if kafka.is_running else started(kafka)


@functools.cache
def _mortal() -> Kafka:
    kafka = Kafka(folder() / "kafka", options=kafka_classes.options())
    atexit.register(kafka.wipe)
    return kafka


def started(kafka: K) -> K:
    """Starts one of a test's own."""
    with _skipped_without_java():
        return kafka.start()


@contextmanager
def _skipped_without_java() -> Iterator[None]:
    """Skips loudly, but in CI."""
    try:
        yield
    except SoftwareMissing as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"NO KAFKA, so its tests do not run: {missing}")


def topic() -> str:
    """A name that no other test has."""
    return f"test-{secrets.token_hex(6)}"
