"""Logs are JSON lines that hold no message text and no secret; metrics have their promised names."""

import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import structlog
from prometheus_client import generate_latest

from readstate import telemetry
from readstate.api import NewMessage


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def log() -> io.StringIO:
    stream = io.StringIO()
    telemetry.setup_logging("info", stream)
    return stream


def only_line(stream: io.StringIO) -> dict[str, Any]:
    (line,) = stream.getvalue().splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def test_an_event_is_one_json_line_with_level_and_utc_time(log: io.StringIO) -> None:
    structlog.get_logger("readstate").info("taken", action="send", channel_id="c1")

    line = only_line(log)
    assert (line["event"], line["level"], line["action"], line["channel_id"]) == (
        "taken",
        "info",
        "send",
        "c1",
    )
    assert line["timestamp"].endswith("Z")


def test_no_message_text_and_no_secret_is_logged_even_by_accident(log: io.StringIO) -> None:
    secret = "s3cret"
    structlog.get_logger().warning(
        "odd",
        text=secret,
        preview=secret,
        token=secret,
        key=secret,
        Authorization=secret,
        message={"id": "m1", "text": secret, "items": [{"preview": secret}]},
        whole=NewMessage(channel_id="c1", sender_id="alice", text=secret),
        path=Path("/data"),
    )

    line = only_line(log)
    assert secret not in log.getvalue()
    assert line["message"] == {"id": "m1", "items": [{}]}
    assert (line["whole"], line["path"]) == ("<NewMessage>", "/data")


def test_the_standard_librarys_logs_go_the_same_way(log: io.StringIO) -> None:
    logging.getLogger("uvicorn.error").warning("from %s", "uvicorn", extra={"token": "s3cret"})

    line = only_line(log)
    assert (line["event"], line["level"], line["logger"]) == ("from uvicorn", "warning", "uvicorn.error")
    assert "s3cret" not in log.getvalue()


def test_a_traceback_shows_no_local_variables(log: io.StringIO) -> None:
    def fail(text: str) -> None:
        raise ValueError(len(text))

    try:
        fail("s3" + "cret")
    except ValueError:
        structlog.get_logger().exception("failed")

    assert "ValueError: 6" in only_line(log)["exception"]
    assert "s3cret" not in log.getvalue()


@pytest.mark.parametrize("level", ["debug", "info"])
def test_libraries_are_heard_from_warnings_on_at_every_level(level: str) -> None:
    stream = io.StringIO()
    telemetry.setup_logging(level, stream)
    for name in (
        "uvicorn.error",
        "uvicorn.access",
        "websockets.server",
        "httpx",
        "httpcore.http11",
        "redis",
        "asyncpg",
    ):
        for said in (logging.DEBUG, logging.INFO):
            assert not logging.getLogger(name).isEnabledFor(said), name
        assert logging.getLogger(name).isEnabledFor(logging.WARNING)

    structlog.get_logger("readstate.gateway").debug("detail")

    assert ("detail" in stream.getvalue()) is (level == "debug")


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer s3cret",
        "{'authorization': 'Bearer s3cret'}",
        'authorization="bearer s3cret"',
        "Sec-WebSocket-Protocol: readstate, bearer.s3cret",
        "cannot reach redis://user:s3cret@10.0.0.1:6379/0",
        "cannot reach redis://:s3cret@10.0.0.1:6379/0",
        "postgresql://readstate:s3cret@db/readstate?sslpassword=s3cret&x=1",
        "GET /v1/ws?access_token=s3cret HTTP/1.1",
        '{"type": "hello", "token": "s3cret", "device": "phone"}',
        "{'type': 'auth', 'token': 's3cret'}",
        "sasl.password=s3cret",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJib2IifQ.s3cret",
    ],
)
def test_a_credential_in_the_text_of_a_library_s_error_is_hidden(text: str) -> None:
    for stream in (io.StringIO(), Terminal()):
        telemetry.setup_logging("debug", stream)
        try:
            raise ValueError(text)
        except ValueError as error:
            logging.getLogger("some.library").exception("failed: %s", text)
            structlog.get_logger("readstate").warning("failed", error=str(error), reason=repr(error))

        assert "s3cret" not in stream.getvalue(), stream.getvalue()
        assert stream.getvalue().count("***") >= 3


@pytest.mark.parametrize("text", ["listening on http://[::1]:8080/x?a=b@c", "the token expired", "secret", "m1:m2@m3"])
def test_what_is_no_credential_is_left_alone(log: io.StringIO, text: str) -> None:
    structlog.get_logger("readstate").warning(text)

    assert only_line(log)["event"] == text


def test_below_the_level_nothing_is_logged(log: io.StringIO) -> None:
    structlog.get_logger().debug("detail")
    logging.getLogger("httpx").info("HTTP Request: GET http://x?token=y")

    assert log.getvalue() == ""


def test_on_a_terminal_lines_are_for_people_and_as_discreet() -> None:
    stream = Terminal()
    telemetry.setup_logging("info", stream)

    structlog.get_logger("readstate").info("taken", text="s3cret", channel_id="c1")

    assert "taken" in stream.getvalue()
    assert "c1" in stream.getvalue()
    assert "s3cret" not in stream.getvalue()
    assert not stream.getvalue().startswith("{")


@pytest.mark.parametrize(
    "name",
    [
        "readstate_http_requests_total",
        "readstate_http_seconds",
        "readstate_receipts_total",
        "readstate_messages_total",
        "readstate_persist_batch_size",
        "readstate_persist_seconds",
        "readstate_receipts_dedup_ratio",
        "readstate_hot_loads_total",
        "readstate_hot_evictions_total",
        "readstate_hot_bytes",
        "readstate_storage_errors_total",
        "readstate_rate_limited_total",
        "process_start_time_seconds",
        "python_gc_collections_total",
        "python_info",
    ],
)
def test_the_registry_has_every_promised_metric_with_a_help_text(name: str) -> None:
    exposed = generate_latest(telemetry.REGISTRY).decode()

    assert f"# HELP {name} " in exposed
