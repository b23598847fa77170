"""OpenTelemetry traces: what arrives at a collector, what must never arrive there, and a collector that is away."""

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind

from readstate import Readstate, tracing
from readstate.batching import Batcher
from readstate.domain.errors import ConfigurationError
from readstate.domain.events import Consumed
from readstate.timings import WorkerTimings
from readstate.tracing import Tracing
from readstate.workers.runner import Gather, Runner
from tests import stores
from tests.cli.test_cli import Shell
from tests.collector import Collector, collecting
from tests.conftest import SERVICE_KEY, Chat, in_process, token_for
from tests.live.conftest import live_service
from tests.servers import serving
from tests.unit.test_runner import Scripted

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
READ = "POST /v1/users/{user}/channels/{channel}/read"
SEND = "POST /v1/messages"
SOURCE = Path(tracing.__file__).parent


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        yield collector


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the collector should be, nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")


@asynccontextmanager
async def a_chat(directory: Path, **settings: Any) -> AsyncIterator[Chat]:
    """A service with traces; what it has made is delivered when it is closed."""
    async with in_process(directory, traces=True, **settings) as chat:
        yield chat


async def a_story(chat: Chat) -> None:
    await chat.open_channel("alice-id", "bob-id", channel="channel-id")
    await chat.post("alice-id", "channel-id", id="message-id", text="a secret text")
    await chat.as_user("bob-id").read("bob-id", "channel-id", up_to="message-id")
    assert await chat.count("bob-id", "channel-id") == 0


# ---------------------------------------------------------------- requests


async def test_a_request_is_a_span_with_its_route_and_status(tmp_path: Path, collector: Collector) -> None:
    async with a_chat(tmp_path) as chat:
        await a_story(chat)
        assert (await chat.call("GET", "/v1/channels/nowhere")).status_code == 404
        assert (await chat.call("GET", "/no/such/path")).status_code == 404

    read = collector.one(READ)
    assert read.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/users/{user}/channels/{channel}/read",
        "http.response.status_code": 200,
    }
    assert (read.kind, read.parent, read.failed) == ("server", "", False)
    missing = collector.one("GET /v1/channels/{channel}")
    assert (missing.attributes["http.response.status_code"], missing.failed) == (404, False)
    assert collector.one("GET").attributes == {"http.request.method": "GET", "http.response.status_code": 404}
    assert {one["service.name"] for one in collector.resources} == {"readstate"}
    assert all(one["service.instance.id"] for one in collector.resources)


async def test_the_steps_of_a_send_and_of_a_read_are_below_it(tmp_path: Path, collector: Collector) -> None:
    async with a_chat(tmp_path) as chat:
        await a_story(chat)

    sent, read = collector.one(SEND), collector.one(READ)
    writing = ["log.channel_events", "events", "events batch", "durable.apply", "hot.channels.apply", "hot.users.apply"]
    assert set(writing) <= set(collector.below(sent))
    assert {"moves", "moves batch", "hot.users.move", "log.reads", "durable.merge"} <= set(collector.below(read))
    assert {one.trace for one in collector.spans if one.name == "hot.users.move"} == {read.trace}
    assert collector.one("moves batch").attributes == {"readstate.batch.size": 1, "readstate.batch.requests": 1}
    assert {one.attributes["db.system.name"] for one in collector.named("durable.merge")} <= {"sqlite", "postgresql"}


async def test_a_trace_of_the_sender_is_continued(tmp_path: Path, collector: Collector) -> None:
    async with a_chat(tmp_path) as chat:
        await chat.call("GET", "/v1/users/bob/unread", headers=TRACEPARENT)
        await chat.call("GET", "/v1/users/bob/unread", headers={"traceparent": "00-nonsense-01"})
        not_sampled = TRACEPARENT["traceparent"].removesuffix("01") + "00"
        await chat.call("GET", "/v1/users/bob/unread", headers={"traceparent": not_sampled})

    first, second = collector.named("GET /v1/users/{user}/unread")
    assert (first.trace, first.parent) == (TRACE, PARENT)
    assert second.trace != TRACE
    assert second.parent == ""


async def test_a_request_inside_a_span_of_another_application_belongs_to_it(
    tmp_path: Path, collector: Collector
) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("the application")
    async with a_chat(tmp_path) as chat:
        with tracer.start_as_current_span("its own") as span:
            await chat.ask("GET", "/v1/users/bob/unread")

    assert collector.one("GET /v1/users/{user}/unread").parent == f"{span.get_span_context().span_id:016x}"


async def test_no_id_text_token_or_key_is_in_what_is_sent(tmp_path: Path, collector: Collector) -> None:
    async with a_chat(tmp_path) as chat:
        await a_story(chat)
        await chat.reply("bob-id", "message-id", "reply-id", channel="channel-id")
        refused = await chat.call("POST", "/v1/users/bob-id/channels/channel-id/read", {"up_to": "unknown-id"})
        assert "unknown-id" in refused.text
        for path in ("inbox", "threads", "badge", "channels/channel-id/explain", "unread/messages?channel=channel-id"):
            await chat.ask("GET", f"/v1/users/bob-id/{path}")

    everything = b"".join(collector.bodies)
    assert b"explain" in everything
    token = token_for("bob-id").encode()
    for private in (b"alice-id", b"bob-id", b"channel-id", b"message-id", b"reply-id", b"unknown-id", b"secret text"):
        assert private not in everything
    assert SERVICE_KEY.encode() not in everything
    assert token.split(b".")[1] not in everything


async def test_a_failure_is_told_by_its_class_and_not_by_what_it_says(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_chat(tmp_path) as chat:
        await a_story(chat)

        async def fail(*_: object) -> None:
            raise ValueError("it was bob-id")

        from readstate.adapters.sql.store import SqlStore

        monkeypatch.setattr(SqlStore, "activity", fail)
        assert (await chat.call("GET", "/v1/users/bob-id/preferences")).status_code == 500

    failed = [span for span in collector.spans if span.failed]
    assert [span.name for span in failed] == ["GET /v1/users/{user}/preferences", "durable.activity"]
    assert failed[0].attributes["http.response.status_code"] == 500
    assert failed[1].attributes["error.type"] == "ValueError"
    assert b"bob-id" not in b"".join(collector.bodies)


async def test_health_checks_and_live_connections_are_no_spans(tmp_path: Path, collector: Collector) -> None:
    async with live_service(tmp_path, traces=True) as service:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await service.chat.http.get(path)).status_code == 200
        await service.chat.open_channel("alice", "bob")
        await service.chat.send("alice", "m1")
        device = await service.fresh("bob")
        await device.ask("mark_read", channel_id="general", up_to="m1")

    roots = [span.name for span in collector.spans if not span.parent]
    assert [name for name in roots if not name.endswith(" batch")] == ["PUT /v1/channels/{channel}", SEND]
    assert collector.named("hot.users.move") == []


# ---------------------------------------------------------------- one batch for many requests


async def test_a_batch_is_a_part_of_its_first_request_and_the_others_lead_to_it(collector: Collector) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def handle(items: Sequence[int]) -> list[int]:
        started.set()
        await go_on.wait()
        return [-item for item in items]

    made = Tracing("test")
    made.open()
    batcher: Batcher[int, int] = made.batchers(handle, max_items=10, name="things")

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        await batcher.submit([scope["number"]])

    app = made.server(serve, lambda scope: f"/{scope['number']}")

    def request(number: int) -> "asyncio.Task[None]":
        scope = {"type": "http", "method": "GET", "headers": [], "number": number}
        return asyncio.create_task(app(scope, None, None))  # type: ignore[arg-type]

    tasks = [request(1)]
    await started.wait()
    tasks += [request(number) for number in (2, 3, 4)]
    await asyncio.sleep(0)
    untraced = asyncio.create_task(batcher.submit([5]))
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(*tasks)
    assert await untraced == [-5]
    assert await batcher.submit([]) == []
    await made.close()

    first, second = collector.named("things batch")
    waits = {one.parent: one for one in collector.named("things")}
    wait = {number: waits[collector.one(f"GET /{number}").id] for number in (1, 2, 3, 4)}
    assert first.parent == wait[1].id
    assert second.parent == wait[2].id
    assert [wait[number].links for number in (1, 2, 3, 4)] == [[], [], [second.id], [second.id]]
    assert second.attributes == {"readstate.batch.size": 4, "readstate.batch.requests": 3}


# ---------------------------------------------------------------- workers


async def test_a_batch_of_a_worker_is_a_span(collector: Collector) -> None:
    made = Tracing("test")
    made.open()
    batches = [
        [Consumed("t", 0, 1, b"", b"bob-id"), Consumed("t", 1, 1, b"", b"bob-id")],
        [Consumed("t", 0, 2, b"", b"poison of bob-id")],
    ]

    async def look(_: object) -> None: ...

    step = made.step("a step", SpanKind.INTERNAL, {}, look)

    async def handle(batch: Sequence[Consumed]) -> None:
        await step(batch)
        if batch[0].value.startswith(b"poison"):
            raise ValueError(batch[0].value)

    async def dead_letter(record: Consumed, reason: str, tries: int) -> None: ...

    runner = Runner(
        "writer",
        Scripted(*batches),
        handle,
        dead_letter,
        Gather(10, 0),
        WorkerTimings(retries=(0, 0)),
        made,
    )
    await runner.turn()
    await runner.turn()
    await step(())  # outside of any batch
    await made.close()

    good, bad = collector.named("writer batch")
    assert good.attributes == {
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.batch.message_count": 2,
        "readstate.partitions": 2,
        "readstate.retries": 0,
    }
    assert (good.kind, good.parent, good.failed) == ("consumer", "", False)
    assert (bad.attributes["readstate.retries"], bad.attributes["readstate.dead_letters"]) == (1, 1)
    assert bad.failed
    assert [one.parent for one in collector.named("a step")] == [good.id, bad.id, bad.id, bad.id]
    assert b"bob-id" not in b"".join(collector.bodies)


async def test_in_a_cluster_the_request_shows_kafka_and_the_worker_its_stores(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "chosen", stores.CLUSTER)
    async with a_chat(tmp_path) as chat:
        await a_story(chat)
        await chat.settled()

    sent, read = collector.one(SEND), collector.one(READ)
    assert {"log.channel_events", "kafka.send"} <= set(collector.below(sent))
    assert {"moves batch", "hot.users.move", "log.reads", "kafka.send"} <= set(collector.below(read))
    assert {one.attributes["db.system.name"] for one in collector.named("hot.users.move")} == {"redis"}
    written = {name for one in collector.named("message-writer batch") for name in collector.below(one)}
    assert {"durable.apply", "hot.channels.apply", "hot.users.apply"} <= written
    persisted = {name for one in collector.named("read-receipt-persister batch") for name in collector.below(one)}
    assert "durable.merge_unless_erased" in persisted
    everything = b"".join(collector.bodies)
    assert not [one for one in (b"alice-id", b"bob-id", b"channel-id", b"message-id", b"secret") if one in everything]


# ---------------------------------------------------------------- a collector that is away


async def test_a_collector_that_is_away_disturbs_nobody(
    tmp_path: Path, nobody: None, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async with a_chat(tmp_path) as chat:
        await a_story(chat)

    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]
    assert "Traceback" not in "".join(capfd.readouterr())


async def test_a_collector_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracing, "STOP_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
        async with asyncio.timeout(30):
            async with a_chat(tmp_path) as chat:
                await a_story(chat)
    assert "the last traces are dropped" in "".join(capfd.readouterr())


async def test_that_traces_do_not_arrive_is_told_once_and_that_they_do_again(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "5")
    collector.status = 400
    made = Tracing("test")
    made.open()
    heard = ""

    async def until(words: str) -> None:
        nonlocal heard
        while words not in heard:
            with made.worker_batch("any", 1, 1):
                await asyncio.sleep(0.005)
            heard += "".join(capfd.readouterr())

    async with asyncio.timeout(60):
        await until("traces cannot be delivered")
        for _ in range(10):
            await until("traces cannot be delivered")
            with made.worker_batch("any", 1, 1):
                await asyncio.sleep(0.01)
        collector.status = 200
        await until("traces are delivered again")
    await made.close()
    assert heard.count("traces cannot be delivered") == 1
    assert "code: 400" in heard
    assert collector.named("any batch")


def test_a_process_stops_in_time_without_its_collector(tmp_path: Path, nobody: None) -> None:
    with serving(tmp_path, traces=True) as server:
        headers = {"authorization": f"Bearer {server.service_key}"}
        for _ in range(3):
            assert httpx.get(f"{server.url}/v1/users/bob/unread", headers=headers, timeout=30).status_code == 200
        assert server.stop() == 0
        assert not [line for line in server.log if "Traceback" in line or '"opentelemetry' in line]


# ---------------------------------------------------------------- off, missing, wrong


ONE_REQUEST = """
import asyncio, sys
import httpx
from readstate import Readstate
from readstate.gateway import asgi_app

async def main():
    async with Readstate.open(data_dir=sys.argv[1]) as rs:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(asgi_app(rs)), base_url="http://test") as http:
            key = open(sys.argv[1] + "/service-key").read().strip()
            answer = await http.get("/v1/users/bob/unread", headers={"authorization": "Bearer " + key})
            assert answer.status_code == 200, answer.text

asyncio.run(main())
import readstate.cli, readstate.profiles.roles
print(sorted(name for name in sys.modules if name.partition(".")[0] in {"opentelemetry", "google"}))
print("readstate.tracing" in sys.modules)
"""


def test_without_traces_nothing_of_the_library_is_imported(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", ONE_REQUEST, str(shell.data)],
        env=shell.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.split("\n")[:2] == ["[]", "False"]


def test_one_module_knows_the_library() -> None:
    knows = [
        path.name
        for path in SOURCE.rglob("*.py")
        if re.search(r"^\s*(from|import) opentelemetry", path.read_text(), re.M)
    ]
    assert knows == ["tracing.py"]


@pytest.mark.parametrize("library", ["opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter"])
@pytest.mark.parametrize("flags", [("serve", "--port", "0"), ("serve", "--port", "0", "--workers", "2")])
def test_without_the_extra_traces_are_refused_with_how_to_get_it(
    tmp_path: Path, library: str, flags: tuple[str, ...]
) -> None:
    shell = Shell(tmp_path)
    cluster = {
        "READSTATE_PROFILE": "cluster",
        "READSTATE_HOT_URL": "redis://127.0.0.1:1",
        "READSTATE_KAFKA_BOOTSTRAP": "127.0.0.1:1",
        "READSTATE_DATABASE_URL": "postgresql://u:p@127.0.0.1:1/x",
    }
    variables = {"READSTATE_TRACES": "true"} | (cluster if "--workers" in flags else {})
    done = shell.run_without(library, *flags, **variables)
    assert done.code == 1
    assert "TRACES needs a library that is missing: pip install 'readstate[otel]'" in done.err
    assert "Traceback" not in done.err


def test_commands_that_open_the_store_themselves_make_no_traces(tmp_path: Path, collector: Collector) -> None:
    shell = Shell(tmp_path)
    shell.environ |= {"READSTATE_TRACES": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    shell.says("channel", "general", "--type", "group", "--member", "bob")
    assert json.loads(shell.says("unread", "bob", "--json"))
    assert collector.bodies == []


async def test_variables_that_make_no_sense_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    with pytest.raises(ConfigurationError, match="OTEL_ variables"):
        await Readstate.open(data_dir=tmp_path, traces=True)


async def test_its_name_and_its_sampler_come_from_the_usual_variables(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "chat-reads")
    async with a_chat(tmp_path / "one") as chat:
        await a_story(chat)
    assert {one["service.name"] for one in collector.resources} == {"chat-reads"}

    collector.bodies.clear()
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    async with a_chat(tmp_path / "two") as chat:
        await a_story(chat)
    assert collector.bodies == []
