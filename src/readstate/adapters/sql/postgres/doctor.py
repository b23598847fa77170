"""What `readstate doctor` checks in PostgreSQL: access, schema, lease, durability, limits, timing and encryption."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import asyncpg  # type: ignore[import-untyped]

from readstate.domain.errors import ConfigurationError
from readstate.findings import PATIENCE, PINGS, Finding, clock, encryption, latency
from readstate.settings import Settings, without_password

from .migrations import migrations_missing

LEAST_VERSION = 13
CONNECT_SECONDS = 5
ANSWER_SECONDS = 3
MUCH_LATENCY_MS = 10.0

_FACTS = """
SELECT current_user AS role, current_database() AS name, pg_is_in_recovery() AS standby,
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
        - coalesce(current_setting('reserved_connections', true), '0')::int AS places,
    (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user) AS role_limit,
    (SELECT datconnlimit FROM pg_database WHERE datname = current_database()) AS database_limit,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'
        AND NOT (usename = current_user AND datname = current_database())) AS others,
    has_schema_privilege(current_schema(), 'CREATE') AS may_create,
    to_regclass('lease') IS NOT NULL AS has_lease,
    current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,
    current_setting('synchronous_commit') AS synchronous_commit
"""
_LEASE = "SELECT owner, expires_at > extract(epoch FROM clock_timestamp()) * 1000 FROM lease"
_TIMEOUTS = """
SELECT name, setting::bigint AS ms FROM pg_settings
WHERE name IN ('lock_timeout', 'idle_session_timeout', 'transaction_timeout') AND setting::bigint > 0
"""
HARM = {
    "lock_timeout": "writes that have to wait for each other fail",
    "idle_session_timeout": "connections that rest are cut, and requests wait for new ones",
    "transaction_timeout": "an export or an import that takes longer is cut off",
}
"""Server settings that hurt and that the service does not override."""


async def postgres(settings: Settings) -> list[Finding]:
    findings: list[Finding] = []
    try:
        async with asyncio.timeout(PATIENCE):
            connection = await asyncpg.connect(
                settings.database_url, timeout=CONNECT_SECONDS, command_timeout=ANSWER_SECONDS, statement_cache_size=0
            )
            try:
                async for found in _examine(connection, settings):
                    findings.append(found)
            finally:
                connection.terminate()
    except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        findings.append(_unreachable(settings, error))
    return findings


def _unreachable(settings: Settings, error: Exception) -> Finding:
    reason = " ".join(str(error).split()) or "no answer"
    return Finding("database", "fail", f"{without_password(settings.database_url)}: {reason}", _advice(error))


def _advice(error: Exception) -> str:
    if isinstance(error, asyncpg.InvalidAuthorizationSpecificationError):
        return "correct user and password in database_url, or let the user in (pg_hba.conf)"
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        return "create the database (CREATE DATABASE …), or correct its name in database_url"
    if isinstance(error, asyncpg.TooManyConnectionsError):
        return "raise max_connections of PostgreSQL, end sessions that nobody needs, or put a pooler before it"
    if isinstance(error, asyncpg.CannotConnectNowError):
        return "it starts or stops: try again in a moment"
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return "GRANT CONNECT ON DATABASE … TO the user in database_url"
    if isinstance(error, ssl.SSLError) or "SSL" in str(error):
        return "correct sslmode and sslrootcert in database_url"
    if isinstance(error, TimeoutError):
        return "look whether it hangs, and whether a firewall swallows the connection"
    if isinstance(error, OSError):
        return "start it, or correct host and port in database_url"
    return "look into its log; correct database_url"


async def _examine(connection: asyncpg.Connection, settings: Settings) -> AsyncIterator[Finding]:
    facts: Mapping[str, Any] = await connection.fetchrow(_FACTS)
    async with connection.transaction():
        pooled = await connection.fetchval("SELECT pg_backend_pid()") != connection.get_server_pid()
    yield _server(connection, settings, facts, pooled)
    yield _connections(settings, facts, pooled)
    yield await _schema(connection, facts)
    yield await _lease(connection, facts)
    yield _durability(facts)
    yield await _timeouts(connection, facts)
    yield await _clock(connection)
    yield await _latency(connection)
    encrypted = connection._transport.get_extra_info("ssl_object") is not None
    advice = "add ?sslmode=verify-full&sslrootcert=FILE to database_url"
    yield encryption("database encryption", settings.database_url, encrypted, advice)


def _server(connection: asyncpg.Connection, settings: Settings, facts: Mapping[str, Any], pooled: bool) -> Finding:
    version = connection.get_server_version()
    number = f"{version.major}.{version.micro}"  # since 10 a version has two parts
    detail = f"{without_password(settings.database_url)}: PostgreSQL {number}{' behind a pooler' if pooled else ''}"
    if version.major < LEAST_VERSION:
        return Finding("database", "fail", detail, f"use PostgreSQL {LEAST_VERSION} or later")
    if facts["standby"]:
        return Finding("database", "fail", f"{detail}; a standby, which takes no writes", "name the primary instead")
    return Finding("database", "ok", detail)


def _connections(settings: Settings, facts: Mapping[str, Any], pooled: bool) -> Finding:
    """Whether the pool fits beside the connections of others."""
    check, wanted = "database connections", settings.database_connections
    limits = [facts["places"], *(n for n in (facts["role_limit"], facts["database_limit"]) if n >= 0)]
    places, others = min(limits), facts["others"]
    if pooled:
        return Finding(check, "ok", f"up to {wanted} to the pooler, whose own limits hold (max_client_conn, pool size)")
    detail = f"up to {wanted} of {places}; others have {others}"
    if wanted > places:
        advice = f"raise max_connections (or the limit of the role), or set database_connections to {places} or less"
        return Finding(check, "fail", detail, advice)
    if wanted + others > places:
        advice = "raise max_connections of PostgreSQL, lower database_connections, or put a pooler before it"
        return Finding(check, "warn", detail, advice)
    return Finding(check, "ok", detail)


async def _schema(connection: asyncpg.Connection, facts: Mapping[str, Any]) -> Finding:
    try:
        current, wanted = await migrations_missing(connection)
    except ConfigurationError as error:
        return Finding("schema", "fail", error.detail, "use the version of Readstate that wrote it")
    except asyncpg.PostgresError as error:
        await connection.execute("ROLLBACK")
        return Finding("schema", "fail", f"cannot be read: {error}", f"GRANT ALL ON ALL TABLES … TO {facts['role']}")
    if current == wanted:
        return Finding("schema", "ok", f"version {current}")
    if not facts["may_create"]:
        advice = f"GRANT CREATE ON SCHEMA … TO {facts['role']}, or let another role run readstate migrate"
        return Finding("schema", "fail", f"version {current}, behind {wanted}, and tables may not be made", advice)
    if current == 0:
        return Finding("schema", "ok", "made at the first start")
    return Finding("schema", "warn", f"version {current}, behind {wanted}", "readstate migrate (serve does it too)")


async def _lease(connection: asyncpg.Connection, facts: Mapping[str, Any]) -> Finding:
    row = await connection.fetchrow(_LEASE) if facts["has_lease"] else None
    if row is None or not row[1]:
        return Finding("database lease", "ok", "free: no process has it")
    return Finding("database lease", "ok", f"held by {row[0]}")


def _durability(facts: Mapping[str, Any]) -> Finding:
    off = [name for name in ("fsync", "full_page_writes", "synchronous_commit") if facts[name] == "off"]
    if not off:
        return Finding("database durability", "ok", "what it has acknowledged survives a power cut")
    detail = f"{' and '.join(f'{name} = off' for name in off)}: a crash loses what was acknowledged"
    return Finding("database durability", "warn", detail, f"set {' and '.join(f'{name} = on' for name in off)}")


async def _timeouts(connection: asyncpg.Connection, facts: Mapping[str, Any]) -> Finding:
    harmful = {row["name"]: row["ms"] for row in await connection.fetch(_TIMEOUTS)}
    if not harmful:
        return Finding("database timeouts", "ok", "none that hurt")
    details = [f"{name} = {ms} ms: {HARM[name]}" for name, ms in harmful.items()]
    advice = "; ".join(f'ALTER ROLE "{facts["role"]}" SET {name} = 0' for name in harmful)
    return Finding("database timeouts", "warn", "; ".join(details), advice)


async def _clock(connection: asyncpg.Connection) -> Finding:
    before = time.time() * 1000
    theirs = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::double precision * 1000")
    return clock("database clock", theirs, before, time.time() * 1000)


async def _latency(connection: asyncpg.Connection) -> Finding:
    took = []
    for _ in range(PINGS):
        begun = time.perf_counter()
        await connection.execute("SELECT 1")
        took.append((time.perf_counter() - begun) * 1000)
    return latency("database latency", took, MUCH_LATENCY_MS)
