"""A collector of OpenTelemetry: takes spans over HTTP as any other one, and keeps them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Told(NamedTuple):
    """A span as it arrived."""

    name: str
    trace: str
    id: str
    parent: str
    kind: str
    attributes: dict[str, Any]
    links: list[str]
    """The ids of the spans that it leads to."""
    failed: bool


class Collector:
    """What has arrived."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.bodies: list[bytes] = []
        self.status = 200

    @property
    def resources(self) -> list[dict[str, Any]]:
        """Who has sent it."""
        return [_values(one.resource.attributes) for body in self.bodies for one in _decoded(body).resource_spans]

    @property
    def spans(self) -> list[Told]:
        """All spans, by their start."""
        found = [
            span
            for body in self.bodies
            for one in _decoded(body).resource_spans
            for scope in one.scope_spans
            for span in scope.spans
        ]
        return [_told(span) for span in sorted(found, key=lambda span: int(span.start_time_unix_nano))]

    def named(self, name: str) -> list[Told]:
        """The spans of this name."""
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> Told:
        """The only span of this name."""
        [span] = self.named(name)
        return span

    def below(self, span: Told) -> list[str]:
        """The names of the spans below one, and below those."""
        children = [one for one in self.spans if one.parent == span.id]
        return [name for child in children for name in (child.name, *self.below(child))]


def _decoded(body: bytes) -> Any:
    return ExportTraceServiceRequest.FromString(body)


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


def _told(span: Any) -> Told:
    return Told(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        {1: "internal", 2: "server", 3: "client", 4: "producer", 5: "consumer"}[span.kind],
        _values(span.attributes),
        [link.span_id.hex() for link in span.links],
        span.status.code == 2,
    )


@contextmanager
def collecting() -> Iterator[Collector]:
    """One that listens as long as the block lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if collector.status == 200:
                assert self.path == "/v1/traces"
                collector.bodies.append(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(collector.status)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
