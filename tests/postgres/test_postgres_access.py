"""How the store gets to PostgreSQL: over TLS, with what the URL says, and behind PgBouncer in transaction mode."""

import asyncio
import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from readstate.adapters.sql.postgres.pool import is_pooled
from readstate.adapters.sql.postgres.store import PostgresStore
from readstate.domain.errors import ConfigurationError, StorageUnavailable
from readstate.domain.events import AnyChannelEvent, ChannelEvent, Delivery, MembersEvent, MessageEvent, ReadEvent
from readstate.domain.model import ChangeNumber
from readstate.stack import Postgres
from readstate.stack.ports import free_ports
from readstate.timings import SqlTimings
from tests.online import nobody

from ..certificates import make_certificate
from ..conftest import eventually
from ..contract.postgres import command, database, server

NOW = 1_700_000_000_000
PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that the account of the server can get to."""
    folder = Path(tempfile.mkdtemp(prefix="readstate-tests-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@contextlib.asynccontextmanager
async def opened(url: str, **how: Any) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(url, 100, SqlTimings(), **how)
    try:
        yield store
    finally:
        await store.close()


# ---------------------------------------------------------------- TLS


@pytest.fixture
def with_tls(open_folder: Path) -> Iterator[tuple[Postgres, Path]]:
    certificate, key = make_certificate(open_folder, "server")
    settings = {"ssl": "on", "ssl_cert_file": str(certificate), "ssl_key_file": str(key)}
    postgres = Postgres(open_folder / "postgres", settings=settings)
    if user := postgres.user():
        os.chown(key, user.uid, user.gid)
    with postgres:
        yield postgres, certificate
    postgres.wipe()


async def test_the_url_says_how_sure_one_wants_to_be(with_tls: tuple[Postgres, Path], open_folder: Path) -> None:
    postgres, certificate = with_tls
    stranger, _ = make_certificate(open_folder, "stranger")
    over_tls = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE query = 'COMMIT'"
    for how in ("sslmode=require", f"sslmode=verify-full&sslrootcert={certificate}"):
        async with opened(f"{postgres.url}?{how}") as store:
            await store.ping()
            assert await command(over_tls, postgres.url) == [(True,)]
    with pytest.raises(ConfigurationError, match="certificate verify failed"):
        await PostgresStore.open(f"{postgres.url}?sslmode=verify-full&sslrootcert={stranger}", 100, SqlTimings())


async def test_a_server_without_tls_is_no_server_for_those_who_require_it() -> None:
    with pytest.raises((ConfigurationError, StorageUnavailable), match="SSL"):
        await PostgresStore.open(server().url + "?sslmode=require", 100, SqlTimings())


# ---------------------------------------------------------------- PgBouncer


@pytest.fixture
async def behind_pgbouncer(open_folder: Path) -> AsyncIterator[str]:
    """A database behind a pooler with two server connections, which change hands after every transaction."""
    if PGBOUNCER is None:
        pytest.skip("PgBouncer is not on this machine (apt install pgbouncer)")
    async with database(empty=True) as url:
        role, password, *_ = url.removeprefix("postgresql://").replace("@", ":").split(":")
        port, name = free_ports(1)[0], url.rpartition("/")[2]
        settings = open_folder / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n{name} = host=127.0.0.1 port={server().port} user={role} password={password}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
            "pool_mode = transaction\ndefault_pool_size = 2\nserver_round_robin = 1\n"
        )
        user = server().user()
        account: dict[str, Any] = user.options() if user else {}
        process = await asyncio.create_subprocess_exec(
            PGBOUNCER,
            "-q",
            settings,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            **account,
        )
        pooled = f"postgresql://{role}@127.0.0.1:{port}/{name}"
        try:
            await eventually(lambda: _answers(pooled), "PgBouncer answers")
            yield pooled
        finally:
            process.terminate()
            await process.wait()


async def _answers(url: str) -> bool:
    try:
        await command("SELECT 1", url)
    except OSError:
        return False
    return True


async def test_a_pooler_is_noticed(behind_pgbouncer: str) -> None:
    assert await is_pooled(behind_pgbouncer, 5.0)
    assert not await is_pooled(server().url, 5.0)


async def test_everything_works_behind_a_pooler_that_changes_connections(behind_pgbouncer: str) -> None:
    positions = itertools.count(1)
    async with opened(behind_pgbouncer, max_connections=8) as one, opened(behind_pgbouncer, max_connections=8) as two:
        events: list[AnyChannelEvent] = [
            ChannelEvent(channel_id="c", created_at=NOW, type="group"),
            MembersEvent(channel_id="c", created_at=NOW, add=("alice", "bob")),
        ]
        await one.apply([Delivery(event, next(positions)) for event in events], online=nobody)

        async def say(store: PostgresStore, id_: str) -> None:
            message = MessageEvent(channel_id="c", created_at=NOW, id=id_, sender_id="alice", at=NOW, text=id_)
            await store.apply([Delivery(message, next(positions))], online=nobody)

        async def read(store: PostgresStore, seq: int) -> None:
            await store.merge([ReadEvent("bob", "c", 0, seq, (), f"m{seq}", NOW, NOW, ChangeNumber(1), NOW)])
            assert (await store.load_user("bob"))[0].pointer.seq >= seq
            assert await store.badge_count("alice") == 0

        work = [say(store, f"m{n}-{m}") for n in range(30) for m, store in enumerate((one, two))]
        work += [read(store, seq) for seq in range(1, 31) for store in (one, two)]
        await asyncio.gather(*work)

        assert (await one.load_channels(["c"]))["c"].last_seq == 60
        assert [entry.seq for entry in (await two.load_timeline("c", 100)).entries] == list(range(1, 61))
        exported = [record async for page in one.transfer.export() for record in page]
        assert len(exported) == 1 + 60 + 2
