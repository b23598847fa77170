"""Checks of `readstate doctor` for a service that other machines reach; docs/exposing.md has the reasons."""

from collections.abc import Iterator

from readstate.findings import Finding, hosts, is_local
from readstate.gateway.demo.sandbox import is_on as demo_is_on
from readstate.settings import Settings

ENOUGH_KEY = 32
"""Random characters of a key that cannot be guessed."""


def exposure(settings: Settings) -> Iterator[Finding]:
    """A warning for each problem; one line if there is none, or if the service is bound to loopback."""
    local = is_local(settings.host)
    warnings = list(_token_keys(settings)) + ([] if local else list(_reached_by_others(settings)))
    yield from (Finding("exposure", "warn", detail, advice) for detail, advice in warnings)
    if local:
        yield Finding("exposure", "ok", f"only this machine reaches {settings.host}")
    elif not warnings:
        yield Finding("exposure", "ok", f"{settings.host}: encrypted and limited")


def _token_keys(settings: Settings) -> Iterator[tuple[str, str]]:
    if settings.jwks.startswith("http://") and not all(map(is_local, hosts(settings.jwks))):
        yield "the keys of user tokens come unencrypted: others can replace them", "use an https URL for jwks"
    if settings.jwks and not settings.jwt_audience:
        detail = "any token that the keys of jwks verify is accepted, also one for another service"
        yield detail, "set jwt_audience, and jwt_issuer"


def _reached_by_others(settings: Settings) -> Iterator[tuple[str, str]]:
    if not (settings.tls_cert and settings.tls_key):
        detail = f"other machines reach {settings.host}, and keys, tokens and texts cross the network unencrypted"
        yield detail, "set tls_cert and tls_key; or listen on 127.0.0.1, behind a proxy with TLS"
    if off := " and ".join(name for name in ("rate_limit", "max_devices") if not getattr(settings, name)):
        yield f"{off} off: one user can use up all capacity", f"set {off}"
    if not settings.metrics_port:
        yield "/metrics is open to all who reach it", "set metrics_port, and let only Prometheus reach that port"
    if short := sum(len(key) < ENOUGH_KEY for key in settings.service_keys):
        detail = f"{short} of {len(settings.service_keys)} service keys have fewer than {ENOUGH_KEY} characters"
        yield detail, "make them with: openssl rand -base64 32"
    if demo_is_on(settings):
        yield "the demo page makes users, channels and tokens for everyone who asks", "turn demo off"
    if "*" in settings.cors_origins:
        yield "cors_origins is *: the pages of any site may call", "name the sites of your product"
