"""What `readstate doctor` finds where others than this machine reach the service: docs/exposing.md has the reasons."""

from collections.abc import Callable, Iterator

from readstate.findings import Finding, hosts, is_local
from readstate.gateway.demo.sandbox import is_on as demo_is_on
from readstate.settings import Settings

ENOUGH_KEY = 32
"""Characters of a service key that can't be guessed, if they are random."""


def exposure(settings: Settings) -> Iterator[Finding]:
    """A warning for each thing that is open; one line where all is well, or where only this machine listens."""
    warnings = [found for check in ALWAYS if (found := check(settings))]
    if is_local(settings.host):
        yield from warnings
        yield Finding("exposure", "ok", f"only this machine reaches {settings.host}")
        return
    warnings += [found for check in WHERE_OTHERS_REACH_IT if (found := check(settings))]
    yield from warnings
    if not warnings:
        yield Finding("exposure", "ok", f"{settings.host}: encrypted and limited")


def _warning(detail: str, advice: str) -> Finding:
    return Finding("exposure", "warn", detail, advice)


# ---------------------------------------------------------------- on any address


def _keys_by_plain_http(settings: Settings) -> Finding | None:
    if not settings.jwks.startswith("http://") or all(map(is_local, hosts(settings.jwks))):
        return None
    return _warning("the keys of user tokens come unencrypted: others can replace them", "use an https URL for jwks")


def _any_audience(settings: Settings) -> Finding | None:
    if not settings.jwks or settings.jwt_audience:
        return None
    detail = "any token that the keys of jwks verify is good, also one for another service"
    return _warning(detail, "set jwt_audience, and jwt_issuer")


# ---------------------------------------------------------------- where others reach it


def _not_encrypted(settings: Settings) -> Finding | None:
    if settings.tls_cert and settings.tls_key:
        return None
    detail = f"{settings.host} is reached from elsewhere, and keys, tokens and texts cross the network unencrypted"
    return _warning(detail, "set tls_cert and tls_key; or listen on 127.0.0.1, behind a proxy with TLS")


def _no_limits(settings: Settings) -> Finding | None:
    off = [name for name in ("rate_limit", "max_devices") if not getattr(settings, name)]
    if not off:
        return None
    return _warning(f"{' and '.join(off)} off: one user can take all there is", f"set {' and '.join(off)}")


def _open_metrics(settings: Settings) -> Finding | None:
    if settings.metrics_port:
        return None
    return _warning("/metrics is open to all who reach it", "set metrics_port, and let only Prometheus reach that port")


def _short_keys(settings: Settings) -> Finding | None:
    short = sum(len(key) < ENOUGH_KEY for key in settings.service_keys)
    if not short:
        return None
    detail = f"{short} of {len(settings.service_keys)} service keys have fewer than {ENOUGH_KEY} characters"
    return _warning(detail, "make them with: openssl rand -base64 32")


def _demo(settings: Settings) -> Finding | None:
    if not demo_is_on(settings):
        return None
    return _warning("the demo page makes users, channels and tokens for everyone who asks", "turn demo off")


def _any_page(settings: Settings) -> Finding | None:
    if "*" not in settings.cors_origins:
        return None
    return _warning("cors_origins is *: the pages of any site may call", "name the sites of your product")


Check = Callable[[Settings], Finding | None]
ALWAYS: tuple[Check, ...] = (_keys_by_plain_http, _any_audience)
WHERE_OTHERS_REACH_IT: tuple[Check, ...] = (_not_encrypted, _no_limits, _open_metrics, _short_keys, _demo, _any_page)
