"""Metrics cost little however often they are asked for, and may have a port of their own."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from readstate.cli.process import COPY, as_copy
from readstate.settings import make_settings
from readstate.stack.ports import free_ports
from readstate.telemetry import REGISTRY, Exposition
from tests.conftest import check_problem, in_process
from tests.servers import Server, serving


class Counting(Collector):
    """A metric that notices whenever metrics are made, and where."""

    def __init__(self) -> None:
        self.made = 0
        self.in_threads: set[threading.Thread] = set()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        self.made += 1
        self.in_threads.add(threading.current_thread())
        yield GaugeMetricFamily("readstate_counting", "For this test.", self.made)


@pytest.fixture
def counting() -> Iterator[Counting]:
    collector = Counting()
    REGISTRY.register(collector)
    yield collector
    REGISTRY.unregister(collector)


async def test_however_often_they_are_asked_for_they_are_made_once_a_second(tmp_path: Path, counting: Counting) -> None:
    counting.made = 0  # registering made them once
    counting.in_threads.clear()
    async with in_process(tmp_path) as chat:
        started = time.monotonic()
        answers = await asyncio.gather(*(chat.with_token(None).call("GET", "/metrics") for _ in range(200)))
        elapsed = time.monotonic() - started

    assert {answer.status_code for answer in answers} == {200}
    assert counting.made <= 1 + elapsed
    assert threading.main_thread() not in counting.in_threads


async def test_what_is_a_second_old_is_made_anew() -> None:
    registry, counting, now = CollectorRegistry(), Counting(), [0.0]
    registry.register(counting)
    counting.made = 0
    exposition = Exposition(registry, lambda: now[0])

    assert b"readstate_counting 1.0" in await exposition.text()
    now[0] += 0.99
    assert b"readstate_counting 1.0" in await exposition.text()
    now[0] += 0.01
    assert b"readstate_counting 2.0" in await exposition.text()


# ---------------------------------------------------------------- a port of their own


def test_with_a_port_of_their_own_they_are_not_on_the_main_one(tmp_path: Path, free_port: int) -> None:
    with serving(tmp_path / "data", metrics_port=free_port) as server:
        metrics = httpx.get(f"http://127.0.0.1:{free_port}/metrics")
        other = httpx.get(f"http://127.0.0.1:{free_port}/healthz")
        main = httpx.get(f"{server.url}/metrics")

        assert metrics.status_code == 200
        assert metrics.headers["content-type"].startswith("text/plain")
        assert "readstate_ws_connections" in metrics.text
        check_problem(other, 404, "not_found")
        check_problem(main, 404, "not_found")
        assert httpx.get(f"{server.url}/healthz").status_code == 200
        assert server.stop() == 0


def test_a_port_that_is_taken_is_told_at_start(tmp_path: Path) -> None:
    with serving(tmp_path / "first") as first:
        taken = httpx.URL(first.url).port
        second = Server(tmp_path / "second", metrics_port=taken)
        second.launch()

        assert second.wait_for_exit() != 0

    assert f"cannot listen on 127.0.0.1:{taken}" in " ".join("".join(second.log).split())


@pytest.fixture
def free_port() -> int:
    [port] = free_ports(1)
    return port


def test_each_of_several_processes_has_a_port_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COPY, "2")

    assert as_copy(make_settings(metrics_port=9_000)).metrics_port == 9_002
    assert as_copy(make_settings()).metrics_port == 0
