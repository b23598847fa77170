"""The findings of `readstate doctor`: what was checked, its state, and what to do."""

import re
import statistics
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct

State = Literal["ok", "warn", "fail"]
MIB = 2**20
MISSING_EXTRA = "pip install 'readstate[cluster]'"
PATIENCE = 15.0
"""Seconds for all questions to one server."""
MAX_CLOCK_MS = 1_000
PINGS = 5


class Finding(Struct, frozen=True):
    check: str
    state: State
    detail: str
    advice: str = ""


def graded(amount: float, least: float, enough: float) -> State:
    """Grade an amount of which more is better."""
    if amount < least:
        return "fail"
    return "warn" if amount < enough else "ok"


def clock(check: str, theirs: float, before: float, after: float) -> Finding:
    """Compare a server's clock (ms) with ours, read before and after its answer. The round trip does not count."""
    difference = theirs - (before + after) / 2
    sure = max(0.0, abs(difference) - (after - before) / 2)
    if sure <= MAX_CLOCK_MS:
        return Finding(check, "ok", f"within {max(abs(difference), 1):.0f} ms of this machine's")
    way = "ahead of" if difference > 0 else "behind"
    return Finding(
        check,
        "warn",
        f"{abs(difference) / 1000:.1f} s {way} this machine's",
        "let both keep the same time (NTP: timedatectl set-ntp true)",
    )


def latency(check: str, ms: Sequence[float], much: float) -> Finding:
    middle = statistics.median(ms)
    detail = f"{middle:.1f} ms for a question and its answer"
    if middle <= much:
        return Finding(check, "ok", detail)
    return Finding(check, "warn", detail, "bring service and server nearer to each other; look at the server's load")


def encryption(check: str, url: str, encrypted: bool, advice: str) -> Finding:
    if encrypted:
        return Finding(check, "ok", "the connection is encrypted")
    if all(is_local(host) for host in hosts(url)):
        return Finding(check, "ok", "not encrypted, and does not leave this machine")
    return Finding(check, "warn", "passwords and texts cross the network unencrypted", advice)


def hosts(url: str) -> list[str]:
    servers = re.split("[/?#]", url.partition("://")[2])[0].rpartition("@")[2].split(",")
    return [urlsplit(f"//{server}").hostname or "" for server in servers]


def is_local(host: str) -> bool:
    """Whether a host is this machine. An empty host stands for a Unix socket."""
    try:
        return host in {"", "localhost"} or ip_address(host).is_loopback
    except ValueError:
        return False


def merged(by_server: Mapping[str, Sequence[Finding]]) -> list[Finding]:
    """Merge the findings of several servers: problems by address, everything that is fine in one line per check."""
    checks = dict.fromkeys(found.check for findings in by_server.values() for found in findings)
    result: list[Finding] = []
    for check in checks:
        found = [(server, one) for server, findings in by_server.items() for one in findings if one.check == check]
        wrong = [_named(server, one) for server, one in found if one.state != "ok"]
        if wrong or len(found) == 1:
            result += wrong or [found[0][1]]
        else:
            details = list(dict.fromkeys(one.detail for _, one in found))
            result.append(Finding(check, "ok", f"{len(found)} servers: {'; '.join(details)}"))
    return result


def _named(server: str, found: Finding) -> Finding:
    detail = found.detail if server in found.detail else f"{server}: {found.detail}"
    return Finding(found.check, found.state, detail, found.advice)
