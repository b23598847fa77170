"""Who may do what: keys and tokens that are good, all that are not, and what each may touch."""

import base64
import hashlib
import hmac
import json
import stat
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from readstate import Readstate
from readstate.domain.errors import ConfigurationError
from readstate.gateway import asgi_app
from tests.conftest import JWT_SECRET, SERVICE_KEY, Chat, check_problem, eventually, in_process, of, token_for
from tests.servers import Server, serving

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ME = "/v1/users/me/unread"


def claims(**more: Any) -> dict[str, Any]:
    """The claims of a good token of bob, changed as asked; what is None is left out."""
    whole = {"sub": "bob", "exp": int(time.time()) + 3600} | more
    return {name: value for name, value in whole.items() if value is not None}


def forge(header: dict[str, Any], payload: dict[str, Any], secret: bytes) -> str:
    """A token signed by HMAC with whatever header and secret: libraries refuse to make such ones."""
    parts = (json.dumps(part).encode() for part in (header, payload))
    signed = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    signature = hmac.new(secret, signed, hashlib.sha256).digest() if secret else b""
    return (signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


def jwks(**keys: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> str:
    """The public halves of these keys as a JWKS."""
    listed = []
    for kid, key in keys.items():
        public = key.public_key()
        made = (
            jwt.algorithms.RSAAlgorithm.to_jwk(public, as_dict=True)
            if isinstance(public, rsa.RSAPublicKey)
            else jwt.algorithms.ECAlgorithm.to_jwk(public, as_dict=True)
        )
        listed.append(made | {"kid": kid, "use": "sig"})
    return json.dumps({"keys": listed})


@pytest.fixture
async def chat(tmp_path: Path) -> AsyncIterator[Chat]:
    """Alice and Bob share a channel; Mallory is alone in another one."""
    async with in_process(tmp_path) as chat:
        await chat.open_channel("alice", "bob")
        await chat.open_channel("mallory", channel="elsewhere")
        await chat.send("alice", "m1", "m2")
        yield chat


# ---------------------------------------------------------------- what proves who asks


async def test_without_a_token_nothing_is_told(chat: Chat) -> None:
    for method, path in [("GET", ME), ("POST", "/v1/messages"), ("PUT", "/v1/channels/x"), ("POST", "/v1/reads")]:
        answer = await chat.with_token(None).call(method, path)
        check_problem(answer, 401, "unauthenticated")
        assert answer.headers["www-authenticate"].startswith("Bearer")


HEADERS = ["", "Bearer", "Bearer ", "Basic YWRtaW46YWRtaW4=", SERVICE_KEY, f"Token {SERVICE_KEY}", "Bearer\t"]


@pytest.mark.parametrize("header", HEADERS)
async def test_another_scheme_is_no_token(chat: Chat, header: str) -> None:
    answer = await chat.with_token(None).call("GET", ME, headers={"authorization": header})

    check_problem(answer, 401, "unauthenticated")


JUNK = ["x", "x" * 10_000, SERVICE_KEY + "x", SERVICE_KEY[:-1], SERVICE_KEY.upper(), "a.b.c", "..", "e30.e30.", "{}"]


@pytest.mark.parametrize("token", JUNK)
async def test_junk_is_no_token_and_is_not_echoed(chat: Chat, token: str) -> None:
    answer = await chat.with_token(token).call("GET", ME)

    check_problem(answer, 401, "invalid_token")
    assert len(token) < 3 or token not in answer.text


BAD_CLAIMS: dict[str, dict[str, Any]] = {
    "not yet valid": {"nbf": int(time.time()) + 3600},
    "no expiry": {"exp": None},
    "an expiry that is no number": {"exp": "tomorrow"},
    "an expiry that is true": {"exp": True},
    "an expiry in a list": {"exp": [2**40]},
    "a start that is no number": {"nbf": "yesterday"},
    "no user": {"sub": None},
    "an empty user": {"sub": ""},
    "a user with a control character": {"sub": "bob\n"},
    "a user that is too long": {"sub": "b" * 129},
    "a user beginning with @": {"sub": "@channel"},
    "a user that is a fraction": {"sub": 1.5},
    "a user that is true": {"sub": True},
    "a user called me": {"sub": "me"},
    "a user in a list": {"sub": ["bob"]},
    "a user in an object": {"sub": {"id": "bob"}},
}


@pytest.mark.parametrize("changed", BAD_CLAIMS.values(), ids=BAD_CLAIMS)
async def test_a_token_with_bad_claims_is_refused(chat: Chat, changed: dict[str, Any]) -> None:
    token = forge({"alg": "HS256", "typ": "JWT"}, claims(**changed), JWT_SECRET.encode())

    check_problem(await chat.with_token(token).call("GET", ME), 401, "invalid_token")


async def test_an_expired_token_is_refused_as_such(chat: Chat) -> None:
    answer = await chat.with_token(token_for("bob", ttl=-1)).call("GET", ME)

    check_problem(answer, 401, "token_expired")


async def test_a_token_stops_working_when_it_expires(chat: Chat) -> None:
    bob = chat.with_token(token_for("bob", ttl=5))
    assert (await bob.call("GET", ME)).status_code == 200

    async def is_refused() -> bool:
        answer = await bob.call("GET", ME)
        return answer.status_code != 200 and bool(check_problem(answer, 401, "token_expired"))

    await eventually(is_refused, "the token has ended")


@pytest.mark.parametrize("secret", ["another secret that is also long enough", "", SERVICE_KEY])
async def test_a_token_of_another_key_is_refused(chat: Chat, secret: str) -> None:
    token = forge({"alg": "HS256"}, claims(), secret.encode())

    check_problem(await chat.with_token(token).call("GET", ME), 401, "invalid_token")


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", "", "HS384", "HS512", "RS256", "ES256", 5, None])
@pytest.mark.parametrize("secret", [b"", JWT_SECRET.encode()])
async def test_another_algorithm_is_refused(chat: Chat, algorithm: Any, secret: bytes) -> None:
    token = forge({"alg": algorithm}, claims(), secret)

    check_problem(await chat.with_token(token).call("GET", ME), 401, "invalid_token")


async def test_a_good_token_that_was_tampered_with_is_refused(chat: Chat) -> None:
    head, _, signature = token_for("bob").split(".")
    body = base64.urlsafe_b64encode(json.dumps(claims(sub="alice")).encode()).rstrip(b"=").decode()

    check_problem(await chat.with_token(f"{head}.{body}.{signature}").call("GET", ME), 401, "invalid_token")


async def test_a_user_may_be_a_number(chat: Chat) -> None:
    await chat.open_channel("42")
    token = forge({"alg": "HS256"}, claims(sub=42), JWT_SECRET.encode())

    assert (await chat.with_token(token).call("GET", of("42") + "/unread")).status_code == 200


async def test_the_user_may_be_in_another_claim(tmp_path: Path) -> None:
    async with in_process(tmp_path, jwt_user_claim="uid") as chat:
        assert (await chat.with_token(token_for("x", uid="bob")).call("GET", ME)).status_code == 200
        assert (await chat.with_token(token_for("x", uid="bob")).call("GET", "/v1/users/bob/unread")).is_success
        check_problem(await chat.with_token(token_for("bob")).call("GET", ME), 401, "invalid_token")


async def test_issuer_and_audience_are_checked_where_they_are_set(tmp_path: Path) -> None:
    async with in_process(tmp_path, jwt_issuer="https://chat.example", jwt_audience="readstate") as chat:
        good: dict[str, Any] = {"iss": "https://chat.example", "aud": "readstate"}
        assert (await chat.with_token(token_for("bob", **good)).call("GET", ME)).status_code == 200
        several = good | {"aud": ["other", "readstate"]}
        assert (await chat.with_token(token_for("bob", **several)).call("GET", ME)).status_code == 200
        none: dict[str, Any] = {}
        for bad in [none, {"iss": good["iss"]}, {"aud": "readstate"}, good | {"iss": "x"}, good | {"aud": "x"}]:
            check_problem(await chat.with_token(token_for("bob", **bad)).call("GET", ME), 401, "invalid_token")


async def test_an_audience_in_the_token_does_not_matter_where_none_is_set(chat: Chat) -> None:
    assert (await chat.with_token(token_for("bob", aud="mobile", iss="x")).call("GET", ME)).status_code == 200


# ---------------------------------------------------------------- public keys


def signed(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, kid: str | None, **more: Any) -> str:
    algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
    return jwt.encode(claims(**more), key, algorithm, headers={"kid": kid} if kid else {})


@contextmanager
def jwks_file(directory: Path, **keys: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> Iterator[Path]:
    path = directory / "jwks.json"
    path.write_text(jwks(**keys))
    yield path


async def test_tokens_signed_with_the_keys_of_a_jwks_file(tmp_path: Path) -> None:
    with jwks_file(tmp_path, rsa=RSA, ec=EC) as file:
        async with in_process(tmp_path / "data", jwks=str(file)) as chat:
            for good in (signed(RSA, "rsa"), signed(EC, "ec"), signed(RSA, None), token_for("bob")):
                assert (await chat.with_token(good).call("GET", ME)).status_code == 200
            for bad in (
                signed(RSA, "unknown"),
                signed(OTHER_RSA, "rsa"),
                signed(OTHER_RSA, None),
                signed(RSA, "ec"),
                signed(EC, "rsa"),
                signed(RSA, "rsa", exp=None),
                signed(RSA, "rsa", sub=None),
            ):
                check_problem(await chat.with_token(bad).call("GET", ME), 401, "invalid_token")
            expired = signed(EC, "ec", exp=int(time.time()) - 10)
            check_problem(await chat.with_token(expired).call("GET", ME), 401, "token_expired")


async def test_without_a_secret_of_its_own_a_jwks_leaves_no_way_for_hs256(tmp_path: Path) -> None:
    with jwks_file(tmp_path, rsa=RSA) as file:
        async with in_process(tmp_path / "data", jwks=str(file), jwt_secret="") as chat:
            assert (await chat.with_token(signed(RSA, "rsa")).call("GET", ME)).status_code == 200
            check_problem(await chat.with_token(token_for("bob")).call("GET", ME), 401, "invalid_token")
            empty = forge({"alg": "HS256"}, claims(), b"")
            check_problem(await chat.with_token(empty).call("GET", ME), 401, "invalid_token")
            assert not (tmp_path / "data" / "jwt-secret").exists()


def public_texts() -> dict[str, bytes]:
    """What an attacker knows of the RSA key, in every form that a careless verifier might take for a secret."""
    key, whole = RSA.public_key(), jwks(rsa=RSA)
    return {
        "PEM": key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "PEM without the last newline": key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).strip(),
        "PKCS1": key.public_bytes(Encoding.PEM, PublicFormat.PKCS1),
        "DER": key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        "JWKS": whole.encode(),
        "JWK": json.dumps(json.loads(whole)["keys"][0]).encode(),
    }


@pytest.mark.parametrize("form", public_texts())
@pytest.mark.parametrize("secret", ["", JWT_SECRET])
async def test_hs256_signed_with_the_rsa_public_key_is_refused(tmp_path: Path, form: str, secret: str) -> None:
    with jwks_file(tmp_path, rsa=RSA) as file:
        async with in_process(tmp_path / "data", jwks=str(file), jwt_secret=secret) as chat:
            for header in ({"alg": "HS256", "kid": "rsa"}, {"alg": "HS256"}, {"alg": "RS256", "kid": "rsa"}):
                token = forge(header, claims(), public_texts()[form])
                check_problem(await chat.with_token(token).call("GET", ME), 401, "invalid_token")


async def test_a_rotated_jwks_file_is_read_again(tmp_path: Path) -> None:
    with jwks_file(tmp_path, old=RSA) as file:
        async with in_process(tmp_path / "data", jwks=str(file)) as chat:
            old, new = signed(RSA, "old"), signed(OTHER_RSA, "new")
            assert (await chat.with_token(old).call("GET", ME)).status_code == 200
            check_problem(await chat.with_token(new).call("GET", ME), 401, "invalid_token")

            file.write_text(jwks(new=OTHER_RSA))

            assert (await chat.with_token(new).call("GET", ME)).status_code == 200
            check_problem(await chat.with_token(old).call("GET", ME), 401, "invalid_token")


class KeyServer:
    """An identity provider that serves a JWKS on a port of this machine, and may be down."""

    def __init__(self) -> None:
        self.content = jwks(rsa=RSA).encode()
        self.down = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(500 if outer.down else 200)
                self.end_headers()
                self.wfile.write(b"down" if outer.down else outer.content)

            def log_message(self, *_: Any) -> None:
                """Tests are quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/jwks.json"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def keys() -> Iterator[KeyServer]:
    server = KeyServer()
    yield server
    server.close()


async def test_tokens_signed_with_the_keys_of_a_jwks_url(tmp_path: Path, keys: KeyServer) -> None:
    async with in_process(tmp_path, jwks=keys.url) as chat:
        bob = chat.with_token(signed(RSA, "rsa"))
        assert (await bob.call("GET", ME)).status_code == 200
        keys.down = True
        assert (await bob.call("GET", ME)).status_code == 200
        again = chat.with_token(signed(RSA, "rsa", jti="another"))
        assert (await again.call("GET", ME)).status_code == 200
        check_problem(await chat.with_token(signed(OTHER_RSA, "rsa")).call("GET", ME), 401, "invalid_token")


@pytest.mark.parametrize("trouble", ["down", "junk"])
async def test_keys_that_cannot_be_had_are_no_fault_of_the_token(tmp_path: Path, keys: KeyServer, trouble: str) -> None:
    keys.down, good = trouble == "down", keys.content
    keys.content = b'{"keys": "junk"}'
    async with in_process(tmp_path, jwks=keys.url) as chat:
        bob = chat.with_token(signed(RSA, "rsa"))
        check_problem(await bob.call("GET", ME), 503, "unavailable")
        assert (await chat.call("GET", "/v1/users/bob/unread")).status_code == 200, "service keys go on working"
        assert (await chat.as_user("bob").call("GET", ME)).status_code == 200, "so does the shared secret"

        keys.down, keys.content = False, good

        async def is_served() -> bool:
            answer = await bob.call("GET", ME)
            return answer.status_code == 200 or not check_problem(answer, 503, "unavailable")

        await eventually(is_served, "the keys were fetched again")


# ---------------------------------------------------------------- what a user may not do

FOREIGN = [
    ("GET", "/v1/users/alice/unread", None),
    ("GET", "/v1/users/alice/unread/messages", None),
    ("POST", "/v1/users/alice/read", {"all": True}),
    ("POST", "/v1/users/alice/read/undo", {"undo": "x"}),
    ("GET", f"{of('alice')}/unread", None),
    ("POST", f"{of('alice')}/unread", {"from": "m1"}),
    ("POST", f"{of('alice')}/read", {}),
    ("GET", f"{of('alice')}/preferences", None),
    ("PUT", f"{of('alice')}/preferences", {"muted": True}),
    ("GET", f"{of('alice')}/explain", None),
    ("POST", f"{of('alice')}/recount", None),
    ("GET", "/v1/users/Bob/unread", None),
    ("GET", "/v1/users/nobody/unread", None),
]
NOT_A_MEMBER = [
    ("GET", "/v1/channels/{}", None),
    ("GET", "/v1/channels/{}/members", None),
    ("GET", "/v1/users/bob/channels/{}/unread", None),
    ("POST", "/v1/users/bob/channels/{}/read", {}),
    ("POST", "/v1/users/me/channels/{}/unread", {"from": "m1"}),
    ("GET", "/v1/users/me/channels/{}/explain", None),
    ("POST", "/v1/users/me/channels/{}/recount", None),
    ("PUT", "/v1/users/me/channels/{}/preferences", {"muted": True}),
    ("GET", "/v1/users/me/channels/{}/preferences", None),
    ("PATCH", "/v1/channels/{}/messages/m1", {"text": "x"}),
    ("DELETE", "/v1/channels/{}/messages/m1", None),
]
SERVICE_ONLY = [
    ("PUT", "/v1/channels/general", {"name": "mine"}),
    ("PUT", "/v1/channels/new", {"members": ["bob"]}),
    ("DELETE", "/v1/channels/general", None),
    ("POST", "/v1/channels/general/members", {"add": ["mallory"]}),
    ("POST", "/v1/reads", {"reads": [{"user_id": "bob", "channel_id": "general"}]}),
    ("POST", "/v1/unread/batch", {"users": ["bob"]}),
    ("POST", f"{of('bob')}/recount", None),
    ("POST", "/v1/users/me/channels/general/recount", None),
]


async def forbidden(chat: Chat, method: str, path: str, body: Any) -> httpx.Response:
    """Bob is refused, and nothing has changed."""
    before = await chat.snapshot(["alice", "bob", "mallory"], ["general", "elsewhere"])
    answer = await chat.as_user("bob").call(method, path, body)
    check_problem(answer, 403, "forbidden")
    assert await chat.snapshot(["alice", "bob", "mallory"], ["general", "elsewhere"]) == before
    return answer


@pytest.mark.parametrize(("method", "path", "body"), FOREIGN)
async def test_a_user_may_not_touch_another_user(chat: Chat, method: str, path: str, body: Any) -> None:
    await forbidden(chat, method, path, body)


@pytest.mark.parametrize(("method", "path", "body"), NOT_A_MEMBER)
async def test_a_user_cannot_tell_a_foreign_channel_from_none(chat: Chat, method: str, path: str, body: Any) -> None:
    foreign = await forbidden(chat, method, path.format("elsewhere"), body)
    unknown = await forbidden(chat, method, path.format("nowhere"), body)

    assert foreign.text.replace("elsewhere", "") == unknown.text.replace("nowhere", "")


@pytest.mark.parametrize(("method", "path", "body"), SERVICE_ONLY)
async def test_a_user_may_not_do_what_belongs_to_the_product(chat: Chat, method: str, path: str, body: Any) -> None:
    await forbidden(chat, method, path, body)


@pytest.mark.parametrize(
    "message",
    [
        {"sender_id": "alice"},
        {"sender_id": "bob", "outside": True},
        {"sender_id": "bob", "backfill": True},
        {"sender_id": "bob", "channel_id": "elsewhere"},
        {"sender_id": "bob", "channel_id": "nowhere"},
        {"sender_id": "bob", "channel_id": "elsewhere", "outside": True},
    ],
)
async def test_a_user_may_send_only_as_itself_where_it_is_a_member(chat: Chat, message: dict[str, Any]) -> None:
    whole = {"channel_id": "general", "text": "hi"} | message

    await forbidden(chat, "POST", "/v1/messages", whole)
    good = {"channel_id": "general", "sender_id": "bob", "id": "fine"}
    answer = await chat.as_user("bob").ask("POST", "/v1/messages", {"messages": [whole, good]})
    assert [(r["status"], r.get("code")) for r in answer["results"]] == [
        ("rejected", "forbidden"),
        ("accepted", None),
    ]
    assert (await chat.channel())["latest"]["id"] == "fine"


async def test_a_user_may_not_change_anothers_message(chat: Chat) -> None:
    await forbidden(chat, "PATCH", "/v1/channels/general/messages/m1", {"text": "I said nothing"})
    await forbidden(chat, "DELETE", "/v1/channels/general/messages/m1", None)


async def test_a_user_cannot_delete_a_message_before_it_comes(chat: Chat) -> None:
    answer = await chat.as_user("bob").call("DELETE", "/v1/channels/general/messages/soon")

    check_problem(answer, 404, "message_not_found")
    await chat.send("alice", "soon")
    assert await chat.waiting("bob", order="oldest") == ["m1", "m2", "soon"]


async def test_everything_a_user_may_do(chat: Chat) -> None:
    bob = chat.as_user("bob")

    assert (await bob.channel())["member_count"] == 2
    assert len((await bob.members())["members"]) == 2
    await bob.send("bob", "b1", "b2")
    await bob.edit("b1", text="changed")
    await bob.delete("b2")
    await bob.mark_unread("me", "m1")
    assert (await bob.sync("me"))["totals"]["unread"] == 2
    assert (await bob.read("bob", up_to="m1"))["unread"] == 1
    assert await bob.waiting("me") == ["m2"]
    await bob.prefer("me", muted=True)
    done = await bob.read_all("me")
    assert (await bob.undo("me", done["undo"]))["changed"] == 1
    assert await bob.count("me") == 1


async def test_a_service_key_is_nobodys_me(chat: Chat) -> None:
    check_problem(await chat.call("GET", ME), 422, "invalid")


async def test_a_user_who_has_left_is_out_at_once(chat: Chat) -> None:
    bob = chat.as_user("bob")
    await bob.read("me")

    await chat.leave("bob")

    check_problem(await bob.call("POST", f"{of('bob')}/read", {}), 403, "forbidden")
    assert (await bob.sync("me", only_unread="false"))["channels"] == []


# ---------------------------------------------------------------- secrets


async def test_secrets_are_made_once_and_kept_for_their_owner_only(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        first = server.service_key, server.jwt_secret
        for name in ("service-key", "jwt-secret"):
            assert stat.S_IMODE((tmp_path / "data" / name).stat().st_mode) == 0o600
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
            await Chat(http, server.service_key).open_channel("bob")
            bob = Chat(http, token_for("bob", secret=server.jwt_secret))
            assert (await bob.unread("me"))["unread"] == 0

    with serving(tmp_path / "data") as again:
        assert (again.service_key, again.jwt_secret) == first
        assert not any(secret in line for secret in first for line in again.log)


@pytest.mark.parametrize("name", ["service-key", "jwt-secret"])
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
async def test_a_secret_that_others_may_read_is_refused(tmp_path: Path, name: str, mode: int) -> None:
    async with Readstate.open(data_dir=str(tmp_path)) as rs:
        asgi_app(rs)
        (tmp_path / name).chmod(mode)
        with pytest.raises(ConfigurationError, match="chmod 600"):
            asgi_app(rs)


def test_the_service_does_not_start_with_a_secret_that_others_may_read(tmp_path: Path) -> None:
    with serving(tmp_path / "data"):
        pass
    (tmp_path / "data" / "jwt-secret").chmod(0o644)
    server = Server(tmp_path / "data")
    server.launch()

    assert server.wait_for_exit() != 0
    assert "chmod 600" in "".join(server.log)
