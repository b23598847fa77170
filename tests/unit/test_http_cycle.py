"""Answers in JSON: written in one piece, and as uvicorn would write them."""

import asyncio
import logging
from typing import Any
from unittest.mock import Mock

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from readstate.gateway.asgi import JSON_HEADERS
from readstate.gateway.http.cycle import Cycle

LENGTH = (b"content-length", b"2")
ANSWERS = {
    "json": [*JSON_HEADERS, LENGTH],
    "a stream of json": JSON_HEADERS,
    "a stream with one more header": [*JSON_HEADERS, (b"vary", b"origin")],
    "with cors": [*JSON_HEADERS, (b"vary", b"origin"), LENGTH],
    "a page": [(b"content-type", b"text/html"), LENGTH],
}


def cycle_of(kind: type[RequestResponseCycle], method: str = "POST", keep_alive: bool = True) -> RequestResponseCycle:
    log, transport = logging.getLogger(), Mock()
    common = [(b"date", b"today")]
    scope: Any = {"type": "http", "method": method}
    flow, event = FlowControl(transport), asyncio.Event()
    return kind(scope, transport, flow, log, log, False, common, event, False, keep_alive, Mock())


def pieces(cycle: RequestResponseCycle) -> list[bytes]:
    written: Any = cycle.transport.write
    return [call.args[0] for call in written.call_args_list]


async def answer(cycle: RequestResponseCycle, headers: list[tuple[bytes, bytes]], status: int = 200) -> None:
    await cycle.send({"type": "http.response.start", "status": status, "headers": headers})
    await cycle.send({"type": "http.response.body", "body": b"{}", "more_body": False})


@pytest.mark.parametrize("keep_alive", [True, False])
@pytest.mark.parametrize("method", ["POST", "HEAD"])
@pytest.mark.parametrize("headers", ANSWERS.values(), ids=ANSWERS)
async def test_the_bytes_are_those_of_uvicorn(
    headers: list[tuple[bytes, bytes]], method: str, keep_alive: bool
) -> None:
    ours, theirs = cycle_of(Cycle, method, keep_alive), cycle_of(RequestResponseCycle, method, keep_alive)
    for cycle in (ours, theirs):
        await answer(cycle, headers, 404)
        assert cycle.response_complete
        assert cycle.message_event.is_set()
    assert b"".join(pieces(ours)) == b"".join(pieces(theirs))
    assert ours.transport.close.called == theirs.transport.close.called  # type: ignore[attr-defined]


async def test_json_is_written_in_one_piece() -> None:
    cycle = cycle_of(Cycle)
    await answer(cycle, [*JSON_HEADERS, LENGTH])
    assert len(pieces(cycle)) == 1


async def test_an_answer_waits_for_a_client_that_does_not_read_and_is_dropped_if_it_goes() -> None:
    for gone in (False, True):
        cycle = cycle_of(Cycle)
        cycle.flow.pause_writing()
        task = asyncio.create_task(answer(cycle, [*JSON_HEADERS, LENGTH]))
        await asyncio.sleep(0)
        assert not pieces(cycle)
        cycle.disconnected = gone
        cycle.flow.resume_writing()
        await task
        assert len(pieces(cycle)) == (0 if gone else 1)


async def test_a_server_that_began_to_stop_closes_after_the_answer() -> None:
    cycle = cycle_of(Cycle)
    await cycle.send({"type": "http.response.start", "status": 200, "headers": [*JSON_HEADERS, LENGTH]})
    cycle.keep_alive = False
    await cycle.send({"type": "http.response.body", "body": b"{}", "more_body": False})
    cycle.transport.close.assert_called_once()  # type: ignore[attr-defined]


@pytest.mark.parametrize("headers", ANSWERS.values(), ids=ANSWERS)
async def test_an_answer_to_a_client_that_has_left_is_dropped(headers: list[tuple[bytes, bytes]]) -> None:
    cycle = cycle_of(Cycle)
    cycle.disconnected = True
    await answer(cycle, headers, 503)
    assert not pieces(cycle)
