"""Secrets that nobody configured are made once, and kept for their owner alone."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from readstate.domain.errors import ConfigurationError
from readstate.gateway.auth.authenticator import Secrets, load_secrets
from readstate.settings import make_settings

SECRET = "a secret of at least thirty-two bytes"
SERVICE_KEY = "a-service-key-of-good-length"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_missing_secrets_are_made_once_for_the_owner_alone(tmp_path: Path) -> None:
    settings = make_settings(data_dir=tmp_path / "new")

    first = load_secrets(settings)

    assert load_secrets(settings) == first
    assert len(first.jwt_secret) >= 32
    assert first.jwt_secret not in first.service_keys
    files = sorted((tmp_path / "new").iterdir())
    assert [file.name for file in files] == ["jwt-secret", "service-key"]
    assert [mode_of(file) for file in files] == [0o600, 0o600]


def test_configured_secrets_need_no_files(tmp_path: Path) -> None:
    settings = make_settings(data_dir=tmp_path, service_keys=(SERVICE_KEY,), jwt_secret=SECRET)

    assert load_secrets(settings) == Secrets((SERVICE_KEY,), SECRET)
    assert list(tmp_path.iterdir()) == []


def test_with_public_keys_no_shared_secret_is_made(tmp_path: Path) -> None:
    settings = make_settings(data_dir=tmp_path, service_keys=(SERVICE_KEY,), jwks="keys.json")

    assert load_secrets(settings).jwt_secret == ""
    assert list(tmp_path.iterdir()) == []


def test_many_that_start_at_once_agree_on_one_secret(tmp_path: Path) -> None:
    settings = make_settings(data_dir=tmp_path)
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda _: load_secrets(settings), range(64)))

    assert len({(secrets.service_keys, secrets.jwt_secret) for secrets in found}) == 1
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666])
def test_a_secret_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    settings = make_settings(data_dir=tmp_path)
    load_secrets(settings)
    (tmp_path / "jwt-secret").chmod(mode)

    with pytest.raises(ConfigurationError, match="chmod 600"):
        load_secrets(settings)


@pytest.mark.parametrize("content", ["", "\n", "short"])
def test_a_secret_that_was_cut_short_is_refused(tmp_path: Path, content: str) -> None:
    settings = make_settings(data_dir=tmp_path)
    load_secrets(settings)
    (tmp_path / "jwt-secret").write_text(content)

    with pytest.raises(ConfigurationError, match="jwt-secret"):
        load_secrets(settings)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigurationError, match="service-key"):
        load_secrets(make_settings(data_dir=tmp_path / "file"))


def test_secrets_are_not_shown_by_accident() -> None:
    assert SECRET not in repr(Secrets((SERVICE_KEY,), SECRET))
