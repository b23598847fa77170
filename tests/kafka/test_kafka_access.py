"""How Kafka is reached: over TLS, with a password or a certificate; whoever must not get in is told why."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined] # they are there, but not listed
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from readstate.adapters.kafka.client import Options, kafka_options
from readstate.adapters.kafka.consumer import KafkaConsumer
from readstate.adapters.kafka.producer import KafkaProducer, Record
from readstate.adapters.kafka.topics import make_topics
from readstate.adapters.kafka.watcher import Watcher
from readstate.domain.errors import ConfigurationError, LogUnavailable
from readstate.settings import Settings
from readstate.stack import Kafka
from readstate.stack.ports import HOST
from tests.certificates import Pair, make_certificate
from tests.contract import kafka, kafka_classes

DEADLINE = 60
USER, PASSWORD = "readstate", "a password, of Kafka"
TOPIC = "t"
MAP = "listener.security.protocol.map"


class GuardedKafka(Kafka):
    """Beside its own listener it has one for those with a password and one for those with a certificate."""

    port_count = 4

    def __init__(self, home: Path, authority: Pair, own: Pair) -> None:
        super().__init__(home, options=kafka_classes.options())
        self._authority = authority
        self._store = home.parent / "broker.pem"
        self._store.write_text(own[1].read_text() + own[0].read_text())

    @property
    def by_password(self) -> str:
        return f"{HOST}:{self.record.ports[2]}"

    @property
    def by_certificate(self) -> str:
        return f"{HOST}:{self.record.ports[3]}"

    def properties(self) -> dict[str, object]:
        """Kafka's own, and what the doors need."""
        known = super().properties()
        doors = f",PASSWORDS://{self.by_password},CERTIFICATES://{self.by_certificate}"
        module = "org.apache.kafka.common.security"
        plain = f'{module}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        return {
            **known,
            "listeners": f"{known['listeners']}{doors}",
            "advertised.listeners": f"{known['advertised.listeners']}{doors}",
            MAP: f"{known[MAP]},PASSWORDS:SASL_SSL,CERTIFICATES:SSL",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.passwords.plain.sasl.jaas.config": plain,
            "listener.name.passwords.scram-sha-512.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
            "listener.name.certificates.ssl.client.auth": "required",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self._store,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self._authority[0],
        }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("access")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Pair:
    return make_certificate(folder, "authority")


@pytest.fixture(scope="module")
def guarded(folder: Path, authority: Pair) -> Iterator[GuardedKafka]:
    server = GuardedKafka(folder / "kafka", authority, make_certificate(folder, "broker", authority))
    with kafka.started(server):
        add_user(server)
        make_topics({"bootstrap.servers": server.url}, [TOPIC], 1, kafka.TIMINGS)
        yield server


def add_user(server: Kafka) -> None:
    admin = AdminClient({"bootstrap.servers": server.url})
    credentials = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion(USER, credentials, PASSWORD.encode())
    for changed in admin.alter_user_scram_credentials([change]).values():
        changed.result()


def by_password(server: GuardedKafka, authority: Pair, **other: Any) -> Options:
    known = {
        "kafka_bootstrap": (server.by_password,),
        "kafka_security": "sasl_ssl",
        "kafka_ca": str(authority[0]),
        "kafka_username": USER,
        "kafka_password": PASSWORD,
    }
    return kafka_options(Settings(**{**known, **other}))


def by_certificate(server: GuardedKafka, authority: Pair, own: Pair | None) -> Options:
    shown = {} if own is None else {"kafka_certificate": str(own[0]), "kafka_key": str(own[1])}
    settings: dict[str, Any] = {
        "kafka_bootstrap": (server.by_certificate,),
        "kafka_security": "ssl",
        "kafka_ca": str(authority[0]),
        **shown,
    }
    return kafka_options(Settings(**settings))


async def use(options: Options) -> None:
    """Everything that the service does: topics, writing, reading, watching."""
    await asyncio.to_thread(make_topics, options, [TOPIC], 1, kafka.TIMINGS)
    value = kafka.topic().encode()
    producer, watcher = KafkaProducer(options, kafka.TIMINGS), Watcher(options, 1, kafka.TIMINGS)
    await producer.send(TOPIC, [Record(b"k", value)])
    await producer.close()
    assert (await watcher.ends(TOPIC))[0] > 0
    await watcher.close()
    consumer = KafkaConsumer(options, kafka.topic(), [TOPIC], kafka.TIMINGS)
    async with asyncio.timeout(DEADLINE):
        while value not in {record.value for record in await consumer.batch(100, 0.1)}:
            continue
    await consumer.close()


async def turned_away(options: Options) -> str:
    """What whoever must not get in is told: at the start, and when writing."""
    with pytest.raises(ConfigurationError, match="Kafka refuses the connection") as caught:
        await asyncio.to_thread(make_topics, options, [TOPIC], 1, kafka.TIMINGS)
    producer = KafkaProducer({**options, "request.timeout.ms": 1_000}, replace(kafka.TIMINGS, delivery=1.5))
    with pytest.raises(LogUnavailable) as refused:
        await producer.send(TOPIC, [Record(b"k", b"v")])
    await producer.close()
    return f"{caught.value.explained}\n{refused.value.explained}"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_with_a_password(guarded: GuardedKafka, authority: Pair, mechanism: str) -> None:
    await use(by_password(guarded, authority, kafka_sasl_mechanism=mechanism))


async def test_with_a_certificate(guarded: GuardedKafka, authority: Pair, folder: Path) -> None:
    await use(by_certificate(guarded, authority, make_certificate(folder, "service", authority)))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_with_a_wrong_password(guarded: GuardedKafka, authority: Pair, mechanism: str) -> None:
    options = by_password(guarded, authority, kafka_sasl_mechanism=mechanism, kafka_password="another one")
    told = (await turned_away(options)).splitlines()
    assert all("uthentication" in line for line in told), told
    assert not any("another one" in line for line in told)


async def test_without_a_certificate(guarded: GuardedKafka, authority: Pair) -> None:
    assert "certificate" in await turned_away(by_certificate(guarded, authority, None))


async def test_with_a_certificate_of_somebody_else(guarded: GuardedKafka, authority: Pair, folder: Path) -> None:
    assert "certificate" in await turned_away(by_certificate(guarded, authority, make_certificate(folder, "stranger")))


async def test_a_broker_that_nobody_vouches_for(guarded: GuardedKafka, folder: Path) -> None:
    assert "certificate" in await turned_away(by_password(guarded, make_certificate(folder, "others")))


async def test_a_file_that_is_not_there(guarded: GuardedKafka, authority: Pair) -> None:
    with pytest.raises(ConfigurationError, match=r"ssl\.ca\.location"):
        KafkaProducer(by_password(guarded, authority, kafka_ca="nowhere.pem"), kafka.TIMINGS)
