"""Checks of `readstate doctor` on the servers in the settings."""

import asyncio
import socket
from collections.abc import Callable, Iterator

from readstate.findings import MISSING_EXTRA, Finding
from readstate.settings import Settings


def examine_servers(settings: Settings) -> Iterator[Finding]:
    """Every configured server, also those that only another profile uses."""
    if not settings.in_sqlite:
        yield from _unless_missing("database", _postgres, settings)
    for name, setting in (("hot store", "hot_url"), ("write replica", "write_replica_url")):
        if url := getattr(settings, setting):
            yield from _unless_missing(name, _valkey, name, setting, url)
    if settings.profile == "cluster":
        yield from _unless_missing("kafka", _kafka, settings)
    else:
        yield from map(_unused_broker, settings.kafka_bootstrap)


def listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def _unless_missing(check: str, examine: Callable[..., list[Finding]], *args: object) -> list[Finding]:
    """The findings, or that the library for them is missing: it is an extra."""
    try:
        return examine(*args)
    except ModuleNotFoundError as error:
        return [Finding(check, "fail", f"the library {error.name} is missing", MISSING_EXTRA)]


def _postgres(settings: Settings) -> list[Finding]:
    from readstate.adapters.sql.postgres.doctor import postgres  # noqa: PLC0415 - an extra

    return asyncio.run(postgres(settings))


def _valkey(name: str, setting: str, url: str) -> list[Finding]:
    from readstate.adapters.valkey.doctor import valkey  # noqa: PLC0415 - an extra

    return asyncio.run(valkey(name, setting, url))


def _kafka(settings: Settings) -> list[Finding]:
    from readstate.adapters.kafka.doctor import kafka  # noqa: PLC0415 - an extra

    return kafka(settings)


def _unused_broker(broker: str) -> Finding:
    host, _, port = broker.rpartition(":")
    if listens(host.strip("[]"), int(port)):
        return Finding("kafka", "ok", f"{broker}: a server listens; this profile does not use it")
    detail = f"{broker}: no server listens; this profile does not use it"
    return Finding("kafka", "warn", detail, "correct kafka_bootstrap")
