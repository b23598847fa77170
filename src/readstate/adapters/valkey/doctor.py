"""What `readstate doctor` checks in Valkey and Redis."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, NoPermissionError, RedisError
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import TimeoutError as NoAnswer

from readstate.domain.slots import SLOTS
from readstate.findings import MIB, PATIENCE, PINGS, Finding, State, clock, encryption, latency, merged
from readstate.settings import without_password

from .address import Address, member_name, server_name
from .commands import ask

LEAST_VALKEY, LEAST_REDIS = (8, 0), (7, 0)
ANSWER_SECONDS = 2.0
MUCH_LATENCY_MS = 5.0
NEARLY_FULL, FULL = 0.8, 0.95


async def valkey(name: str, setting: str, url: str) -> list[Finding]:
    """Findings about the servers behind a URL, or why they cannot be reached."""
    try:
        async with asyncio.timeout(PATIENCE):
            if Address(url).is_cluster:
                return await _cluster_findings(name, setting, url)
            return await _findings(name, setting, url)
    except TimeoutError:
        return [Finding(name, "fail", f"{without_password(url)}: no answer", "check whether it hangs, and its load")]


async def _findings(name: str, setting: str, url: str, *, in_cluster: bool = False) -> list[Finding]:
    findings: list[Finding] = []
    try:
        node = _connect(url)
    except ValueError as error:
        return [Finding(name, "fail", f"{without_password(url)}: {error}", f"correct {setting}")]
    try:
        async for found in _examine(node, name, setting, url, in_cluster):
            findings.append(found)
    except (RedisError, OSError) as error:
        findings.append(_unreachable(name, setting, url, error))
    finally:
        await node.aclose()
    return findings


def _connect(url: str) -> Redis:
    return Redis.from_url(
        url,
        protocol=2,
        decode_responses=True,
        single_connection_client=True,
        socket_connect_timeout=ANSWER_SECONDS,
        socket_timeout=ANSWER_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )


def _unreachable(name: str, setting: str, url: str, error: Exception) -> Finding:
    reason = " ".join(str(error).split()) or "no answer"
    return Finding(name, "fail", f"{without_password(url)}: {reason}", _advice(setting, error))


def _advice(setting: str, error: Exception) -> str:
    if isinstance(error, AuthenticationError) or "WRONGPASS" in str(error) or "NOAUTH" in str(error):
        return f"correct user and password in {setting}"
    if isinstance(error, NoPermissionError):
        return "give the user its rights (ACL SETUSER … +@all ~* &*)"
    if isinstance(error, BusyLoadingError):
        return "it loads its data: try again in a moment"
    if isinstance(error, NoAnswer | TimeoutError):
        return "check whether it hangs, whether a firewall is between, and whether TLS fits (redis:// or rediss://)"
    if isinstance(error, LostConnection | OSError):
        return f"start it, or correct host, port and TLS (redis:// or rediss://) in {setting}"
    return "read its log"


# ---------------------------------------------------------------- one server


async def _examine(node: Redis, name: str, setting: str, url: str, in_cluster: bool) -> AsyncIterator[Finding]:
    info: Mapping[str, Any] = await node.info()
    yield server_finding(name, setting, url, info, in_cluster)
    yield await _persistence(node, name, info)
    yield _eviction(name, info)
    yield _memory(name, info)
    yield await _clock(node, name)
    yield await _latency(node, name)
    if not in_cluster:
        yield _encryption(name, setting, url)


def server_finding(name: str, setting: str, url: str, info: Mapping[str, Any], in_cluster: bool) -> Finding:
    """The server answers, is recent enough, accepts writes, and is of the kind that the URL names."""
    product, version = (
        ("Valkey", info["valkey_version"]) if "valkey_version" in info else ("Redis", info["redis_version"])
    )
    least = LEAST_VALKEY if product == "Valkey" else LEAST_REDIS
    detail = f"{product} {version}" if in_cluster else f"{without_password(url)}: {product} {version}"
    numbers = tuple(int(part) for part in re.findall(r"\d+", str(version))[:2])
    if numbers < least:
        return Finding(name, "fail", detail, f"use {product} {least[0]}.{least[1]} or later")
    if not in_cluster and str(info.get("cluster_enabled", 0)) == "1":
        scheme = urlsplit(url).scheme
        return Finding(name, "fail", f"{detail}; part of a Cluster", f"write {setting} as {scheme}+cluster://…")
    if not in_cluster and info.get("role") == "slave":
        detail = f"{detail}; a replica, which takes no writes"
        master = server_name(str(info.get("master_host", "")), int(info.get("master_port", 0)), "")
        return Finding(name, "fail", detail, f"name its master {master}")
    return Finding(name, "ok", detail)


async def _persistence(node: Redis, name: str, info: Mapping[str, Any]) -> Finding:
    """No persistence is needed, because a restarted server is reloaded. One that fails to persist refuses writes."""
    check = f"{name} persistence"
    if info.get("aof_enabled") and info.get("aof_last_write_status", "ok") != "ok":
        detail = "the append-only file cannot be written: writes are refused until it can"
        return Finding(check, "fail", detail, "free some space on its disk; read its log")
    if info.get("aof_enabled"):
        return Finding(check, "ok", "an append-only file (not needed: after a restart everyone is reloaded)")
    if await _saves(node):
        if info.get("rdb_last_bgsave_status", "ok") != "ok":
            detail = "the last snapshot failed: writes may be refused until one succeeds"
            return Finding(check, "fail", detail, "free some space on its disk; read its log")
        return Finding(check, "ok", "snapshots (not needed: after a restart everyone is reloaded)")
    return Finding(check, "ok", "none, and none is needed: after a restart everyone is reloaded from the database")


async def _saves(node: Redis) -> bool:
    """Whether it takes snapshots; a server that hides its settings is assumed to."""
    try:
        return bool((await node.config_get("save")).get("save"))
    except RedisError:
        return True


def _eviction(name: str, info: Mapping[str, Any]) -> Finding:
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy == "noeviction":
        return Finding(f"{name} eviction", "ok", "noeviction")
    detail = f"{policy}: a full server drops single keys, and with them parts of what users have unread"
    advice = "CONFIG SET maxmemory-policy noeviction, and the same in its configuration file"
    return Finding(f"{name} eviction", "warn", detail, advice)


def _memory(name: str, info: Mapping[str, Any]) -> Finding:
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if not limit:
        return Finding(f"{name} memory", "ok", f"{used / MIB:.1f} MiB used, no limit of its own")
    share = used / limit
    state: State = "fail" if share >= FULL else "warn" if share >= NEARLY_FULL else "ok"
    advice = "" if state == "ok" else "raise maxmemory: a full server refuses writes"
    return Finding(f"{name} memory", state, f"{used / MIB:.1f} of {limit / MIB:.1f} MiB used", advice)


async def _clock(node: Redis, name: str) -> Finding:
    before = time.time() * 1000
    seconds, micros = await node.time()
    return clock(f"{name} clock", int(seconds) * 1000 + int(micros) / 1000, before, time.time() * 1000)


async def _latency(node: Redis, name: str) -> Finding:
    took = []
    for _ in range(PINGS):
        begun = time.perf_counter()
        await ask(node, "PING")
        took.append((time.perf_counter() - begun) * 1000)
    return latency(f"{name} latency", took, MUCH_LATENCY_MS)


def _encryption(name: str, setting: str, url: str) -> Finding:
    scheme = urlsplit(url).scheme
    advice = f"use TLS: {setting} = {scheme.replace('redis', 'rediss', 1)}://…"
    return encryption(f"{name} encryption", url, scheme.startswith("rediss"), advice)


# ---------------------------------------------------------------- a Cluster


async def _cluster_findings(name: str, setting: str, url: str) -> list[Finding]:
    """Findings about all servers of a Cluster, as the first seed that answers knows them."""
    address = Address(url)
    failed: list[Finding] = []
    for seed in address.seeds:
        try:
            state, members = await _ask_seed(address, seed)
        except (RedisError, OSError) as error:
            failed.append(_unreachable(name, setting, address.url_of(seed), error))
            continue
        warnings = [replace(one, state="warn") for one in failed]
        if not members:
            advice = f"write {setting} as {address.scheme}://… without +cluster"
            return [*warnings, Finding(name, "fail", f"{seed} is no part of a Cluster", advice)]
        reachable = [one.address for one in members if one.is_up]
        urls = map(address.url_of, reachable)
        found = await asyncio.gather(*(_findings(name, setting, url, in_cluster=True) for url in urls))
        return [
            *warnings,
            *merged(dict(zip(reachable, found, strict=True))),
            *_state(name, state, members),
            _encryption(name, setting, url),
        ]
    return failed


async def _ask_seed(address: Address, seed: str) -> tuple[dict[str, str], list["_Member"]]:
    """The state of the Cluster and its members; none if the server is no part of one."""
    node = _connect(address.url_of(seed))
    try:
        if str((await node.info("cluster")).get("cluster_enabled")) != "1":
            return {}, []
        state = dict(line.split(":", 1) for line in (await ask(node, "CLUSTER", "INFO")).splitlines() if line)
        nodes = (await ask(node, "CLUSTER", "NODES")).splitlines()
        return state, [_Member(line, seed) for line in nodes]
    finally:
        await node.aclose()


class _Member:
    """One line of CLUSTER NODES: id, address, flags, master, …, slots."""

    def __init__(self, line: str, seed: str) -> None:
        self.id, address, flags, self.master, _, _, _, self.link, *self.slots = line.split()
        self.address = member_name(address, seed)
        self.flags = set(flags.split(","))
        self.is_up = not self.flags & {"fail", "fail?", "noaddr", "handshake"}
        self.is_master = "master" in self.flags


def _state(name: str, state: Mapping[str, str], members: list[_Member]) -> list[Finding]:
    """All slots have a master, every master has a replica, and every member is up."""
    check = f"{name} cluster"
    findings: list[Finding] = []
    assigned, well = int(state.get("cluster_slots_assigned", 0)), int(state.get("cluster_slots_ok", 0))
    if state.get("cluster_state") != "ok" or well < SLOTS:
        detail = f"state {state.get('cluster_state')}; {well} of {SLOTS} slots are served, {assigned} are given out"
        advice = "bring back what is down, or give its slots to others (--cluster fix); see the other findings"
        findings.append(Finding(check, "fail", detail, advice))
    down = [one.address for one in members if not one.is_up]
    if down:
        findings.append(
            Finding(check, "warn", f"down: {', '.join(down)}", "start them, or let the Cluster forget them")
        )
    masters = [one for one in members if one.is_master and one.slots]
    led = {one.master for one in members if one.is_up and not one.is_master}
    alone = [one.address for one in masters if one.is_up and one.id not in led]
    if alone:
        detail = f"without a replica: {', '.join(alone)}; while one is down, so is the hot state in its slots"
        findings.append(
            Finding(check, "warn", detail, "give every master a replica (--cluster add-node --cluster-slave)")
        )
    if not findings:
        detail = f"{len(masters)} masters have all {SLOTS} slots, each with a replica"
        findings.append(Finding(check, "ok", detail))
    return findings
