"""Who asks: service keys, and user tokens of every kind."""

import asyncio
import base64
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from readstate.domain.errors import InvalidToken, TokenExpired, Unauthenticated, Unavailable
from readstate.gateway.auth.authenticator import Authenticator, Principal, Secrets, make_token
from readstate.gateway.auth.jwks import Jwks, parse
from readstate.settings import make_settings
from readstate.timings import HttpTimings

SECRET = "a secret of at least thirty-two bytes"
SERVICE_KEY = "a-service-key-of-good-length"

RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def authenticator(clock: Clock | None = None, jwks: Jwks | None = None, **settings: Any) -> Authenticator:
    made = make_settings(**settings)
    return Authenticator(made, Secrets((SERVICE_KEY,), SECRET), HttpTimings(), clock or time.time, jwks)


def token(claims: dict[str, Any] | None = None, key: Any = SECRET, algorithm: str = "HS256", **header: Any) -> str:
    whole = {"sub": "bob", "exp": time.time() + 3600, **(claims or {})}
    present = {name: value for name, value in whole.items() if value is not None}
    return jwt.encode(present, key, algorithm, headers=header)


def bearer(credential: str) -> bytes:
    return b"Bearer " + credential.encode()


def jwk(key: Any, kid: str | None = None, **fields: Any) -> dict[str, Any]:
    made = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    return {**made.to_jwk(key.public_key(), as_dict=True), **({"kid": kid} if kid else {}), **fields}


def jwks_text(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def write(file: Path, content: bytes) -> None:
    file.write_bytes(content)


def remove(file: Path) -> None:
    file.unlink()


async def background_work() -> None:
    """Wait until whatever runs beside this test is done."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.wait_for(asyncio.gather(*others), 30)


# ---------------------------------------------------------------- service keys


async def test_a_service_key_is_known_at_once_and_is_no_user() -> None:
    who = authenticator().known(bearer(SERVICE_KEY))

    assert who is not None
    assert who.user is None
    assert SERVICE_KEY not in who.bucket


async def test_the_scheme_may_be_written_in_any_case() -> None:
    assert (await authenticator().verify(b"bearer  " + SERVICE_KEY.encode())).user is None


@pytest.mark.parametrize("header", [None, b"", b"Bearer", b"Bearer ", b"Basic Ym9iOmJvYg==", SERVICE_KEY.encode()])
async def test_without_a_bearer_credential_nobody_is_known(header: bytes | None) -> None:
    with pytest.raises(Unauthenticated) as caught:
        await authenticator().verify(header)
    assert caught.value.code == "unauthenticated"


@pytest.mark.parametrize("wrong", [SERVICE_KEY[:-1], SERVICE_KEY + "x", SERVICE_KEY.upper(), "\xff", "..", "a.b.c"])
async def test_what_is_neither_key_nor_token_is_refused_without_repeating_it(wrong: str) -> None:
    with pytest.raises(InvalidToken) as caught:
        await authenticator().verify(bearer(wrong))
    assert wrong not in caught.value.detail


# ---------------------------------------------------------------- tokens


async def test_a_token_names_its_user() -> None:
    principal = await authenticator().verify(bearer(token()))

    assert (principal.user, principal.bucket) == ("bob", "bob")


async def test_an_integer_stands_for_its_decimal_string() -> None:
    assert (await authenticator().verify(bearer(token({"sub": 42})))).user == "42"


async def test_the_user_may_be_in_another_claim() -> None:
    auth = authenticator(jwt_user_claim="uid")

    assert (await auth.verify(bearer(token({"uid": "carol"})))).user == "carol"
    with pytest.raises(InvalidToken, match="uid"):
        await auth.verify(bearer(token()))


async def test_a_token_of_the_command_line_is_good() -> None:
    made = make_token(SECRET, "bob", 60, {"role": "admin", "sub": "mallory"})

    assert (await authenticator().verify(bearer(made))).user == "bob"


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"exp": None}, "exp"),
        ({"exp": "tomorrow"}, "exp"),
        ({"exp": True}, "exp"),
        ({"exp": float("inf")}, "exp"),
        ({"exp": float("nan")}, "exp"),
        ({"nbf": 4_000_000_000}, "not valid yet"),
        ({"nbf": [1]}, "nbf"),
        ({"sub": None}, "sub"),
        ({"sub": ""}, "sub"),
        ({"sub": 1.5}, "sub"),
        ({"sub": True}, "sub"),
        ({"sub": ["bob"]}, "sub"),
        ({"sub": "@channel"}, "sub"),
        ({"sub": "a\0b"}, "sub"),
        ({"sub": "x" * 129}, "sub"),
    ],
)
async def test_a_token_with_a_wrong_claim_is_refused_and_told_which(claims: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidToken, match=says):
        await authenticator().verify(bearer(token(claims)))


async def test_a_token_from_a_clock_a_little_ahead_is_good() -> None:
    assert await authenticator().verify(bearer(token({"iat": time.time() + 5})))


async def test_an_expired_token_is_told_apart() -> None:
    with pytest.raises(TokenExpired) as caught:
        await authenticator().verify(bearer(token({"exp": time.time() - 1})))
    assert caught.value.code == "token_expired"


async def test_issuer_and_audience_count_only_when_they_are_configured() -> None:
    anywhere, strict = authenticator(), authenticator(jwt_issuer="https://id.example", jwt_audience="chat")
    elsewhere = bearer(token({"iss": "https://other.example", "aud": "shop"}))
    here = bearer(token({"iss": "https://id.example", "aud": ["chat", "shop"]}))

    assert await anywhere.verify(elsewhere)
    assert await anywhere.verify(bearer(token({"aud": "shop"})))
    assert await strict.verify(here)
    for wrong in (elsewhere, bearer(token()), bearer(token({"iss": "https://id.example", "aud": "shop"}))):
        with pytest.raises(InvalidToken):
            await strict.verify(wrong)


async def test_a_token_is_verified_once_and_known_until_it_expires() -> None:
    clock = Clock(time.time())
    auth = authenticator(clock)
    header = bearer(token({"exp": clock.now + 60}))
    assert auth.known(header) is None
    await auth.verify(header)

    assert auth.known(header) == Principal("bob", "bob", clock.now + 60)
    clock.now += 61
    assert auth.known(header) is None
    with pytest.raises(TokenExpired):
        await auth.verify(header)


async def test_only_so_many_tokens_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("readstate.gateway.auth.authenticator.MAX_CACHED_TOKENS", 2)
    who = authenticator()
    first, second, third = (bearer(token({"sub": name})) for name in ("first", "second", "third"))
    await who.verify(first)
    await who.verify(second)
    assert who.known(first)

    await who.verify(third)

    assert who.known(first)
    assert who.known(second) is None
    assert who.known(third)


# ---------------------------------------------------------------- tokens that are attacks


def forged(header: dict[str, Any], secret: bytes | None = None) -> str:
    """A token that libraries refuse to make."""
    claims = {"sub": "bob", "exp": int(time.time()) + 3600}
    parts = [_base64(json.dumps(part).encode()) for part in (header, claims)]
    signature = b""
    if secret is not None:
        signature = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(
            ".".join(parts).encode(), secret
        )
    return ".".join([*parts, _base64(signature)])


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def public_pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", None, ["HS256"], "HS512", "RS256"])
async def test_an_unsigned_token_is_refused(algorithm: Any) -> None:
    with pytest.raises(InvalidToken):
        await authenticator().verify(bearer(forged({"alg": algorithm, "typ": "JWT"})))


async def test_a_public_key_is_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(jwks_text(jwk(RSA_KEY, "k1")))
    both = authenticator(jwks=Jwks(str(file), HttpTimings()))
    keys_only = Authenticator(make_settings(jwks=str(file)), Secrets((SERVICE_KEY,), ""), HttpTimings())

    for secret in (public_pem(RSA_KEY), file.read_bytes(), b""):
        for kid in ({}, {"kid": "k1"}):
            for auth in (both, keys_only):
                with pytest.raises(InvalidToken):
                    await auth.verify(bearer(forged({"alg": "HS256", **kid}, secret)))


async def test_another_secret_or_another_algorithm_is_refused() -> None:
    for wrong in (token(key=SECRET + "!"), token(key=SECRET * 2, algorithm="HS512"), token() + "x"):
        with pytest.raises(InvalidToken):
            await authenticator().verify(bearer(wrong))


async def test_junk_that_breaks_parsers_is_refused_like_any_other() -> None:
    deep = _base64(b'{"alg":' + b"[" * 50_000)
    long = _base64(b'{"alg":"HS256","kid":' + b"9" * 5_000 + b"}")
    for junk in (f"{deep}.e30.AA", f"{long}.e30.AA", _base64(b"null") + ".e30.AA", "...", "é.é.é"):
        with pytest.raises(InvalidToken):
            await authenticator().verify(bearer(junk))


# ---------------------------------------------------------------- JWKS files


@pytest.fixture
def jwks_file(tmp_path: Path) -> Path:
    file = tmp_path / "jwks.json"
    file.write_bytes(jwks_text(jwk(RSA_KEY, "rsa-1", use="sig"), jwk(EC_KEY, "ec-1", alg="ES256")))
    return file


async def test_keys_of_a_file_verify_rs256_and_es256(jwks_file: Path) -> None:
    auth = authenticator(jwks=Jwks(str(jwks_file), HttpTimings()))

    for made in (token(key=RSA_KEY, algorithm="RS256", kid="rsa-1"), token(key=EC_KEY, algorithm="ES256", kid="ec-1")):
        assert (await auth.verify(bearer(made))).user == "bob"
        assert auth.known(bearer(made))


async def test_a_token_without_a_key_id_is_good_where_only_one_key_fits(jwks_file: Path) -> None:
    made = bearer(token(key=RSA_KEY, algorithm="RS256"))
    assert await authenticator(jwks=Jwks(str(jwks_file), HttpTimings())).verify(made)

    write(jwks_file, jwks_text(jwk(RSA_KEY, "rsa-1"), jwk(OTHER_RSA_KEY, "rsa-2")))
    with pytest.raises(InvalidToken):
        await authenticator(jwks=Jwks(str(jwks_file), HttpTimings())).verify(made)


@pytest.mark.parametrize("kid", ["rsa-2", "ec-1"])
async def test_a_token_of_another_or_an_unknown_key_is_refused(jwks_file: Path, kid: str) -> None:
    auth = authenticator(jwks=Jwks(str(jwks_file), HttpTimings()))

    with pytest.raises(InvalidToken):
        await auth.verify(bearer(token(key=RSA_KEY, algorithm="RS256", kid=kid)))
    with pytest.raises(InvalidToken):
        await auth.verify(bearer(token(key=OTHER_RSA_KEY, algorithm="RS256", kid="rsa-1")))


async def test_a_key_that_is_taken_out_of_the_file_counts_no_more(jwks_file: Path) -> None:
    auth = authenticator(jwks=Jwks(str(jwks_file), HttpTimings()))
    old = bearer(token(key=RSA_KEY, algorithm="RS256", kid="rsa-1"))
    new = bearer(token(key=OTHER_RSA_KEY, algorithm="RS256", kid="rsa-2"))
    await auth.verify(old)

    write(jwks_file, jwks_text(jwk(OTHER_RSA_KEY, "rsa-2")))

    assert auth.known(old) is None
    with pytest.raises(InvalidToken):
        await auth.verify(old)
    assert await auth.verify(new)


async def test_keys_outlive_a_file_that_is_gone_or_broken(jwks_file: Path) -> None:
    auth = authenticator(jwks=Jwks(str(jwks_file), HttpTimings()))
    made = bearer(token(key=RSA_KEY, algorithm="RS256", kid="rsa-1"))
    await auth.verify(made)

    write(jwks_file, b"{")
    assert await auth.verify(made)
    remove(jwks_file)
    assert await auth.verify(made)


async def test_without_any_key_nobody_can_tell_whether_a_token_is_good(tmp_path: Path) -> None:
    clock = Clock(0)
    file = tmp_path / "later.json"
    auth = authenticator(jwks=Jwks(str(file), HttpTimings(), clock))
    made = bearer(token(key=RSA_KEY, algorithm="RS256", kid="rsa-1"))
    with pytest.raises(Unavailable):
        await auth.verify(made)

    write(file, jwks_text(jwk(RSA_KEY, "rsa-1")))
    clock.now += 1

    assert await auth.verify(made)


def test_keys_for_other_purposes_and_broken_ones_are_left_out() -> None:
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    other_curve = ec.generate_private_key(ec.SECP384R1())
    keys = parse(
        jwks_text(
            jwk(RSA_KEY, "good"),
            jwk(RSA_KEY, "for-encryption", use="enc"),
            jwk(RSA_KEY, "for-signing-only", key_ops=["sign"]),
            jwk(RSA_KEY, "other-algorithm", alg="RS512"),
            jwk(weak, "weak"),
            jwk(other_curve, "other-curve"),
            {"kty": "oct", "k": _base64(SECRET.encode()), "kid": "shared-secret"},
            {"kty": "RSA", "n": "!", "e": "AQAB", "kid": "broken"},
            {"kty": ["RSA"], "kid": ["odd"]},
            {},
            [],  # type: ignore[arg-type]
        )
    )

    assert list(keys) == [("good", "RS256")]


# ---------------------------------------------------------------- JWKS URLs


class KeyServer:
    """A server of public keys that counts how often it is asked."""

    def __init__(self) -> None:
        self.body = jwks_text(jwk(RSA_KEY, "rsa-1"))
        self.status = 200
        self.asked = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                self.send_response(outer.status)
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/jwks.json"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def key_server() -> Iterator[KeyServer]:
    server = KeyServer()
    yield server
    server.stop()


async def test_keys_of_a_url_are_fetched_once(key_server: KeyServer) -> None:
    auth = authenticator(jwks=Jwks(key_server.url, HttpTimings()))

    for name in ("bob", "carol", "dave"):
        made = token({"sub": name}, RSA_KEY, "RS256", kid="rsa-1")
        assert (await auth.verify(bearer(made))).user == name
    assert key_server.asked == 1


async def test_an_unknown_key_is_asked_for_but_not_again_and_again(key_server: KeyServer) -> None:
    clock = Clock(0)
    auth = authenticator(jwks=Jwks(key_server.url, HttpTimings(), clock))
    await auth.verify(bearer(token(key=RSA_KEY, algorithm="RS256", kid="rsa-1")))
    new = bearer(token(key=OTHER_RSA_KEY, algorithm="RS256", kid="rsa-2"))
    key_server.body = jwks_text(jwk(RSA_KEY, "rsa-1"), jwk(OTHER_RSA_KEY, "rsa-2"))

    for _ in range(5):
        with pytest.raises(InvalidToken):
            await auth.verify(new)
    assert key_server.asked == 1

    clock.now += HttpTimings().jwks_unknown_key_pause
    assert await auth.verify(new)
    assert key_server.asked == 2


async def test_a_url_that_fails_is_unavailable_until_it_answers(key_server: KeyServer) -> None:
    clock = Clock(0)
    auth = authenticator(jwks=Jwks(key_server.url, HttpTimings(), clock))
    made = bearer(token(key=RSA_KEY, algorithm="RS256", kid="rsa-1"))
    good, key_server.status = key_server.body, 500
    with pytest.raises(Unavailable):
        await auth.verify(made)

    key_server.status = 200
    for key_server.body in (b"<html>", b"[]", b'{"keys": 5}', b"\xff"):
        clock.now += 1
        with pytest.raises(Unavailable):
            await auth.verify(made)

    key_server.body = good
    clock.now += 1
    assert await auth.verify(made)


async def test_nobody_there_is_unavailable_and_keys_that_are_there_go_on(key_server: KeyServer) -> None:
    clock = Clock(0)
    jwks = Jwks(key_server.url, HttpTimings(), clock)
    auth = authenticator(jwks=jwks)
    made = bearer(token(key=RSA_KEY, algorithm="RS256", kid="rsa-1"))
    await auth.verify(made)

    key_server.stop()
    clock.now += HttpTimings().jwks_max_age + 1

    assert auth.known(made)
    assert await auth.verify(made)
    with pytest.raises(Unavailable):
        await auth.verify(bearer(token(key=RSA_KEY, algorithm="RS256", kid="rsa-2")))


async def test_old_keys_are_renewed_in_the_background(key_server: KeyServer) -> None:
    clock = Clock(0)
    jwks = Jwks(key_server.url, HttpTimings(), clock)
    auth = authenticator(jwks=jwks)
    made = bearer(token(key=RSA_KEY, algorithm="RS256", kid="rsa-1"))
    await auth.verify(made)
    key_server.body = jwks_text(jwk(OTHER_RSA_KEY, "rsa-2"))

    clock.now += HttpTimings().jwks_max_age + 1
    assert auth.known(made), "the old keys count while the new ones are fetched"
    await background_work()

    assert auth.known(made) is None
    with pytest.raises(InvalidToken):
        await auth.verify(made)
