"""The target of a command: a service at a URL, the one that runs over a data directory, or the store itself."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from readstate.domain.errors import ConfigurationError, Unavailable
from readstate.profiles.lock import store_is_locked
from readstate.settings import Settings, load_settings, without_password

from .running import announced, is_alive
from .tls import local_context

if TYPE_CHECKING:
    import ssl

    import httpx

    from readstate.client import Client
    from readstate.profiles.service import Readstate

S = TypeVar("S")
T = TypeVar("T")
TRIES = 3
"""Fewer than a client's default: a person waits at the terminal."""

Url = Annotated[str | None, typer.Option("--url", envvar="READSTATE_URL", help="Address of the service.")]
Key = Annotated[str | None, typer.Option("--key", envvar="READSTATE_KEY", help="Service key, or a user's token.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Data directory of a local service.")]
Config = Annotated[Path | None, typer.Option("--config", help="TOML file with settings.")]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


@dataclass(frozen=True)
class Target:
    """What the options of a command say about its service."""

    url: str | None = None
    key: str | None = None
    data_dir: Path | None = None
    config: Path | None = None

    def settings(self) -> Settings:
        """The settings of the local service. A command that opens the store itself sends no traces."""
        return load_settings({"data_dir": self.data_dir, "traces": False}, os.environ, self.config)

    @property
    def runs(self) -> bool:
        """Whether a service answers, so that the command does not open the store itself."""
        return bool(self.url) or is_running(self.settings())

    def call(self, ask: Callable[["Client"], Awaitable[T]], *, creates: bool = False) -> T:
        """Call the service. Only a command that `creates` something may make a new store."""
        return within(self._client(creates), ask)

    @asynccontextmanager
    async def _client(self, creates: bool) -> AsyncIterator["Client"]:
        from readstate.client import Client, Retries

        retries = Retries(tries=TRIES)
        if self.runs:
            url, key = self.address()
            transport = None if self.url else local_transport(self.settings())
            async with Client(url, key, retries=retries, transport=transport) as client:
                yield client
            return
        async with open_store(settings := self.settings(), creates=creates) as service:
            key, inside = self._local_key(settings), _inside(service)
            async with Client("http://readstate", key, retries=retries, transport=inside) as client:
                yield client

    def address(self) -> tuple[str, str]:
        """Where the service listens now, and the key for it. After a restart the address may be another one."""
        if self.url:
            return self.url, self._checked_key()
        settings = self.settings()
        if not is_running(settings):
            raise Unavailable(
                f"no service runs over {settings.data_dir}, and this command needs one: "
                "start it (readstate serve), or name another (--data-dir or --url)"
            )
        return running_url(settings), self._local_key(settings)

    def tls(self) -> "ssl.SSLContext | None":
        """How to verify the service at `address`; None: by the system's certificate authorities."""
        return None if self.url else local_context(self.settings())

    def _checked_key(self) -> str:
        # The local service's own key is not a fallback here: it must not be sent to another host.
        if not self.key:
            raise ConfigurationError("a service at a URL needs its key: set READSTATE_KEY or give --key")
        return _header_safe(self.key)

    def _local_key(self, settings: Settings) -> str:
        from readstate.gateway.auth.authenticator import load_secrets

        return _header_safe(self.key) if self.key else load_secrets(settings).service_keys[0]


def within(opened: AbstractAsyncContextManager[S], ask: Callable[[S], Awaitable[T]]) -> T:
    """Open something in an event loop of its own, and ask it."""

    async def run() -> T:
        async with opened as one:
            return await ask(one)

    return asyncio.run(run())


@asynccontextmanager
async def open_store(settings: Settings, *, creates: bool = False) -> AsyncIterator["Readstate"]:
    """The service in this process. Refuses to make a new store unless the command `creates` something."""
    from readstate.profiles.service import Readstate, store_exists

    if not creates and not await store_exists(settings):
        raise no_store(settings)
    async with Readstate.open(settings=settings) as service:
        yield service


def _inside(service: "Readstate") -> "httpx.AsyncBaseTransport":
    """The HTTP API of a service in this process."""
    import httpx

    from readstate.gateway import asgi_app

    return httpx.ASGITransport(asgi_app(service), raise_app_exceptions=False)


def local_transport(settings: Settings) -> "httpx.AsyncHTTPTransport":
    """To the service of this data directory, never through a proxy."""
    import httpx

    return httpx.AsyncHTTPTransport(verify=local_context(settings) or True)


def is_running(settings: Settings) -> bool:
    """Whether a process holds the store's lock, which a crash releases.

    In the cluster profile no process has the store to itself: whether one serves over this data directory.
    """
    if settings.profile == "cluster":
        running = announced(Path(settings.data_dir))
        return running is not None and is_alive(running.pid)
    return store_is_locked(settings.store_directory)


def no_store(settings: Settings, where: str | None = None) -> ConfigurationError:
    where = where or (settings.data_dir if settings.in_sqlite else without_password(settings.database_url))
    return ConfigurationError(
        f"there is no store in {where}: start one (readstate serve), or name another (--data-dir or --url)"
    )


def running_url(settings: Settings) -> str:
    """Where the service listens that holds the store."""
    running = announced(Path(settings.data_dir))
    if running is None:
        raise Unavailable(
            f"a process uses the store in {settings.data_dir} and does not say where it listens; "
            "is it just starting? Otherwise give its --url"
        )
    return running.url


def _header_safe(key: str) -> str:
    if not key.isascii() or not key.isprintable():
        raise ConfigurationError("the key has characters that no key has")
    return key
