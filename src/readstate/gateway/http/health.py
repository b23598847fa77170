"""Applications for separate ports: health, readiness and metrics of a worker, and metrics of any process."""

from collections.abc import Awaitable, Callable

from msgspec import json
from prometheus_client import CONTENT_TYPE_LATEST

from readstate import telemetry
from readstate.domain.errors import NotFound
from readstate.gateway.asgi import API_HEADERS, Answer, ASGIApp, Receive, Scope, Send, content_type

from .answers import Health
from .problems import NotReady, problem, readiness

JSON = content_type("application/json")

States = Callable[[], Awaitable[dict[str, str]]]
"""Each dependency and each role, with "ok" or what is wrong."""


def health_app(states: States) -> ASGIApp:
    return _app(lambda path: _answer(path, states))


def metrics_app() -> ASGIApp:
    return _app(_metrics_only)


def _app(answer_of: Callable[[str], Awaitable[Answer]]) -> ASGIApp:
    async def app(scope: Scope, _: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = await answer_of(scope["path"])
        fields = [*answer.headers, *API_HEADERS, (b"content-length", b"%d" % len(answer.body))]
        await send({"type": "http.response.start", "status": answer.status, "headers": fields})
        await send({"type": "http.response.body", "body": answer.body})

    return app


async def _answer(path: str, states: States) -> Answer:
    if path == "/healthz":
        return Answer(200, [JSON], json.encode(Health()))
    if path == "/readyz":
        try:
            return Answer(200, [JSON], json.encode(readiness(await states())))
        except NotReady as error:
            return problem(error)
    if path == "/metrics":
        return await exposition()
    return problem(NotFound("a worker has /healthz, /readyz and /metrics only"))


async def _metrics_only(path: str) -> Answer:
    return await exposition() if path == "/metrics" else problem(NotFound("there is /metrics only"))


async def exposition() -> Answer:
    return Answer(200, [content_type(CONTENT_TYPE_LATEST)], await telemetry.EXPOSITION.text())
