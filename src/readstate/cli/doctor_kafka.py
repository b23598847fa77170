"""What `readstate doctor` looks at in Kafka."""

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from ..errors import ConfigurationError
from ..log.kafka import Faults, client
from ..log.topics import Topics, kafka_options
from ..settings import Settings
from .findings import Finding

ANSWER_SECONDS = 5.0
SAFE_REPLICAS = 3


def kafka(settings: Settings) -> list[Finding]:
    """Whether the brokers let us in, how many there are, and whether the topics are as the settings want them."""
    faults = Faults()
    where = ", ".join(settings.kafka_bootstrap)
    try:
        admin = client(AdminClient, kafka_options(settings), faults)
        known = admin.list_topics(timeout=ANSWER_SECONDS)
    except (KafkaException, ConfigurationError) as error:
        reason = faults.explain(error.args[0]) if isinstance(error, KafkaException) else str(error)
        return [Finding("kafka", "fail", f"{where}: {reason}", "start it, or correct kafka_bootstrap and kafka_…")]
    return [
        Finding("kafka", "ok", f"{where}: {len(known.brokers)} brokers"),
        _topics(settings, {name: len(topic.partitions) for name, topic in known.topics.items()}),
        _replicas(len(known.brokers)),
        _encryption(settings),
    ]


def _topics(settings: Settings, found: dict[str, int]) -> Finding:
    wanted = Topics(settings.topic_prefix).all
    other = [
        f"{name} has {found[name]}" for name in wanted if found.get(name, settings.partitions) != settings.partitions
    ]
    if other:
        detail = f"partitions should be {settings.partitions}, but {', '.join(other)}"
        return Finding("kafka topics", "fail", detail, "set partitions to what they have, or another topic_prefix")
    missing = sum(name not in found for name in wanted)
    detail = "made at the first start" if missing else f"{len(wanted)}, with {settings.partitions} partitions each"
    return Finding("kafka topics", "ok", detail)


def _replicas(brokers: int) -> Finding:
    if brokers >= SAFE_REPLICAS:
        return Finding("kafka replicas", "ok", f"topics are made with {SAFE_REPLICAS}")
    detail = f"{brokers} of {SAFE_REPLICAS}: what a broker loses with its disk is lost"
    return Finding("kafka replicas", "warn", detail, "have three brokers before the topics are made")


def _encryption(settings: Settings) -> Finding:
    if settings.kafka_security.endswith("ssl"):
        return Finding("kafka encryption", "ok", "TLS")
    local = all(
        broker.rpartition(":")[0].strip("[]") in {"127.0.0.1", "::1", "localhost"}
        for broker in settings.kafka_bootstrap
    )
    if local:
        return Finding("kafka encryption", "ok", "not encrypted, and does not leave this machine")
    return Finding("kafka encryption", "warn", "not encrypted", "set kafka_security to ssl or sasl_ssl")
