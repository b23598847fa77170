"""What the figures of `bench/` rest on."""

import asyncio
from pathlib import Path

import pytest

from bench.__main__ import NAMES, chosen
from bench.allocator import NAME, jemalloc
from bench.cases.reads_ws import DEVICES, Readings
from bench.landing import OURS, _complete
from bench.load import BenchmarkError, bursting
from bench.meter import BYTES_IN, BYTES_OUT, LOGGED, RECORDS, TRIPS, WAL, Reading, Spent
from bench.report import Result
from bench.world import Town, channel_id, message_batch, user_id

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


def test_every_case_can_be_run() -> None:
    cases = {file.stem for file in Path("bench/cases").glob("*.py")} - {"__init__", "live_devices"}

    assert set(NAMES) == {name for name in cases if not name.endswith("_child")}
    assert chosen(["cluster"]) == ["cluster_reads", "cluster_messages", "cluster_scale"]


def test_jemalloc_is_used_where_it_is_installed(tmp_path: Path) -> None:
    empty, installed = tmp_path / "empty", tmp_path / "installed"
    installed.mkdir()
    (installed / NAME).touch()

    assert jemalloc([empty]) is None
    assert jemalloc([empty, installed]) == installed / NAME


def test_costs_are_told_for_a_thousand_and_by_process() -> None:
    nothing = dict.fromkeys((TRIPS, BYTES_IN, BYTES_OUT, RECORDS, LOGGED, WAL), 0)
    much = {TRIPS: 40, BYTES_IN: 2_000_000, BYTES_OUT: 1_000_000, RECORDS: 10, LOGGED: 90_000, WAL: 600_000}
    spent, result = Spent(), Result("")

    spent.add(Reading(1.0, {"serve": 1.0, "Valkey": 2.0}, nothing), Reading(3.0, {"serve": 1.1, "Valkey": 2.3}, much))
    spent.tell(result, "batches", "reads", 2_000)

    cpu, traffic = (row.figure for row in result.rows)
    assert cpu == "200: Valkey 150, serve 50"
    assert traffic == (
        "Valkey 20 round trips, 1,000 kB in, 500 kB out; Kafka 5 records, 45 kB; PostgreSQL 300 kB of WAL"
    )
    assert spent.seconds == 2.0


def test_a_read_that_is_missing_is_waited_for_and_one_that_nobody_sent_is_an_error() -> None:
    expected = {("bob", "general"): 3}

    assert _complete({("bob", "general"): 3, ("ann", "general"): 9}, expected)
    assert not _complete({("bob", "general"): 2}, expected)
    assert not _complete({}, expected)
    with pytest.raises(BenchmarkError, match="nobody has sent"):
        _complete({("bob", "general"): 4}, expected)
    assert "read_receipts" in OURS.arrived


def test_devices_read_their_channels_one_after_another() -> None:
    readings = Readings(Town())
    channels = readings.channels[0]
    first = list(readings.places(0, messages=2))
    assert first == [(channel, seq) for seq in (1, 2) for channel in channels]

    readings.acknowledge([len(channels) + 1] + [0] * (DEVICES - 1))

    assert next(readings.places(0, messages=2)) == (channels[1], 2)
    pointers = readings.expected()[user_id(0)]
    assert [pointers[channel_id(channel)] for channel in channels] == [2] + [1] * (len(channels) - 1)


def test_people_write_in_turns() -> None:
    body = message_batch([(1, 1), (1, 2), (1, 3)], ["ann", "bob"])

    assert [body.count(b'"sender_id":"%b"' % who) for who in (b"ann", b"bob")] == [1, 2]


async def test_a_pace_ends_with_the_time_and_not_with_the_requests() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1_000):
            writer.write(ANSWER)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    requests = [b"GET / HTTP/1.1\r\n\r\n"] * 1_000

    load = await bursting(port, [requests, requests], lambda body: body == b"{}", 0.2, rate=50)

    assert 1 <= load.requests <= 12, "50 in a second, for a fifth of a second"
    server.close()
