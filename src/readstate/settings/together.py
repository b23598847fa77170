"""What may be wrong with settings that are each sound alone."""

from collections.abc import Mapping
from typing import Any


def faults_together(values: Mapping[str, Any], sources: Mapping[str, str]) -> list[str]:
    """What is wrong with values that are each sound alone."""
    faults = _missing_half("tls_cert", "tls_key", values, sources)
    if values["profile"] == "cluster":
        return faults + _cluster_faults(values, sources)
    if values["workers"] > 1:
        source = sources.get("workers", "workers")
        faults.append(
            f"{source}: {values['workers']} is not possible in the embedded profile, "
            "whose store belongs to one process; leave it at 1, or use the cluster profile"
        )
    if values["write_replica_url"]:
        source = sources.get("write_replica_url", "write_replica_url")
        faults.append(f"{source}: the embedded profile writes to no replica; leave it out, or use the cluster profile")
    return faults


def _missing_half(one: str, other: str, values: Mapping[str, Any], sources: Mapping[str, str]) -> list[str]:
    """Of two settings that go together, one alone is a fault."""
    if bool(values[one]) == bool(values[other]):
        return []
    return [f"{sources.get(one, sources.get(other, one))}: {one} and {other} go together"]


def _cluster_faults(values: Mapping[str, Any], sources: Mapping[str, str]) -> list[str]:
    """The cluster profile needs its three servers, and passwords need their users."""
    needed = {
        "hot_url": "the cluster profile needs Valkey or Redis (redis://host:port)",
        "kafka_bootstrap": "the cluster profile needs Kafka (host:port)",
        "database_url": "the cluster profile needs PostgreSQL (postgresql://…), which many processes can share",
    }
    faults = [f"{sources.get(name, name)}: {why}" for name, why in needed.items() if not values[name]]
    if values["database_url"].startswith("sqlite:"):
        faults.append(f"{sources.get('database_url', 'database_url')}: {needed['database_url']}")
    if values["kafka_security"].startswith("sasl") and not (values["kafka_username"] and values["kafka_password"]):
        source = sources.get("kafka_security", "kafka_security")
        faults.append(f"{source}: {values['kafka_security']} needs kafka_username and kafka_password")
    return faults + _missing_half("kafka_certificate", "kafka_key", values, sources)
