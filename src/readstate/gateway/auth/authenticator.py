"""Authentication: service keys, user tokens, and their secrets."""

import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import jwt

from readstate.domain.errors import (
    ConfigurationError,
    InvalidId,
    InvalidToken,
    ReadstateError,
    TokenExpired,
    Unauthenticated,
)
from readstate.domain.rules import check_user_id
from readstate.settings import Settings
from readstate.timings import HttpTimings

from .jwks import Jwks

ME = "me"
"""In a path: the token's user."""
MAX_CACHED_TOKENS = 32_768
SERVICE_KEY_FILE = "service-key"
JWT_SECRET_FILE = "jwt-secret"
MIN_SECRET = 32


# ---------------------------------------------------------------- principals


class Principal(NamedTuple):
    """The caller: a user, or a service if `user` is None. `bucket` is its key for rate limits."""

    user: str | None
    bucket: str
    expires: float | None = None
    """When the token expires, in seconds since 1970."""


class _Verified(NamedTuple):
    """A verified token: until when it is valid, and the version of the JWKS that verified it (None: the secret)."""

    principal: Principal
    expires: float
    keys: int | None


class Authenticator:
    """Finds the caller of a request from its Authorization header.

    Service keys and tokens are looked up by digest, so timing reveals nothing about them, and the cache holds no token.
    A token is verified once and then cached until it expires or the keys change.
    """

    def __init__(
        self,
        settings: Settings,
        secrets: "Secrets",
        timings: HttpTimings,
        clock: Callable[[], float] = time.time,
        jwks: Jwks | None = None,
    ) -> None:
        self._clock = clock
        self._secret = secrets.jwt_secret
        self._jwks = jwks or (Jwks(settings.jwks, timings) if settings.jwks else None)
        self._issuer = settings.jwt_issuer or None
        self._audience = settings.jwt_audience or None
        self._claim = settings.jwt_user_claim
        digests = (_digest(b"Bearer " + key.encode()) for key in secrets.service_keys)
        self._services = {digest: Principal(None, digest.hex()[:16]) for digest in digests}
        self._tokens: OrderedDict[bytes, _Verified] = OrderedDict()

    def known(self, header: bytes | None) -> Principal | None:
        """The caller, if the key or token needs no further verification."""
        if header is None:
            return None
        digest = _digest(header)
        if principal := self._services.get(digest):
            return principal
        token = self._tokens.get(digest)
        if token is None or token.expires <= self._clock():
            return None
        if token.keys is not None and not (self._jwks and self._jwks.is_current(token.keys)):
            return None
        self._tokens.move_to_end(digest)
        return token.principal

    async def verify(self, header: bytes | None) -> Principal:
        """The caller; Unauthenticated if the header does not prove one."""
        scheme, _, credential = (header or b"").strip().partition(b" ")
        credential = credential.strip()
        if header is None or scheme.lower() != b"bearer" or not credential:
            raise Unauthenticated
        if principal := self._services.get(_digest(b"Bearer " + credential)):
            return principal
        digest = _digest(header)
        self._tokens.pop(digest, None)
        token = await self._verify(credential)
        self._tokens[digest] = token
        if len(self._tokens) > MAX_CACHED_TOKENS:
            self._tokens.popitem(last=False)
        return token.principal

    def close(self) -> None:
        """End waits for the JWKS, because the service stops."""
        if self._jwks is not None:
            self._jwks.close()

    async def _verify(self, token: bytes) -> _Verified:
        algorithm, kid = _read_header(token)
        if algorithm == "HS256" and self._secret:
            return self._judge(token, algorithm, self._secret, None)
        if algorithm in {"RS256", "ES256"} and self._jwks:
            key = await self._jwks.find(kid, algorithm)
            return self._judge(token, algorithm, key, self._jwks.version)
        raise InvalidToken("The token's algorithm is not accepted.")

    def _judge(self, token: bytes, algorithm: str, key: Any, keys: int | None) -> _Verified:
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._audience,
                issuer=self._issuer,
                options={
                    "require": ["exp"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_sub": False,
                    "verify_aud": self._audience is not None,
                },
            )
            expires = self._check_times(claims)
        except ReadstateError:
            raise
        except Exception as error:
            # Includes what PyJWT lets through on malformed input: overflows, deep nesting, claims of odd types.
            raise _refusal(error) from None
        return _Verified(self._principal(claims)._replace(expires=expires), expires, keys)

    def _check_times(self, claims: Mapping[str, Any]) -> float:
        now = self._clock()
        expires = _moment(claims, "exp")
        if expires <= now:
            raise TokenExpired
        if "nbf" in claims and _moment(claims, "nbf") > now:
            raise InvalidToken("The token is not valid yet.")
        return expires

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        value = claims.get(self._claim)
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise InvalidToken(f"The token does not name its user in the claim '{self._claim}'.")
        try:
            user = check_user_id(value)
        except InvalidId:
            raise InvalidToken(f"The token's claim '{self._claim}' is not a valid user id.") from None
        if user == ME:  # in a path, `me` means the user of any token
            raise InvalidToken(f"The token's claim '{self._claim}' must not be '{ME}'.")
        return Principal(user, user)


def _digest(header: bytes) -> bytes:
    return sha256(header).digest()


def _read_header(token: bytes) -> tuple[str, str | None]:
    try:
        header = jwt.get_unverified_header(token)
    except Exception:
        raise InvalidToken("This is neither a service key nor a user token.") from None
    kid = header.get("kid")
    return str(header.get("alg")), kid if isinstance(kid, str) else None


def _moment(claims: Mapping[str, Any], name: str) -> float:
    value = claims[name]
    if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
        raise InvalidToken(f"The token's claim '{name}' is not a number.")
    return float(value)


def _refusal(error: Exception) -> InvalidToken:
    if isinstance(error, jwt.MissingRequiredClaimError):
        return InvalidToken(f"The token has no claim '{error.claim}'.")
    if isinstance(error, jwt.InvalidIssuerError):
        return InvalidToken("The token is from another issuer.")
    if isinstance(error, jwt.InvalidAudienceError):
        return InvalidToken("The token is for another audience.")
    return InvalidToken()


# ---------------------------------------------------------------- secrets


@dataclass(frozen=True, repr=False)
class Secrets:
    """The secrets that authenticate callers. Without a `jwt_secret`, tokens signed with one are refused."""

    service_keys: tuple[str, ...]
    jwt_secret: str


def load_secrets(settings: Settings) -> Secrets:
    """The configured secrets. A missing one is created once and kept in the data directory."""
    directory = Path(settings.data_dir)
    keys = settings.service_keys or (_kept(directory / SERVICE_KEY_FILE),)
    if settings.jwt_secret or settings.jwks:
        return Secrets(keys, settings.jwt_secret)
    return Secrets(keys, _kept(directory / JWT_SECRET_FILE))


def require_jwks_file(settings: Settings) -> None:
    """A missing file would refuse every user, so fail early. A URL may be unreachable for a while."""
    jwks = settings.jwks
    if jwks and "://" not in jwks and not (Path(jwks).is_file() and os.access(jwks, os.R_OK)):
        raise ConfigurationError(f"jwks: {jwks} is not a file that can be read")


def make_token(secret: str, user: str, ttl_seconds: int, claims: Mapping[str, Any] | None = None) -> str:
    now = int(time.time())
    return jwt.encode({**(claims or {}), "sub": user, "iat": now, "exp": now + ttl_seconds}, secret, "HS256")


def required_claims(settings: Settings, user: str) -> dict[str, str]:
    """The claims that the service requires of a user's token."""
    claims = {"iss": settings.jwt_issuer, "aud": settings.jwt_audience, settings.jwt_user_claim: user}
    return {name: value for name, value in claims.items() if value}


def _kept(path: Path) -> str:
    try:
        if not path.exists():
            _make(path)
        return _read_secret(path)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read or made: {error.strerror}") from None


def _make(path: Path) -> None:
    """Write a random secret to a draft and link it, so that other processes never see a partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(file, "w") as out:
            out.write(secrets.token_urlsafe(32) + "\n")
            out.flush()
            os.fsync(out.fileno())
        os.link(draft, path)
    except FileExistsError:
        pass  # Another process was first: use its secret.
    finally:
        draft.unlink()


def _read_secret(path: Path) -> str:
    with path.open(encoding="ascii", errors="replace") as file:
        if os.name == "posix" and os.fstat(file.fileno()).st_mode & 0o077:
            raise ConfigurationError(f"{path}: others may read this secret: run 'chmod 600 {path}'")
        secret = file.read().strip()
    if len(secret) < MIN_SECRET:
        raise ConfigurationError(f"{path}: the secret is shorter than {MIN_SECRET} characters: delete the file")
    return secret
