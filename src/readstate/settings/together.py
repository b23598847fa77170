"""What may be wrong with settings that are each sound alone."""

from collections.abc import Container, Iterator, Mapping
from typing import Any

Fault = tuple[str, str]
"""A setting, and what is wrong with it."""


def faults_together(values: Mapping[str, Any], sources: Mapping[str, str]) -> list[str]:
    """What is wrong with values that are each sound alone."""
    return [f"{sources.get(name, name)}: {problem}" for name, problem in _faults(values, sources)]


def _faults(values: Mapping[str, Any], given: Container[str]) -> Iterator[Fault]:
    yield from _missing_half("tls_cert", "tls_key", values, given)
    if values["profile"] == "cluster":
        yield from _cluster_faults(values, given)
        return
    if values["workers"] > 1:
        problem = f"{values['workers']} is not possible in the embedded profile, whose store belongs to one process"
        yield "workers", f"{problem}; leave it at 1, or use the cluster profile"
    if values["write_replica_url"]:
        yield "write_replica_url", "the embedded profile writes to no replica; leave it out, or use the cluster profile"


def _missing_half(one: str, other: str, values: Mapping[str, Any], given: Container[str]) -> Iterator[Fault]:
    """Of two settings that go together, one alone is a fault."""
    if bool(values[one]) != bool(values[other]):
        yield other if one not in given and other in given else one, f"{one} and {other} go together"


def _cluster_faults(values: Mapping[str, Any], given: Container[str]) -> Iterator[Fault]:
    """The cluster profile needs its three servers, and passwords need their users."""
    if not values["hot_url"]:
        yield "hot_url", "the cluster profile needs Valkey or Redis (redis://host:port)"
    if not values["kafka_bootstrap"]:
        yield "kafka_bootstrap", "the cluster profile needs Kafka (host:port)"
    if not values["database_url"] or values["database_url"].startswith("sqlite:"):
        yield "database_url", "the cluster profile needs PostgreSQL (postgresql://…), which many processes can share"
    if values["kafka_security"].startswith("sasl") and not (values["kafka_username"] and values["kafka_password"]):
        yield "kafka_security", f"{values['kafka_security']} needs kafka_username and kafka_password"
    yield from _missing_half("kafka_certificate", "kafka_key", values, given)
