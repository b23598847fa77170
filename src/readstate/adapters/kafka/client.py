"""The setup of librdkafka clients: options, the errors and the log lines that the library reports."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import structlog
from confluent_kafka import KafkaError, KafkaException

from readstate.domain.errors import ConfigurationError, LogUnavailable
from readstate.settings import Settings

QUIET_SECONDS = 10.0

Options = Mapping[str, str | int | bool]
"""librdkafka options: brokers, TLS and SASL."""
T = TypeVar("T")

log = structlog.get_logger()


class Faults:
    """The last connection error that librdkafka reported: errors of calls often say only that they timed out."""

    def __init__(self) -> None:
        self.last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """librdkafka's `error_cb`."""
        if self.last is None or error.code() != KafkaError._ALL_BROKERS_DOWN:  # that one names no cause
            self.last = error

    @property
    def refused(self) -> bool:
        """Whether the broker refuses our identity (TLS, SASL), so that a retry is useless."""
        if self.last is None:
            return False
        # Since TLS 1.3 a broker refuses a certificate after the handshake: librdkafka sees only a lost connection.
        return self.last.code() in {KafkaError._AUTHENTICATION, KafkaError._SSL} or "SSL alert" in self.last.str()

    def explain(self, error: KafkaError) -> str:
        """The error's text, with the last connection error if that is another one."""
        if self.last is None or self.last.code() == error.code():
            return error.str()
        return f"{error.str()} ({self.last.str()})"

    def unavailable(self, detail: str, error: KafkaException) -> LogUnavailable:
        return LogUnavailable(detail, reason=self.explain(error.args[0]))


class _LibraryLog:
    """Forwards librdkafka's log lines to ours. librdkafka calls it like a logger of the standard library.

    While librdkafka reconnects it may repeat a line a hundred times a second: of each kind, one line per QUIET_SECONDS
    is logged, with the number of lines left out.
    """

    def __init__(self) -> None:
        self._not_before: dict[object, float] = {}
        self._left_out = 0

    def log(self, level: int, form: str, *words: object) -> None:
        """The first word is the kind of the line."""
        now = time.monotonic()
        if now < self._not_before.get(words[0], 0):
            self._left_out += 1
            return
        self._not_before[words[0]] = now + QUIET_SECONDS
        line, left_out, self._left_out = form % words, self._left_out, 0
        log.log(min(level, logging.WARNING), "librdkafka logs", action="kafka", line=line, left_out=left_out)


def client(kind: Callable[[dict[str, Any]], T], options: Options, faults: Faults) -> T:
    """Create a librdkafka client. Raises ConfigurationError for options that librdkafka refuses."""
    config = {"reconnect.backoff.max.ms": 1_000, **options, "logger": _LibraryLog(), "error_cb": faults}
    try:
        return kind(config)
    except KafkaException as error:
        raise ConfigurationError(f"Kafka can't be spoken to as configured: {error.args[0].str()}") from error


def kafka_options(settings: Settings) -> Options:
    options: dict[str, str | int | bool] = {
        "bootstrap.servers": ",".join(settings.kafka_bootstrap),
        "security.protocol": settings.kafka_security,
        "client.id": "readstate",
    }
    files = {
        "ssl.ca.location": settings.kafka_ca,
        "ssl.certificate.location": settings.kafka_certificate,
        "ssl.key.location": settings.kafka_key,
    }
    if settings.kafka_security.endswith("ssl"):
        options |= {name: path for name, path in files.items() if path}
    if settings.kafka_security.startswith("sasl"):
        options |= {
            "sasl.mechanisms": settings.kafka_sasl_mechanism,
            "sasl.username": settings.kafka_username,
            "sasl.password": settings.kafka_password,
        }
    return options
