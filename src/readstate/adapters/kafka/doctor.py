"""What `readstate doctor` checks in Kafka: access, brokers, topics, replication and encryption."""

from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from readstate.domain.errors import ConfigurationError
from readstate.findings import Finding, is_local
from readstate.settings import Settings

from .client import Faults, client, kafka_options
from .topics import LEAST_IN_SYNC, Topics, topic_config

ANSWER_SECONDS = 5.0
SAFE_REPLICAS = 3


def kafka(settings: Settings) -> list[Finding]:
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
        *_safety(settings, admin, known),
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


def _safety(settings: Settings, admin: AdminClient, known: Any) -> list[Finding]:
    """Topics made by hand or by an earlier version may acknowledge with one replica, or lose what they acknowledged."""
    topics = [name for name in Topics(settings.topic_prefix).all if name in known.topics]
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics]
    asked = {one.name: answer for one, answer in admin.describe_configs(resources).items()} if topics else {}
    findings: list[Finding] = []
    for name, answer in asked.items():
        try:
            config = answer.result(ANSWER_SECONDS)
        except (KafkaException, TimeoutError) as error:
            return [Finding("kafka topics", "warn", f"how {name} is set up can't be read: {error}", "look at its ACLs")]
        replicas = min((len(one.replicas) for one in known.topics[name].partitions.values()), default=0)
        wrong = [
            f"{setting}={value}"
            for setting, value in _safe(replicas).items()
            if not _is_safe(setting, config[setting].value)
        ]
        if wrong:
            command = (
                f"kafka-configs.sh --alter --entity-type topics --entity-name {name} --add-config {','.join(wrong)}"
            )
            found = ", ".join(f"{setting}={config[setting].value}" for setting in _safe(replicas))
            findings.append(
                Finding("kafka topics", "warn", f"{name} may lose what it has acknowledged: {found}", command)
            )
    return findings


def _safe(replicas: int) -> dict[str, str]:
    config = topic_config(replicas)
    return {name: config[name] for name in ("min.insync.replicas", "unclean.leader.election.enable") if name in config}


def _is_safe(setting: str, value: str | None) -> bool:
    return value == "false" if setting.startswith("unclean") else int(value or 0) >= LEAST_IN_SYNC


def _encryption(settings: Settings) -> Finding:
    if settings.kafka_security.endswith("ssl"):
        return Finding("kafka encryption", "ok", "TLS")
    if all(is_local(broker.rpartition(":")[0].strip("[]")) for broker in settings.kafka_bootstrap):
        return Finding("kafka encryption", "ok", "not encrypted, and does not leave this machine")
    return Finding("kafka encryption", "warn", "not encrypted", "set kafka_security to ssl or sasl_ssl")
