"""Where a command's service is: at a URL, running over a data directory, or the data directory itself."""

import asyncio
import functools
import inspect
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import httpx
import typer

from readstate.client import Client, Retries
from readstate.domain.errors import ConfigurationError, Unavailable
from readstate.gateway import asgi_app
from readstate.gateway.auth.authenticator import load_secrets
from readstate.profiles.embedded import store_is_locked
from readstate.profiles.service import Readstate, store_exists
from readstate.settings import Settings, load_settings, without_password

from .running import announced, is_alive
from .tls import local_context

T = TypeVar("T")
BRIEFLY = Retries(tries=3)
"""Whoever waits at a terminal would rather hear what is wrong."""

Url = Annotated[str | None, typer.Option("--url", envvar="READSTATE_URL", help="Address of the service.")]
Key = Annotated[str | None, typer.Option("--key", envvar="READSTATE_KEY", help="Service key, or a user's token.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Data directory of a local service.")]
Config = Annotated[Path | None, typer.Option("--config", help="TOML file with settings.")]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


@dataclass(frozen=True)
class Place:
    """What the options of a command say about its service."""

    url: str | None = None
    key: str | None = None
    data_dir: Path | None = None
    config: Path | None = None

    def settings(self) -> Settings:
        """The settings of the local service; a command that opens its store makes no traces."""
        return load_settings({"data_dir": self.data_dir, "traces": False}, os.environ, self.config)

    def call(self, ask: Callable[[Client], Awaitable[T]], *, creates: bool = False) -> T:
        """Ask the service, wherever it is. Only what `creates` something may make a new store."""

        async def run() -> T:
            async with self._client(creates) as client:
                return await ask(client)

        return asyncio.run(run())

    @asynccontextmanager
    async def _client(self, creates: bool) -> AsyncIterator[Client]:
        if self.url:
            async with Client(self.url, self._checked_key(), retries=BRIEFLY) as client:
                yield client
            return
        settings = self.settings()
        if is_running(settings):
            url, key = running_url(settings), self._local_key(settings)
            async with Client(url, key, retries=BRIEFLY, transport=local_transport(settings)) as client:
                yield client
            return
        if not creates:
            await require_store(settings)
        async with Readstate.open(settings=settings) as service, self._inside(service) as client:
            yield client

    def address(self) -> tuple[str, str]:
        """Where the service listens now, and the key for it. After a restart it may listen elsewhere."""
        if self.url:
            return self.url, self._checked_key()
        settings = self.settings()
        if not is_running(settings):
            raise Unavailable(
                f"no service runs over {settings.data_dir}, and this needs one: "
                "start one (readstate serve), or say where it is (--data-dir or --url)"
            )
        return running_url(settings), self._local_key(settings)

    def tls(self) -> ssl.SSLContext | None:
        """How the service at `address` is checked; None: as any other."""
        return None if self.url else local_context(self.settings())

    def _inside(self, service: Readstate) -> Client:
        """A client of a service in this very process, over the same HTTP API."""
        key = self._local_key(service.settings)
        transport = httpx.ASGITransport(asgi_app(service), raise_app_exceptions=False)
        return Client("http://readstate", key, retries=BRIEFLY, transport=transport)

    def _checked_key(self) -> str:
        # The local service's own key is not a fallback here: it must not travel to some other host.
        if not self.key:
            raise ConfigurationError("a service at a URL needs its key: set READSTATE_KEY or give --key")
        return _header_safe(self.key)

    def _local_key(self, settings: Settings) -> str:
        return _header_safe(self.key) if self.key else load_secrets(settings).service_keys[0]


def local_transport(settings: Settings) -> httpx.AsyncHTTPTransport:
    """The way to the service of this data directory, by no proxy."""
    return httpx.AsyncHTTPTransport(verify=local_context(settings) or True)


def is_running(settings: Settings) -> bool:
    """Whether a process has the store. Its lock tells: what a crashed service left behind does not.

    In the cluster profile nobody has it alone; there it is whether one serves over this data directory.
    """
    if settings.profile == "cluster":
        running = announced(Path(settings.data_dir))
        return running is not None and is_alive(running.pid)
    return store_is_locked(settings.store_directory)


async def require_store(settings: Settings) -> None:
    """Refuse to go on where nothing was ever stored: who only asks makes no store."""
    if not await store_exists(settings):
        raise no_store(settings)


def no_store(settings: Settings, where: str | None = None) -> ConfigurationError:
    """Nothing was ever stored where the settings say."""
    where = where or (settings.data_dir if settings.in_sqlite else without_password(settings.database_url))
    return ConfigurationError(
        f"there is no store in {where}: start one (readstate serve), or say where it is (--data-dir or --url)"
    )


def running_url(settings: Settings) -> str:
    """Where the service listens that holds the store."""
    running = announced(Path(settings.data_dir))
    if running is None:
        raise Unavailable(
            f"the store in {settings.data_dir} is in use by a process that does not say where it listens; "
            "is it just starting? Otherwise give its --url"
        )
    return running.url


def _header_safe(key: str) -> str:
    if not key.isascii() or not key.isprintable():
        raise ConfigurationError("the key has characters that no key has")
    return key


def at_a_place(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a place, and hand them to it as one argument `place`."""
    own = inspect.signature(command)
    options = {"url": Url, "key": Key, "data_dir": DataDir, "config": Config}
    kept = [parameter for parameter in own.parameters.values() if parameter.name != "place"]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in options.items()
    ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        place = Place(**{name: given.pop(name) for name in options})
        command(**given, place=place)

    run.__signature__ = own.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in [*kept, *added]}
    return run
