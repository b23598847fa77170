"""The doctor warns of what is open where others than this machine reach the service."""

from typing import Any

import pytest

from readstate.cli.doctor_exposure import exposure
from readstate.settings import make_settings

SAFE: dict[str, Any] = {
    "host": "0.0.0.0",
    "tls_cert": "/etc/tls/cert.pem",
    "tls_key": "/etc/tls/key.pem",
    "metrics_port": 9_000,
    "service_keys": ("k" * 32,),
}


def warnings(**settings: Any) -> list[str]:
    """What it warns of; each warning says what to do."""
    findings = list(exposure(make_settings(**settings)))
    assert {found.check for found in findings} == {"exposure"}
    assert all(found.state in {"ok", "warn"} for found in findings)
    assert all(found.advice for found in findings if found.state == "warn")
    return [found.detail for found in findings if found.state == "warn"]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.1.2.3"])
def test_on_this_machine_alone_nothing_is_open(host: str) -> None:
    assert warnings(host=host, rate_limit=0, demo=True, cors_origins=("*",), service_keys=("k" * 16,)) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "chat.example.com"])
def test_an_address_that_others_reach_is_encrypted_and_limited(host: str) -> None:
    assert warnings(**SAFE | {"host": host}) == []
    [tls, metrics] = warnings(host=host)
    assert "unencrypted" in tls
    assert "/metrics" in metrics


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"tls_cert": "", "tls_key": ""}, "unencrypted"),
        ({"rate_limit": 0}, "rate_limit"),
        ({"max_devices": 0}, "max_devices"),
        ({"metrics_port": 0}, "/metrics"),
        ({"service_keys": ("k" * 32, "k" * 31)}, "1 of 2 service keys"),
        ({"demo": True}, "demo page"),
        ({"cors_origins": ("*",)}, "cors_origins"),
        ({"jwks": "http://id.example.com/keys"}, "unencrypted"),
    ],
)
def test_each_thing_that_is_open_is_named(settings: dict[str, Any], named: str) -> None:
    [warning] = warnings(**SAFE | {"jwt_audience": "readstate"} | settings)

    assert named in warning


def test_tokens_of_other_services_are_warned_of_on_any_address() -> None:
    [warning] = warnings(jwks="https://id.example.com/keys")

    assert "another service" in warning
    assert warnings(jwks="https://id.example.com/keys", jwt_audience="readstate") == []
    assert warnings(jwks="http://127.0.0.1/keys", jwt_audience="readstate") == []
