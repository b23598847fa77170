"""Applications for separate ports: health, readiness and metrics of a worker, and metrics of any process."""

from collections.abc import Awaitable, Callable, Mapping

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
    async def healthz() -> Answer:
        return Answer(200, [JSON], json.encode(Health()))

    async def readyz() -> Answer:
        return Answer(200, [JSON], json.encode(readiness(await states())))

    pages = {"/healthz": healthz, "/readyz": readyz, "/metrics": exposition}
    return _app(pages, "a worker has /healthz, /readyz and /metrics only")


def metrics_app() -> ASGIApp:
    return _app({"/metrics": exposition}, "there is /metrics only")


def _app(pages: Mapping[str, Callable[[], Awaitable[Answer]]], otherwise: str) -> ASGIApp:
    async def app(scope: Scope, _: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        page = pages.get(scope["path"])
        try:
            answer = await page() if page else problem(NotFound(otherwise))
        except NotReady as error:
            answer = problem(error)
        fields = [*answer.headers, *API_HEADERS, (b"content-length", b"%d" % len(answer.body))]
        await send({"type": "http.response.start", "status": answer.status, "headers": fields})
        await send({"type": "http.response.body", "body": answer.body})

    return app


async def exposition() -> Answer:
    return Answer(200, [content_type(CONTENT_TYPE_LATEST)], await telemetry.EXPOSITION.text())
