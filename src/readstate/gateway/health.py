"""What a worker answers over HTTP: whether it lives, whether it gets on, and its figures."""

from collections.abc import Awaitable, Callable

from msgspec import json
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from .. import telemetry
from ..errors import NotFound
from .answers import Health, Readiness
from .asgi import API_HEADERS, Answer, ASGIApp, Receive, Scope, Send, content_type
from .problems import NotReady, problem

JSON = content_type("application/json")

States = Callable[[], Awaitable[dict[str, str]]]
"""Each dependency and each role, with "ok" or what is wrong."""


def health_app(states: States) -> ASGIApp:
    """An ASGI application with `/healthz`, `/readyz` and `/metrics`."""

    async def app(scope: Scope, _: Receive, send: Send) -> None:
        answer = await _answer(scope["path"], states)
        fields = [*answer.headers, *API_HEADERS, (b"content-length", b"%d" % len(answer.body))]
        await send({"type": "http.response.start", "status": answer.status, "headers": fields})
        await send({"type": "http.response.body", "body": answer.body})

    return app


async def _answer(path: str, states: States) -> Answer:
    if path == "/healthz":
        return Answer(200, [JSON], json.encode(Health()))
    if path == "/readyz":
        found = await states()
        if any(state != "ok" for state in found.values()):
            return problem(NotReady(found))
        return Answer(200, [JSON], json.encode(Readiness(found)))
    if path == "/metrics":
        return Answer(200, [content_type(CONTENT_TYPE_LATEST)], generate_latest(telemetry.REGISTRY))
    return problem(NotFound("a worker has /healthz, /readyz and /metrics only"))
