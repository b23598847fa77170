"""Dead letters, reconcile and the commands for them in the cluster profile: real Kafka, Valkey and PostgreSQL."""

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from readstate import Readstate
from readstate.adapters.kafka.producer import Record
from readstate.adapters.kafka.topics import MOST_BYTES_OF_ALL
from readstate.adapters.kafka.wire import channel_record
from readstate.api import NewMessage, PutChannel, ReadTarget
from readstate.domain.events import DeadLetter, MessageEvent
from readstate.domain.model import ReadState
from readstate.profiles.roles import WorkerSupervisor
from readstate.settings import Settings, make_settings
from readstate.telemetry import AUDITED, DLT_FAILED, DLT_RECONCILED, DRIFT
from readstate.workers import AUDITOR, DEAD_LETTERS, MESSAGE_WRITER, RECEIPT_PERSISTER, RECONCILER
from tests import commands, stores
from tests.conftest import eventually
from tests.contract import kafka, valkey
from tests.contract.postgres import database
from tests.servers import DEADLINE
from tests.valkey_postgres.repairing import durable_state, read_durable_only, read_hot_only

GENERAL = "general"


class Cluster(NamedTuple):
    """A service of the cluster profile, and how others come to it."""

    rs: Readstate
    settings: dict[str, Any]
    directory: Path

    @property
    def reads(self) -> str:
        return self.rs.cluster.topics.reads

    @property
    def messages(self) -> str:
        return self.rs.cluster.topics.messages

    async def command(self, *words: str, code: int = 0) -> str:
        """What a command prints, in a process of its own."""
        return "".join(await self._run(*words, code=code))

    async def answer(self, *words: str, code: int = 0) -> Any:
        """What it prints as JSON."""
        return json.loads((await self._run(*words, "--json", code=code))[0])

    async def _run(self, *words: str, code: int) -> tuple[str, str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("READSTATE_")}
        environ |= {f"READSTATE_{name.upper()}": str(value) for name, value in self.settings.items()}
        environ["READSTATE_DATA_DIR"] = str(self.directory / "command")
        done = await asyncio.to_thread(commands.run, *words, env=environ, cwd=self.directory, timeout=DEADLINE)
        assert done.returncode == code, done
        return done.stdout, done.stderr

    async def produce(self, topic: str, *values: bytes) -> None:
        """Somebody writes to a topic what no version of ours would."""
        await self.rs.cluster.log._sender._producer.send(topic, [Record(b"", value, 0) for value in values])


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    broker = kafka.server()
    name = secrets.token_hex(4)
    async with database() as url:
        settings: dict[str, Any] = {
            "profile": "cluster",
            "database_url": url,
            "hot_url": valkey.single().url,
            "kafka_bootstrap": broker.url,
            "key_prefix": f"{name}:",
            "topic_prefix": f"{name}.",
            "partitions": 2,
            "data_dir": str(tmp_path / "data"),
        }
        async with Readstate.open(settings=_made(settings), timings=stores.HASTY) as rs:
            yield Cluster(rs, settings, tmp_path)


def _made(settings: dict[str, Any]) -> Settings:
    return make_settings(**settings | {"kafka_bootstrap": (settings["kafka_bootstrap"],)})


@asynccontextmanager
async def at_work(rs: Readstate, roles: Sequence[str]) -> AsyncIterator[None]:
    stopping = asyncio.Event()
    work = asyncio.create_task(WorkerSupervisor(rs, roles).run(stopping))
    try:
        yield
    finally:
        stopping.set()
        await work


async def five_messages(rs: Readstate) -> None:
    await rs.channels.put(GENERAL, PutChannel(type="group", members=("alice", "bob")))
    sent = [NewMessage(channel_id=GENERAL, sender_id="alice", id=f"m{n}") for n in range(1, 6)]
    await rs.messages.send(sent)
    await eventually(lambda: is_unread(rs, 5), "all five messages are there")


async def is_unread(rs: Readstate, count: int) -> bool:
    return (await rs.unread.of_channel("bob", GENERAL)).unread == count


async def listed(rs: Readstate) -> list[str]:
    return [one.event for one in await rs.durable.list_dead_letters(0, 100)]


async def test_poison_is_put_aside_repaired_or_listed_and_played_again(cluster: Cluster) -> None:
    rs = cluster.rs
    broken = f'{{"user_id":"bob","channel_id":"{GENERAL}","epoch":"two"}}'
    nonsense = b"\x00no event at all"
    repaired = DLT_RECONCILED.labels(cluster.reads)._value.get()
    failed = DLT_FAILED.labels(cluster.reads)._value.get()
    async with at_work(rs, (MESSAGE_WRITER, RECEIPT_PERSISTER, DEAD_LETTERS)):
        await five_messages(rs)
        await read_hot_only(rs, GENERAL, 2)
        await cluster.produce(cluster.reads, broken.encode(), nonsense)
        await cluster.produce(cluster.messages, b'{"kind":"of another kind"}')

        async def all_are_dealt_with() -> bool:
            return len(await listed(rs)) == 2 and await durable_state(rs, GENERAL) == ReadState(0, 2)

        await eventually(all_are_dealt_with, "one is repaired, two are listed")
        await rs.reads.mark_read("bob", GENERAL, ReadTarget(up_to="m3"))  # the others go on

        async def is_persisted() -> bool:
            return await durable_state(rs, GENERAL) == ReadState(0, 3)

        await eventually(is_persisted, "a read that came after the poison is persisted")
    assert DLT_RECONCILED.labels(cluster.reads)._value.get() == repaired + 1
    assert DLT_FAILED.labels(cluster.reads)._value.get() == failed + 1

    table = await cluster.command("dlt", "list")
    assert cluster.reads in table
    assert cluster.messages in table
    rows = await cluster.answer("dlt", "list")
    assert {row["event"] for row in rows} == {"\ufffdno event at all", '{"kind":"of another kind"}'}
    refused = await cluster.answer("dlt", "replay", "--all", code=1)
    assert refused["replayed"] == []
    assert {one["id"] for one in refused["refused"]} == {row["id"] for row in rows}
    assert "cannot be replayed" in await cluster.command("dlt", "replay", str(rows[0]["id"]), code=1)
    assert await cluster.answer("dlt", "drop", str(rows[0]["id"]), "--yes") == {"dropped": 1}
    assert "there is no dead letter" in await cluster.command("dlt", "drop", str(rows[0]["id"]), "--yes", code=1)
    assert await cluster.answer("dlt", "drop", "--all", "--yes") == {"dropped": 1}
    assert "no dead letters" in await cluster.command("dlt", "list")


@contextmanager
def m6_fails(rs: Readstate, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A fault of the service that concerns one message."""
    usual = rs.durable.apply

    async def fails(deliveries: Sequence[Any], *more: Any) -> Any:
        if any(getattr(one.event, "id", "") == "m6" for one in deliveries):
            raise RuntimeError("a fault of ours")
        return await usual(deliveries, *more)

    with monkeypatch.context() as patch:
        patch.setattr(rs.durable, "apply", fails)
        yield


async def until_m6_is_listed(rs: Readstate) -> None:
    async def is_listed() -> bool:
        return len(await listed(rs)) == 1

    await eventually(is_listed, "the message that fails is listed")


async def test_a_message_that_failed_is_listed_and_comes_when_it_is_played_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rs = cluster.rs
    async with at_work(rs, (MESSAGE_WRITER, DEAD_LETTERS)):
        await five_messages(rs)
        with m6_fails(rs, monkeypatch):
            sent = [NewMessage(channel_id=GENERAL, sender_id="alice", id=name) for name in ("m6", "m7")]
            await rs.messages.send(sent)
            await until_m6_is_listed(rs)
            await eventually(lambda: is_unread(rs, 6), "the one after it is there")

        (row,) = await cluster.answer("dlt", "list")
        assert "a fault of ours" in row["error"]
        assert await cluster.answer("dlt", "replay", str(row["id"])) == {"replayed": [row["id"]], "refused": []}
        await eventually(lambda: is_unread(rs, 7), "the message has come")
        assert await listed(rs) == []


@pytest.mark.parametrize(
    ("junk", "kept"),
    [(b"\x01" * 700_000, True), (b'"' * 2_100_000, True), (b"\xff" * 1_500_000, False), (b"\0" * 3_000_000, False)],
    ids=["as JSON it is large", "quotes are doubled", "as text it is large", "the database would not take it"],
)
async def test_large_poison_stops_nobody_and_is_listed_without_a_detour(
    cluster: Cluster, junk: bytes, kept: bool
) -> None:
    """As a letter it is larger than Kafka takes."""
    rs = cluster.rs
    async with at_work(rs, (MESSAGE_WRITER, RECEIPT_PERSISTER)):
        await five_messages(rs)
        await cluster.produce(cluster.messages, junk)
        await cluster.produce(cluster.reads, junk)

        async def both_are_listed() -> bool:
            return len(await rs.durable.list_dead_letters(0, 10)) == 2

        await eventually(both_are_listed, "both are listed")
        await rs.messages.send([NewMessage(channel_id=GENERAL, sender_id="alice", id="m6")])
        await eventually(lambda: is_unread(rs, 6), "a message that came after the poison is there")
        await rs.reads.mark_read("bob", GENERAL, ReadTarget(up_to="m3"))

        async def is_persisted() -> bool:
            return await durable_state(rs, GENERAL) == ReadState(0, 3)

        await eventually(is_persisted, "and a read")

    letters = await rs.durable.list_dead_letters(0, 10)
    assert {one.topic for one in letters} == {cluster.messages, cluster.reads}
    text = junk.decode(errors="replace")
    for one in letters:
        assert one.event == text if kept else text.replace("\0", "\ufffd").startswith(one.event)
        assert kept != ("it can't be played again" in one.error)
    told = await cluster.answer("dlt", "replay", "--all", code=1)
    assert [one["id"] for one in told["refused"]] == [one.id for one in letters]
    assert "NotAnEvent" in await cluster.command("dlt", "list")


async def test_a_large_message_that_failed_comes_when_it_is_played_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rs = cluster.rs
    now = rs.clock()
    large = MessageEvent(channel_id=GENERAL, created_at=now, at=now, id="m6", sender_id="alice", text='"' * 1_200_000)
    async with at_work(rs, (MESSAGE_WRITER,)):
        await five_messages(rs)
        with m6_fails(rs, monkeypatch):
            await rs.cluster.log._sender._producer.send(cluster.messages, [channel_record(large, 2)])
            await until_m6_is_listed(rs)

        ((number, error),) = [(one.id, one.error) for one in await rs.durable.list_dead_letters(0, 10)]
        assert error == "RuntimeError: a fault of ours"
        assert await cluster.answer("dlt", "replay", "--all") == {"replayed": [number], "refused": []}
        await eventually(lambda: is_unread(rs, 6), "the message has come")
        assert await listed(rs) == []


async def test_a_large_read_that_makes_no_sense_is_repaired_from_the_hot_store(cluster: Cluster) -> None:
    rs = cluster.rs
    async with at_work(rs, (MESSAGE_WRITER, RECEIPT_PERSISTER)):
        await five_messages(rs)
        await read_hot_only(rs, GENERAL, 2)
        odd = {"user_id": "bob", "channel_id": GENERAL, "epoch": "two", "more": '"' * 1_200_000}
        await cluster.produce(cluster.reads, json.dumps(odd).encode())

        async def is_repaired() -> bool:
            return await durable_state(rs, GENERAL) == ReadState(0, 2)

        await eventually(is_repaired, "the database has what the hot store had")
    assert await listed(rs) == []


async def test_what_kafka_no_longer_takes_is_refused_and_the_letters_beside_it_are_played_again(
    cluster: Cluster,
) -> None:
    rs = cluster.rs
    now = rs.clock()
    async with at_work(rs, (MESSAGE_WRITER,)):
        await five_messages(rs)
        small = MessageEvent(channel_id=GENERAL, created_at=now, at=now, id="m6", sender_id="alice")
        large = channel_record(small, 2).value + b" " * MOST_BYTES_OF_ALL
        values = [large, channel_record(small, 2).value]
        await rs.durable.put_dead_letters(
            [
                DeadLetter(one.decode(), "it failed", 3, cluster.messages, 0, offset, now)
                for offset, one in enumerate(values)
            ]
        )
        first, second = [one.id for one in await rs.durable.list_dead_letters(0, 10)]

        told = await cluster.answer("dlt", "replay", "--all", code=1)

        assert told["replayed"] == [second]
        assert [one["id"] for one in told["refused"]] == [first]
        assert "larger than Kafka takes" in told["refused"][0]["reason"]
        await eventually(lambda: is_unread(rs, 6), "the message has come")


async def test_reconcile_rebuild_and_audit_by_command(cluster: Cluster) -> None:
    rs = cluster.rs
    async with at_work(rs, (MESSAGE_WRITER, RECEIPT_PERSISTER)):
        await five_messages(rs)
        await read_hot_only(rs, GENERAL, 2)
        await read_durable_only(rs, GENERAL, 0, (4,))
        assert (await cluster.answer("audit", "--patience", "0", code=1))["drift"] != []

        found = await cluster.answer("reconcile")
        assert (found["database_behind"], found["hot_store_behind"], found["undecided"]) == (1, 1, 0)
        assert await durable_state(rs, GENERAL) == ReadState(0, 2, frozenset({4}))
        assert await is_unread(rs, 2)
        assert "database was behind" in await cluster.command("reconcile")
        assert "all agree" in await cluster.command("audit")

        generation = await rs.cluster.notes.generation()
        assert await cluster.answer("rebuild", "--clear") == {"users": 2, "channels": 1}
        assert await rs.cluster.notes.generation() > generation
        assert None not in await rs.hot.users.changes(["alice", "bob"])
        assert await is_unread(rs, 2)


async def test_in_the_background_one_process_reconciles_and_audits(cluster: Cluster) -> None:
    rs = cluster.rs
    async with at_work(rs, (MESSAGE_WRITER, RECEIPT_PERSISTER)):
        await five_messages(rs)
        await read_hot_only(rs, GENERAL, 2)
        audited, drift = AUDITED._value.get(), DRIFT._value.get()
        periodic = WorkerSupervisor(rs, (RECONCILER, AUDITOR)), WorkerSupervisor(rs, (RECONCILER, AUDITOR))
        stopping = asyncio.Event()
        work = [asyncio.create_task(supervisor.run(stopping)) for supervisor in periodic]

        async def is_done() -> bool:
            return await durable_state(rs, GENERAL) == ReadState(0, 2) and AUDITED._value.get() > audited

        await eventually(is_done, "the read is in the database, and counts were made again")
        assert [supervisor.states() for supervisor in periodic] == [{RECONCILER: "ok", AUDITOR: "ok"}] * 2
        stopping.set()
        await asyncio.gather(*work)
        assert (AUDITED._value.get(), DRIFT._value.get()) == (audited + 2, drift)


async def test_what_is_not_even_a_letter_is_listed(cluster: Cluster) -> None:
    rs = cluster.rs
    topic = rs.cluster.topics.dead(cluster.reads)
    failed = DLT_FAILED.labels(topic)._value.get()
    async with at_work(rs, (DEAD_LETTERS,)):
        await cluster.produce(topic, b"no letter")

        async def is_listed() -> bool:
            return await listed(rs) == ["no letter"] and DLT_FAILED.labels(topic)._value.get() == failed + 1

        await eventually(is_listed, "it is listed")
    (refused,) = (await cluster.answer("dlt", "replay", "--all", code=1))["refused"]
    assert "is no topic of events" in refused["reason"]
