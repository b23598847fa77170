"""Public keys of user tokens, from a JWKS file or URL.

A file is read again when it changes. A URL is fetched again when a token names an unknown key (at most every 30 s), and
in the background when the keys are 5 minutes old. A fetch does not block the event loop, is shared by all who wait for
it, and is bounded in time and size. Known keys keep working while the source is unavailable.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import jwt
import structlog

from readstate.domain.errors import InvalidToken, Unavailable
from readstate.timings import HttpTimings

log = structlog.get_logger()

MAX_BYTES = 1 << 20
MAX_REDIRECTS = 5
MIN_RSA_BITS = 2048

PUBLIC_FIELDS = ("kty", "n", "e", "crv", "x", "y")
Keys = dict[tuple[str | None, str], Any]
"""Public keys by id and the one algorithm that each may verify."""


class Jwks:
    """The keys of one source. `version` changes whenever the keys do."""

    def __init__(self, source: str, timings: HttpTimings, clock: Callable[[], float] = time.monotonic) -> None:
        self.version = 0
        self._url = source if source.startswith(("http://", "https://")) else None
        self._file = Path(source)
        self._timings = timings
        self._clock = clock
        self._keys: Keys | None = None
        self._content = b""
        self._loaded_at = self._tried_at = float("-inf")
        self._failed = False
        self._signature: tuple[int, ...] | None = None
        self._loading: asyncio.Task[None] | None = None
        self._closed = False

    def is_current(self, version: int) -> bool:
        """Whether a verification with the keys of that version is still valid."""
        if self._url is None:
            return version == self.version and not self._file_changed()
        if self._clock() - self._loaded_at > self._timings.jwks_max_age:
            self._start_loading(self._timings.jwks_unknown_key_pause)
        return version == self.version

    async def find(self, kid: str | None, algorithm: str) -> Any:
        """The key that a token names. InvalidToken: there is none. Unavailable: the source cannot be read."""
        if self._keys is None or (self._url is None and self._file_changed()):
            await self._load(self._timings.jwks_failure_pause if self._failed else 0)
        key = self._pick(kid, algorithm)
        if key is None and self._url is not None:
            pauses = self._timings
            await self._load(pauses.jwks_failure_pause if self._failed else pauses.jwks_unknown_key_pause)
            key = self._pick(kid, algorithm)
        if key is not None:
            return key
        if self._failed:
            raise Unavailable("The keys of user tokens (JWKS) cannot be read right now.")
        raise InvalidToken("The token is signed with an unknown key.")

    def _pick(self, kid: str | None, algorithm: str) -> Any:
        keys = self._keys or {}
        if kid is not None:
            return keys.get((kid, algorithm))
        alone = [key for (_, verifies), key in keys.items() if verifies == algorithm]
        return alone[0] if len(alone) == 1 else None

    def _file_changed(self) -> bool:
        return self._sign_file() != self._signature

    def _sign_file(self) -> tuple[int, ...] | None:
        try:
            status = self._file.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def close(self) -> None:
        """Cancel a fetch in flight and start no more, because the service stops. Waiting callers get a failure."""
        self._closed = True
        if self._loading is not None:
            self._loading.cancel()

    async def _load(self, pause: float) -> None:
        """Read the source, or wait for a read in flight, unless one was tried within the last `pause` seconds."""
        self._start_loading(pause)
        if self._loading is not None:
            await asyncio.shield(self._loading)

    def _start_loading(self, pause: float) -> None:
        if self._loading is None and not self._closed and self._clock() - self._tried_at >= pause:
            self._loading = asyncio.create_task(self._load_once())

    async def _load_once(self) -> None:
        self._signature = None if self._url else self._sign_file()
        try:
            if self._url is None:
                content = await asyncio.to_thread(self._read_file)
            else:
                content = await fetch(self._url, self._timings.jwks_fetch)
            keys = parse(content)
        except asyncio.CancelledError:
            self._failed = True
        except Exception as error:
            self._failed = True
            reason = str(error) if isinstance(error, _Refused) else type(error).__name__
            log.warning("cannot read the JWKS", action="jwks.load", error=reason)
        else:
            self._failed = False
            self._loaded_at = self._clock()
            if self._keys is None or content != self._content:
                self._keys, self._content = keys, content
                self.version += 1
        finally:
            self._tried_at = self._clock()
            self._loading = None

    def _read_file(self) -> bytes:
        with self._file.open("rb") as file:
            return _bounded(file.read(MAX_BYTES + 1))


class _Refused(Exception):
    """The source's answer is not acceptable."""


async def fetch(url: str, seconds: float) -> bytes:
    """The content of the URL, within these seconds and MAX_BYTES. Follows redirects to the same origin only."""
    tls = await asyncio.to_thread(httpx.create_ssl_context)  # reads a few hundred certificates
    async with asyncio.timeout(seconds), httpx.AsyncClient(timeout=seconds, verify=tls) as client:
        target = httpx.URL(url)
        for _ in range(MAX_REDIRECTS + 1):
            async with client.stream("GET", target, headers={"accept-encoding": "identity"}) as answer:
                if not answer.has_redirect_location:
                    return await _content(answer.raise_for_status())
                target = _redirected(target, answer.headers["location"])
    raise _Refused(f"more than {MAX_REDIRECTS} redirects")


def _redirected(origin: httpx.URL, location: str) -> httpx.URL:
    target = origin.join(location)
    if (target.scheme, target.host, target.port) != (origin.scheme, origin.host, origin.port):
        raise _Refused("a redirect to another origin")
    return target.copy_with(userinfo=origin.userinfo)


async def _content(answer: httpx.Response) -> bytes:
    """The raw body. Decompression could take any amount of memory, so compressed answers are refused."""
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise _Refused("a compressed answer, which was not asked for")
    content = bytearray()
    async for chunk in answer.aiter_raw():
        content += _bounded(chunk, len(content))
    return bytes(content)


def _bounded(chunk: bytes, before: int = 0) -> bytes:
    if before + len(chunk) > MAX_BYTES:
        raise _Refused(f"more than {MAX_BYTES} bytes")
    return chunk


def parse(content: bytes) -> Keys:
    """The keys of a JWKS that can verify RS256 or ES256. Others are ignored."""
    listed = json.loads(content)["keys"]
    if not isinstance(listed, list):
        raise TypeError("'keys' is not a list")
    keys: Keys = {}
    for number, jwk in enumerate(listed):
        try:
            keys |= _key(jwk)
        except Exception as error:
            reason = type(error).__name__
            log.warning("ignored a broken key of the JWKS", action="jwks.load", number=number, error=reason)
    return keys


def _key(jwk: Mapping[str, Any]) -> Keys:
    algorithm = _algorithm(jwk)
    if algorithm is None:
        return {}
    public = {name: jwk[name] for name in PUBLIC_FIELDS if name in jwk}
    key = jwt.PyJWK(public, algorithm).key
    if algorithm == "RS256" and key.key_size < MIN_RSA_BITS:
        raise ValueError("the key is too short")
    return {(jwk.get("kid"), algorithm): key}


def _algorithm(jwk: Mapping[str, Any]) -> str | None:
    """The one algorithm of a key, by its type, so that no key is used for another purpose."""
    if jwk.get("use", "sig") != "sig" or "verify" not in jwk.get("key_ops", ["verify"]):
        return None
    kind = {"RSA": "RS256", "EC": "ES256" if jwk.get("crv") == "P-256" else None}.get(jwk["kty"])
    return kind if jwk.get("alg", kind) == kind else None
